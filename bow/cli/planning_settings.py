"""Settings and methods of `bow plan`: from the command line and a partition's file; searches, baselines, placements."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path

from rich.console import Console

from bow.cli.checking import COUNT, FLAG, NAME, Reader, read_words, suggestion
from bow.errors import SettingError
from bow.observe.progress import watched
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.problem.topology_files import topology_from_dict
from bow.planning.search.baselines import BASELINES, baseline
from bow.planning.search.exhaustive import ExhaustiveSearch
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.problem import Problem
from bow.planning.search.search import damaged_origin, read_partition, search
from bow.planning.search.search_space import SplitSpace
from bow.planning.tiles.machine import MACHINE
from bow.planning.tiles.planning import COSTS, CostsName
from bow.values import given_path, whole

SEARCHES = ("search", "exhaustive")  # searches of the planner
USUAL = SearchSettings()  # default settings
# Methods of device placement with another name here, as the planner has methods of these names.
RENAMED = {"expert": "expert_placement", "mcmc": "mcmc_placement", "learned": "learned"}
MANY = 10**9  # counts from here on are shown in scientific notation
PROCESSOR = re.compile(r"(node\d+\.)?cpu\d*")  # names of host processors in a topology


@dataclass(frozen=True)
class Planned:
    """The result of a method."""

    partition: Partition
    how: str = ""  # how it was found, to be printed; may be empty
    is_interrupted: bool = False


def placement_methods() -> dict[str, str]:
    from bow.planning.placement.methods import METHODS

    return {RENAMED.get(name, name): name for name in METHODS}


def all_methods() -> tuple[str, ...]:
    return (*SEARCHES, *BASELINES, *placement_methods())


def compared_methods() -> tuple[str, ...]:
    return (*BASELINES, "search", *placement_methods())


def check_method(name: str) -> None:
    if name not in (*SEARCHES, *BASELINES) and name not in all_methods():
        raise SettingError(f"method={name!r} does not exist; {suggestion(name, all_methods())}")


def check_used(method: str, settings: SearchSettings, workers: int = 0) -> None:
    if workers and method != "learned":
        raise SettingError(
            f"workers={workers} is for method=learned, and method={method} trains no policy; leave it out, or use "
            "processes= for method=search"
        )
    if method == "exhaustive" and settings.proposals is not None:
        raise SettingError(
            f"proposals={settings.proposals} is for method=search; limit method=exhaustive by budget_s=SECONDS"
        )
    for name in () if method == "search" else ("learners", "noise_scale", "starts", "moves", "patience", "temperature"):
        value = getattr(settings, name)
        if value == getattr(USUAL, name):
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
        why = "plans one learner" if name == "learners" else f"has no {name}"
        raise SettingError(
            f"{name}={text} is for method=search, and method={method} {why}; use method=search, or leave {name} out"
        )


def find(problem: Problem, method: str, settings: SearchSettings, console: Console, workers: int = 0) -> Planned:
    if method == "search":
        return _searched(problem, settings, console)
    if method == "exhaustive":
        return _proven(problem, settings, console)
    if method in BASELINES:
        return Planned(problem.partition(baseline(problem, method)))
    return _placed(problem, method, settings, console, workers)


def _searched(problem: Problem, settings: SearchSettings, console: Console) -> Planned:
    with watched(settings.budget_s, console) as tell:
        found = search(problem, settings, tell)
    ended = ", interrupted" if found.is_interrupted else ""
    how = (
        f"{found.evaluated:,} partitions in {found.seconds:.1f} s{ended}; the best was found from start "
        f"{found.chain.start.name!r}"
    )
    return Planned(found.partition, how, found.is_interrupted)


def _proven(problem: Problem, settings: SearchSettings, console: Console) -> Planned:
    space = SplitSpace(problem.graph, problem.rules, problem.topology.num_devices, even=settings.even)
    start = baseline(problem, "data")
    budget_s = settings.budget_s if settings.proposals is None else USUAL.budget_s  # proposals limit other methods
    with watched(budget_s, console) as tell:
        evaluate = problem.simulation(start).evaluate
        proving = ExhaustiveSearch(problem.model(), space, evaluate, start=start, budget_s=budget_s, watch=tell)
        proof = proving.run()
    number = f"{proof.partitions:,}" if proof.partitions < MANY else f"{Decimal(proof.partitions):.1e}"
    if not proof.bound_ns:
        shown = "the search ended before it examined or bounded any other"
    else:
        by = "" if proof.is_complete else f" by more than {100 * proof.gap:.1f} %"
        shown = f"none of the {number} partitions with {space.description}, is faster{by}"
    return Planned(
        problem.partition(proof.splits), f"{proof.evaluated:,} partitions simulated in {proof.seconds:.1f} s; {shown}"
    )


def _placed(problem: Problem, method: str, settings: SearchSettings, console: Console, workers: int) -> Planned:
    from bow.planning.placement.groups import SearchBudget, SimulatedEvaluator, module_groups
    from bow.planning.placement.methods import METHODS

    groups = module_groups(problem.graph)
    evaluator = SimulatedEvaluator(problem, groups, processors=processors(problem.topology))
    budget = SearchBudget(settings.budget_s, settings.proposals, workers)
    with console.status(f"{method} ...") as status:
        placed = METHODS[placement_methods()[method]](
            evaluator, budget, settings.seed, lambda message: status.update(f"{method}: {message}")
        )
    return Planned(problem.partition(placed.splits), f"{len(groups)} groups of operators were placed")


def tower_sentences(problem: Problem) -> Iterator[str]:
    """Yield times of towers: data parallelism with weights on a host processor and a batch for each accelerator."""
    from bow.planning.placement.groups import SimulatedEvaluator, module_groups
    from bow.planning.placement.towers import Towers, towers

    homes = processors(problem.topology)
    if not 0 < len(homes) < problem.topology.num_devices:
        return
    evaluator = SimulatedEvaluator(problem, module_groups(problem.graph), processors=homes)
    kinds: tuple[Towers, ...] = ("synchronous", "asynchronous")
    for kind in kinds:
        found = towers(evaluator, kind)
        number = len(found.computing_s)
        yield (
            f"{kind} towers: {found.step_s * 1e3:.3f} ms per step with a batch on each of {number} accelerators: "
            f"{found.step_s / number * 1e3:.3f} ms per batch"
        )


def processors(topology: DeviceTopology) -> tuple[int, ...]:
    """Return the indices of host processors: devices named `cpu`, `cpu0`, ..."""
    return tuple(n for n, device in enumerate(topology.devices) if PROCESSOR.fullmatch(device.name))


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
