"""Settings of `bow plan`, from the command line and from a partition's file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from bow.cli.checking import COUNT, FLAG, NAME, Reader, read_words, suggestion
from bow.cli.planning_methods import check_method
from bow.errors import SettingError
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.problem.topology_files import topology_from_dict
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.search import damaged_origin, read_partition
from bow.planning.tiles.machine import MACHINE
from bow.planning.tiles.planning import COSTS, CostsName
from bow.values import given_path, whole

DRY_RUN = "--dry-run"


@dataclass(frozen=True)
class PlanSettings:
    """Settings of `bow plan` itself, without those of the model."""

    topology: str = ""  # name or file; "": not given
    costs: CostsName | None = None  # source of tile times; None: not given, roofline
    devices: int | None = None  # number of this machine's devices; None: all
    save_topology: Path | None = None  # file to write the topology to
    method: str = "search"
    methods: tuple[str, ...] = ()  # to compare; empty: all
    out: Path = Path("plan")  # output folder, or JSON file for the partition
    dry_run: bool = False  # only print; do not measure or write
    network: str = ""  # a network of the papers; "": a model by settings
    size: str = ""
    workers: int = 0  # processes of method=learned; 0: this one, deterministic for a seed
    keep: int = 2  # alternatives shown for each operator
    others: tuple[str, ...] = ()  # settings of the model, as for `bow train`
    batch_sizes: tuple[int, ...] = ()  # to choose from, of a learner; empty: that of the data
    search: SearchSettings = field(default_factory=SearchSettings)
    given: frozenset[str] = frozenset()  # names of the settings that were given

    def __post_init__(self) -> None:
        if self.dry_run and (self.costs == "measured" or self.topology == MACHINE):
            what = f"topology={MACHINE}" if self.topology == MACHINE else "costs=measured"
            raise SettingError(f"{what} measures this machine, but a dry run measures nothing; leave one of them out")
        if self.dry_run and self.save_topology is not None:
            raise SettingError("save_topology=FILE writes a file, but a dry run writes nothing; leave one of them out")
        if self.devices is not None and self.topology != MACHINE:
            raise SettingError(f"devices={self.devices} is for topology={MACHINE}; other topologies list theirs")
        whole("keep", self.keep)
        whole("workers", self.workers, least=0)


def read(words: Sequence[str]) -> PlanSettings:
    words = ["dry_run=true" if word == DRY_RUN else word for word in words]
    own, others = read_words(words, _OWN)
    of_search, others = read_words(others, _SEARCHING)
    if "proposals" in of_search and "budget_s" not in of_search:
        of_search["budget_s"] = None
    search = SearchSettings(**of_search)
    return PlanSettings(**own, others=tuple(others), search=search, given=frozenset([*own, *of_search]))


def _method(text: str) -> str:
    check_method(text)
    return text


def _costs(text: str) -> str:
    if text not in COSTS:
        raise SettingError(f"costs={text!r} does not exist; {suggestion(text, COSTS)}")
    return text


def _named(text: str) -> str:
    if not text:
        raise KeyError(text)
    return text


COUNTS: Reader = (lambda text: tuple(map(int, text.split(","))), "a whole number, or several with commas")

_OWN: Mapping[str, Reader] = {
    "topology": (_named, "a name or a file"),
    "costs": (_costs, "a name"),
    "devices": COUNT,
    "save_topology": (lambda text: given_path("save_topology", text), "a file"),
    "method": (_method, "a name"),
    "methods": (lambda text: tuple(_method(name) for name in text.split(",") if name), "names with commas"),
    "out": (lambda text: given_path("out", text), "a folder or a file"),
    "dry_run": FLAG,
    "network": NAME,
    "size": NAME,
    "keep": COUNT,
    "workers": COUNT,
    "batch_sizes": COUNTS,
}
_SEARCHING: Mapping[str, Reader] = {
    "budget_s": (float, "a number"),
    "proposals": COUNT,
    "learners": COUNTS,
    "noise_scale": (float, "a number"),
    "processes": COUNT,
    "seed": COUNT,
    "starts": (lambda text: tuple(text.split(",")), "names with commas"),
    "moves": NAME,
    "even": FLAG,
    "patience": (lambda text: None if text == "none" else float(text), "a number, or none"),
    "temperature": (float, "a number"),
}
assert {*_OWN, "others", "search", "given"} == {each.name for each in fields(PlanSettings)}


SUBJECT = frozenset(("recipe", "model", "data"))  # if one is overridden, only the planned batch size is kept


def size_given(words: Sequence[str]) -> str | None:
    return next((word for word in words if word.lstrip("+").startswith("batch_size=")), None)


def as_planned(path: str, words: Sequence[str]) -> list[str]:
    """Return settings for training by a partition: those it was planned for, overridden by `words`."""
    file, _, known = read_partition(path)
    try:
        planned = [str(word) for word in known.get("others", ())]
        planned += [f"batch_size={int(known['batch_size'])}"] if "batch_size" in known else []
    except (TypeError, ValueError) as error:
        raise damaged_origin(file, error) from error
    return _replaced(planned, words)


def _replaced(planned: Sequence[str], words: Sequence[str]) -> list[str]:
    """Override planned settings by `words`; an override of a group replaces all planned settings of the group."""
    from bow.cli.composition import key_of  # imports hydra, which is slow

    given = {key_of(word) for word in words if word not in planned}
    if "--config" in given:
        return [*words]
    if given & SUBJECT:
        planned = [word for word in planned if word == size_given(planned)]
    above = tuple(f"{key}." for key in given)
    return [*(each for each in planned if each not in words and not f"{key_of(each)}.".startswith(above)), *words]


@dataclass(frozen=True)
class Loaded:
    """A partition from its file, with the settings it was planned for."""

    partition: Partition
    settings: PlanSettings  # given settings, completed by the file's
    topology: DeviceTopology | None  # the file's; None: another one was given


def load(path: Path, settings: PlanSettings) -> Loaded:
    file, partition, known = read_partition(path)
    topology = None
    try:
        if not settings.batch_sizes and not size_given(settings.others) and "batch_size" in known:
            settings = replace(settings, batch_sizes=(int(known["batch_size"]),))
        has_model = bool(settings.network or settings.others) or known.get("network") is not None
        if known.get("network") is not None and not settings.network:
            if SUBJECT.isdisjoint(word.partition("=")[0] for word in settings.others):
                size = settings.size or str(known["size"])
                settings = replace(settings, network=str(known["network"]), size=size)
            others = _replaced([str(word) for word in known["others"]], settings.others)
            settings = replace(settings, others=tuple(others))
        if not settings.topology and known.get("topology") is not None:
            topology = topology_from_dict(known["topology"])
        if settings.costs is None and "costs" in known:
            settings = replace(settings, costs=COSTS[COSTS.index(known["costs"])])
        even = settings.search.even if "even" in settings.given else known.get("even", False)
        lists = known.get("device_lists", settings.search.devices)
        settings = replace(settings, search=replace(settings.search, even=even, devices=lists))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged_origin(file, error) from error
    if not has_model:
        raise SettingError(
            f"{file} does not say for which model it was planned; add network=NAME, or the model's settings"
        )
    if topology is None and not settings.topology:
        raise SettingError(f"{file} does not say for which devices it was planned; add topology=NAME or FILE")
    return Loaded(partition, settings, topology)
