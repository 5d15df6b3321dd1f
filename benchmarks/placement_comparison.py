"""Compare all placement methods on one problem."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bow.errors import BowError
from bow.planning.placement.groups import Devices, SearchBudget, SimulatedEvaluator
from bow.planning.placement.methods import METHODS as PLACING
from bow.planning.placement.methods import Method, PlacementResult, Report
from bow.planning.problem.partition import Split
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.search import search


def _planned(evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Report) -> PlacementResult:
    """The planner's search: includes splits, not only placements."""
    of_walk = budget.part(len(SearchSettings().starts))  # seconds are divided among the walks; proposals are per walk
    settings = SearchSettings(
        budget_s=budget.seconds,
        proposals=of_walk.placements,
        seed=seed,
        patience=None,
        descend=budget.placements is None,
    )
    found = search(evaluator.problem, settings)
    say(f"{found.makespan_ns / 1e9:.4f} s after {found.evaluated} partitions")
    return PlacementResult(found.partition.splits)


METHODS: Mapping[str, Method] = {**PLACING, "soap": _planned}


@dataclass(frozen=True)
class Row:
    """The result of a method.

    Attributes:
        method: its name.
        seconds: time of a step; None: no feasible placement.
        why_not: the reason: does not fit, or not installed.
        devices: by group; None: no placement, or operators are split.
        splits: by operator; empty: no placement.
        greedy_s: time of a step with the policy's greedy placement; None: does not fit, or no policy.
        spent_s: time that the method took.
    """

    method: str
    seconds: float | None
    why_not: str = ""
    devices: Devices | None = None
    splits: tuple[Split, ...] = ()
    greedy_s: float | None = None
    spent_s: float = 0.0


def compare(
    evaluator: SimulatedEvaluator,
    budget: SearchBudget,
    *,
    methods: Sequence[str] = tuple(METHODS),
    seed: int = 0,
    say: Report = lambda message: None,
) -> list[Row]:
    """Place by every method, each with the same budget; the row of a method that fails has the reason."""
    return [_row(method, evaluator, budget, seed, say) for method in methods]


def _row(method: str, evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int, say: Report) -> Row:
    began = time.perf_counter()
    try:
        placed = METHODS[method](evaluator, budget, seed, lambda message: say(f"{method}: {message}"))
    except BowError as error:
        return Row(method, None, str(error), spent_s=time.perf_counter() - began)
    spent_s = time.perf_counter() - began
    return replace(_judged(method, placed, evaluator), spent_s=spent_s)


def _judged(method: str, placed: PlacementResult, evaluator: SimulatedEvaluator) -> Row:
    greedy_s = None if placed.greedy is None else evaluator.seconds(placed.greedy)
    result = evaluator.problem.simulate(placed.splits)
    seconds, why_not = (result.makespan_ns / 1e9, "") if result.refusal is None else (None, str(result.refusal))
    return Row(method, seconds, why_not, placed.devices, placed.splits, greedy_s)
