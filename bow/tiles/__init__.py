"""Runs a strategy: every operator in tiles, each on its device, over torch.distributed."""

from bow.tiles.captured import CapturedStep as CapturedStep
from bow.tiles.capturing import capture_operators as capture_operators
from bow.tiles.registering import register_rule as register_rule
from bow.tiles.registering import registered_rules as registered_rules
from bow.tiles.registering import take_over_rules as take_over_rules
from bow.tiles.runtime import TileRuntime as TileRuntime
from bow.tiles.team import Team as Team
