"""Runs a strategy: every operator in tiles, each on its device, over torch.distributed."""

from bow.planning.tiles.captured import CapturedStep as CapturedStep
from bow.planning.tiles.capturing import capture_operators as capture_operators
from bow.planning.tiles.registering import register_rule as register_rule
from bow.planning.tiles.registering import registered_rules as registered_rules
from bow.planning.tiles.registering import take_over_rules as take_over_rules
from bow.planning.tiles.runtime import TileRuntime as TileRuntime
from bow.planning.tiles.team import Team as Team
