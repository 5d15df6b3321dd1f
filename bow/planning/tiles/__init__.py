"""Executes a partition: the tiles of every operator on their devices, over torch.distributed."""

from bow.planning.tiles.capture import CapturedOperators as CapturedOperators
from bow.planning.tiles.capture import capture_operators as capture_operators
from bow.planning.tiles.communication import ProcessGroup as ProcessGroup
from bow.planning.tiles.registering import import_rules as import_rules
from bow.planning.tiles.registering import register_rule as register_rule
from bow.planning.tiles.registering import registered_rules as registered_rules
from bow.planning.tiles.runtime import TileRuntime as TileRuntime
