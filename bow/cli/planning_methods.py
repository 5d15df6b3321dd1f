"""The methods of `bow plan`, by name: the planner's searches and baselines, and the methods of device placement."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from rich.console import Console

from bow.cli.checking import suggestion
from bow.errors import SettingError
from bow.observe.searching import watched
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.search.baselines import BASELINES, baseline
from bow.planning.search.exhaustive import exhaustive
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.problem import Problem
from bow.planning.search.search import search
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.simulation import IncrementalEvaluator

SEARCHES = ("search", "mcmc", "exhaustive")  # searches of the planner; `mcmc` is an alias of `search`

LEARNING = ("search", "mcmc")  # Metropolis searches, which choose a number of learners too

USUAL = SearchSettings()  # default settings

# Methods of device placement with another name here, as the planner has methods of these names.
RENAMED = {"expert": "expert_placement", "mcmc": "mcmc_placement", "learned": "learned"}

ALIASES = {"reinforce": "learned"}

MANY = 10**9  # counts from here on are shown in scientific notation

PROCESSOR = re.compile(r"(node\d+\.)?cpu\d*")  # names of host processors in a topology


@dataclass(frozen=True)
class Planned:
    """The result of a method."""

    partition: Partition
    how: str = ""  # how it was found, to be printed; may be empty
    is_interrupted: bool = False


def placement_methods() -> dict[str, str]:
    """Map names of `bow plan` to names of device placement methods."""
    from bow.planning.placement.methods import METHODS

    return {RENAMED.get(name, name): name for name in METHODS}


def all_methods() -> tuple[str, ...]:
    return (*SEARCHES, *BASELINES, *placement_methods(), *ALIASES)


def compared_methods() -> tuple[str, ...]:
    """Return the methods compared by default: all but aliases and `exhaustive`."""
    return (*BASELINES, "search", *placement_methods())


def check_method(name: str) -> None:
    if name not in (*SEARCHES, *BASELINES) and name not in all_methods():
        raise SettingError(f"method={name!r} does not exist; {suggestion(name, all_methods())}")


def check_used(method: str, settings: SearchSettings, workers: int = 0) -> None:
    if workers and ALIASES.get(method, method) != "learned":
        raise SettingError(
            f"workers={workers} is for method=learned, and method={method} trains no policy; leave it out, or use "
            "processes= for method=search"
        )
    if method == "exhaustive" and settings.proposals is not None:
        raise SettingError(
            f"proposals={settings.proposals} is for method=search; limit method=exhaustive by budget_s=SECONDS"
        )
    for name in () if method in LEARNING else ("learners", "noise_scale", "starts", "moves", "patience", "temperature"):
        value = getattr(settings, name)
        if value == getattr(USUAL, name):
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
        why = "plans one learner" if name == "learners" else f"has no {name}"
        raise SettingError(
            f"{name}={text} is for method=search, and method={method} {why}; use method=search, or leave {name} out"
        )


def find(problem: Problem, method: str, settings: SearchSettings, console: Console, workers: int = 0) -> Planned:
    if method in LEARNING:
        return _searched(problem, settings, console)
    if method == "exhaustive":
        return _proven(problem, settings, console)
    if method in BASELINES:
        return Planned(problem.partition(baseline(problem, method)))
    return _placed(problem, ALIASES.get(method, method), settings, console, workers)


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
        evaluate = IncrementalEvaluator(problem.simulation(start), start)
        proof = exhaustive(problem.model(), space, evaluate, start=start, budget_s=budget_s, watch=tell)
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
