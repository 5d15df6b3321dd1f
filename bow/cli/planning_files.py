"""The files of `bow plan`: a strategy with what it was planned for, and its simulated timeline."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from bow.cli.planning_settings import PlanSettings
from bow.errors import SettingError, disk_reason
from bow.files import spare_files, write_whole
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.problem.topology_files import topology_from_dict
from bow.planning.search.search import PLANNED_FOR, partition_text
from bow.planning.search.search_settings import SearchSettings
from bow.planning.search.search_space import DeviceLists
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.tiles.planning import COSTS
from bow.schedule.picture import timeline_svg

PARTITION, TIMELINE, PICTURE = "partition.json", "timeline.json", "timeline.svg"


@dataclass(frozen=True)
class Loaded:
    """What a file holds."""

    partition: Partition
    settings: PlanSettings  # with what the file says filled in where nothing else was given
    topology: DeviceTopology | None  # of the file; None: another one was given


def save(
    settings: PlanSettings, partition: Partition, result: SimulationResult, topology: DeviceTopology
) -> tuple[Path, ...]:
    """Write a strategy with what it is for, and into a folder its timeline too."""
    text = partition_text(
        partition,
        result.makespan_ns,
        topology,
        settings.search,
        network=settings.network,
        size=settings.size,
        others=list(settings.others),
        costs=settings.costs or COSTS[0],
    )
    is_file = settings.out.suffix == ".json"
    folder = settings.out.parent if is_file else settings.out
    file = settings.out if is_file else folder / PARTITION
    written: Path | None = None
    try:
        write_whole(file, text)
        written = file
        if is_file:
            return (file,)
        result.timeline.save(folder / TIMELINE)
        (folder / PICTURE).write_text(timeline_svg(result.timeline, "simulated"), encoding="utf-8")
    except OSError as error:
        written = written or _written_elsewhere(text)
        kept = "give another" if written is None else f"the partition is in {written}"
        raise SettingError(f"out={settings.out} cannot be written ({disk_reason(error)}); {kept}") from error
    return tuple(folder / name for name in (PARTITION, TIMELINE, PICTURE))


def _written_elsewhere(text: str) -> Path | None:
    for path in spare_files("partition", ".json"):
        with contextlib.suppress(OSError):
            write_whole(path, text)
            return path
    return None


def load(path: Path, settings: PlanSettings) -> Loaded:
    """A strategy from its file, or from the folder that has it; what it was planned for, unless settings say."""
    file = path / PARTITION if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingError(f"{file} cannot be read ({why or error}); give a file that bow plan wrote") from error
    partition = Partition.from_json(text)
    known: Mapping[str, Any] = json.loads(text).get(PLANNED_FOR) or {}
    topology = None
    try:
        has_model = settings.has_subject or known.get("network") is not None
        if has_model and not settings.has_subject:
            others = tuple(str(word) for word in known["others"])
            settings = replace(settings, network=str(known["network"]), size=str(known["size"]), others=others)
        if not settings.topology and known.get("topology") is not None:
            topology = topology_from_dict(known["topology"])
        if settings.costs is None and "costs" in known:
            settings = replace(settings, costs=COSTS[COSTS.index(known["costs"])])
        settings = replace(settings, search=_chosen_from(known, settings))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SettingError(
            f"{file} does not say rightly what it was planned for ({type(error).__name__}: {error}); plan again"
        ) from error
    if not has_model:
        raise SettingError(
            f"{file} does not say for which model it was planned; add network=NAME, or the model's settings"
        )
    if topology is None and not settings.topology:
        raise SettingError(f"{file} does not say for which devices it was planned; add topology=NAME or FILE")
    return Loaded(partition, settings, topology)


def _chosen_from(known: Mapping[str, Any], settings: PlanSettings) -> SearchSettings:
    """Settings of a search that chooses from the splits that a file names, unless others were given."""
    even, lists = known.get("even", False), known.get("device_lists", settings.search.devices)
    if not isinstance(even, bool):
        raise TypeError(f"even is {even!r}, neither true nor false")
    if lists not in get_args(DeviceLists):
        raise ValueError(f"there are no device lists {lists!r}")
    return replace(settings.search, even=settings.search.even if "even" in settings.given else even, devices=lists)
