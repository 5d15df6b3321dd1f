"""A strategy as the text of a file, with what it was planned for."""

import json
from typing import Any

from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.plan_strategy import Partition
from bow.planning.problem.topology_files import topology_to_dict
from bow.planning.search.search_settings import SearchSettings

PLANNED_FOR = "planned_for"
"""Key of what is in a strategy's file besides: `Partition.from_json` leaves it out."""


def partition_text(
    partition: Partition, makespan_ns: int, topology: DeviceTopology, settings: SearchSettings, **others: Any
) -> str:
    """A strategy as JSON, with what is needed to explain it."""
    planned_for = {
        **others,
        "makespan_ns": makespan_ns,
        "topology": topology_to_dict(topology),
        "even": settings.even,
        "device_lists": settings.devices,
    }
    return json.dumps({**json.loads(partition.to_json()), PLANNED_FOR: planned_for})
