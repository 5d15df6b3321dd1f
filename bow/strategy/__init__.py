"""What was decided and what came of it, as plain data: schedules and timelines."""

from bow.strategy.schedule import Schedule as Schedule
from bow.strategy.timeline import Span as Span
from bow.strategy.timeline import Timeline as Timeline
from bow.strategy.topology import HardwareThread as HardwareThread
from bow.strategy.topology import Topology as Topology
from bow.strategy.topology import manycore as manycore
from bow.strategy.topology import server as server
