"""Steps at random by strategies of a planner on two devices: equal to plain PyTorch, or refused with the reason.

`python -m tests.training.placed_steps [count [first seed]]` counts what comes of them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import bow
from bow.cluster import World
from bow.planning.problem.partition import Partition
from bow.planning.tiles import capture_operators
from bow.training.placed import train_by
from tests.cluster.worlds import in_world
from tests.engines.many_steps import ALPHA, MU, UNSEEN, course_and_bound
from tests.engines.random_steps import BATCH, Case, Program
from tests.planning.tiles.strategies import accepted_splits, problem_on

DEVICES = 2


def fitting(seed: int) -> Case:
    """A case without what `bow.train` refuses beside a strategy, and without states that nobody can watch.

    The first check of a batch would change those, or a look that comes now and then find them: eight rounds are short.
    """
    case = Case.drawn(seed)
    state = "in_dict" if case.state in UNSEEN else case.state
    # Rows decay a parameter that nothing depends on, operators have none.
    optimizer = "sgd" if "frozen_and_unused" in case.blocks else case.optimizer
    return dataclasses.replace(case, clip_norm=None, state=state, optimizer=optimizer)


def planned(case: Case, seed: int) -> Partition | str:
    """A strategy for a case, or why there is none: every other is a search's, the others are random."""
    program = case.build()
    given = {"loss": program.loss, "step": program.step}
    batch = case.batches(1)[0][0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = bow.plan(
                program.model, batch, **given, topology="two_cores", budget_s=None, proposals=2, progress=False
            )
            if seed % 2 and case.learners == 1:
                return found.partition
            graph = capture_operators(program.model, batch, **given).graph
            problem = problem_on(graph, DEVICES // case.learners)
            return Partition(graph.hash, accepted_splits(problem, seed), case.learners)
    except bow.BowError as error:
        return f"refused: {type(error).__name__}: {error}"
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"


class Between(bow.Callback):
    """Changes the value in Python between rounds."""

    def __init__(self, program: Program, case: Case) -> None:
        self.write, self.values = program.write, case.values

    def on_round_end(self, run: Any) -> None:
        if run.round < len(self.values):
            self.write(self.values[run.round])


def train(world: World, cases: Sequence[tuple[Case, Partition]], folder: Path) -> list[Any]:
    """The central model's state by case, and what was told; or what was said instead."""
    torch.set_num_threads(1)
    made: list[Any] = []
    for number, (case, strategy) in enumerate(cases):
        program = case.build()
        samples = [pair for batches in case.batches(len(case.values)) for pair in batches]
        data = TensorDataset(*(torch.cat(each) for each in zip(*samples, strict=True)))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                result = train_by(
                    strategy,
                    program.model,
                    DataLoader(data, batch_size=BATCH),
                    loss=program.loss,
                    step=program.step,
                    optimizer=case.optimizer_over,
                    sync=bow.SMA() if case.learners == 1 else bow.SMA(alpha=ALPHA, mu=MU),
                    batch_size=BATCH,
                    check=False,
                    callbacks=[Between(program, case)],
                    run=bow.Run(folder / str(number), progress=False),
                )
                made.append((result.model.state_dict(), [str(each.message) for each in told]))
            except bow.BowError as error:
                made.append(f"refused: {type(error).__name__}: {error}")
            except Exception as error:
                made.append(f"wrong: {type(error).__name__}: {error}")
    return made


def outcomes(cases: Sequence[Case]) -> list[str]:
    """What came of each case."""
    plans = [planned(case, seed) for seed, case in enumerate(cases)]
    runnable = [(case, plan) for case, plan in zip(cases, plans, strict=True) if not isinstance(plan, str)]
    with tempfile.TemporaryDirectory() as folder:
        made = in_world(DEVICES, functools.partial(train, cases=runnable, folder=Path(folder))) if runnable else []
    found = {case: compared(case, each) for (case, _), *each in zip(runnable, *made, strict=True)}
    return [plan if isinstance(plan, str) else found[case] for case, plan in zip(cases, plans, strict=True)]


def compared(case: Case, made: Sequence[Any]) -> str:
    """What came of a case, from what each device has."""
    if isinstance(made[0], str):
        return str(made[0])
    course, bound = course_and_bound(case)
    expected = course.learners[0] if case.learners == 1 else course.central
    off = 0.0
    for state, _ in made:
        pairs = [(state[name], value) for name, value in expected.items()]
        off = max(off, *(float((a.double() - b.detach().double()).abs().max()) for a, b in pairs))
    told = "; ".join(made[0][1])
    return "equal" if off <= bound else f"wrong: off by {off:.2g}, bound {bound:.2g}, told {told!r}"


def trains(case: Case) -> bool:
    """Whether plain PyTorch does, with numbers that do not depend on who draws them."""
    with contextlib.suppress(RuntimeError):
        course_and_bound(case)
        return not case.is_random
    return False


def main(count: int = 100, first: int = 0) -> int:
    cases = [case for case in map(fitting, range(first, first + count)) if trains(case)]
    counts: collections.Counter[str] = collections.Counter()
    for case, what in zip(cases, outcomes(cases), strict=True):
        counts[what[:110]] += 1
        if what.startswith("wrong"):
            print(case, what[:300], flush=True)
    for what, number in sorted(counts.items()):
        print(f"{number:5} {what}")
    return int(any(what.startswith("wrong") for what in counts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*map(int, sys.argv[1:])))
