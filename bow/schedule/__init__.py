"""What was decided and what came of it, as plain data: schedules and timelines."""

from bow.schedule.schedule import Schedule as Schedule
from bow.schedule.timeline import Span as Span
from bow.schedule.timeline import Timeline as Timeline
from bow.schedule.topology import HardwareThread as HardwareThread
from bow.schedule.topology import Topology as Topology
from bow.schedule.topology import manycore as manycore
from bow.schedule.topology import server as server
