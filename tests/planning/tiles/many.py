"""Many random strategies against one device: `python -m tests.planning.tiles.many [count [first seed [network ...]]]`.

Every strategy that the simulator accepts is run for five steps on 2, 3 or 4 processes, and its losses, gradients,
weights and running statistics compared with plain PyTorch's in float64. 500 strategies take about half an hour on two
cores that do nothing else; pieces with other first seeds add up.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from bow.cluster import World
from bow.planning.tiles import ProcessGroup
from tests.cluster.worlds import in_world
from tests.planning.tiles.equality import TOLERANCE, Course, Task, Trial, by_pytorch
from tests.planning.tiles.networks import SIX, network, optimizers
from tests.planning.tiles.strategies import accepted_splits, problem_on

COUNT = 500
SIZES = (2, 3, 4)

HANGS_S = 400.0
"""A training that takes longer shows where each process is, and ends them all."""

SHARES = {"alexnet": 4, "rnntc": 4, "rnnlm": 4, "nmt": 4, "inception": 2, "resnet101": 2}
"""How many strategies networks get in proportion: those of hundreds of operators take ten times as long as others."""


@functools.cache
def trained(name: str) -> Mapping[str, tuple[Task, Course]]:
    """A network by its optimizers: what is trained, and what one device makes of it."""
    task = network(name)
    own = {kind: dataclasses.replace(task, optimizer=make) for kind, make in optimizers(name).items()}
    return {kind: (each, by_pytorch(each)) for kind, each in own.items()}


def trials(name: str, num_devices: int, seeds: Sequence[int]) -> Iterator[Trial]:
    """Strategies of a network, one for each seed; the optimizers take turns."""
    turns = itertools.cycle(trained(name).items())
    problem = None
    for seed, (kind, (task, expected)) in zip(seeds, turns, strict=False):
        problem = problem or problem_on(task.captured.graph, num_devices)
        splits = accepted_splits(problem, seed)
        yield Trial(f"{name}, {num_devices} processes, {kind}, seed {seed}", task, splits, expected)


def run(world: World, given: Sequence[Trial], is_loud: bool = False) -> dict[str, float]:
    """How far each training is from one device's, by its name."""
    torch.set_num_threads(1)
    group, found = ProcessGroup(torch.device("cpu")), {}
    for trial in given:
        began = time.monotonic()
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        found[trial.name] = trial.difference(group)
        if is_loud and world.leads:
            print(f"{trial.name}: {found[trial.name]:.1e}, {time.monotonic() - began:.1f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
    return found


def counts(count: int, names: Sequence[str]) -> dict[str, int]:
    """How many strategies each network gets on each number of processes."""
    shares = {name: SHARES[name] for name in names}
    each = count / (len(SIZES) * sum(shares.values()))
    return {name: max(1, round(each * share)) for name, share in shares.items()}


def main(count: int, first: int, names: Sequence[str]) -> int:
    """Run them all; the exit status."""
    began, found = time.monotonic(), dict[str, float]()
    for size in SIZES:
        given = [
            trial
            for name, number in counts(count, names).items()
            for trial in trials(name, size, range(first, first + number))
        ]
        found.update(in_world(size, functools.partial(run, given=given, is_loud=True))[0])
    wrong = {name: off for name, off in found.items() if not off < TOLERANCE}
    print(
        f"{len(found)} strategies of {len(names)} networks on {', '.join(map(str, SIZES))} processes in "
        f"{time.monotonic() - began:.0f} s: largest difference {max(found.values()):.1e}, "
        f"{len(wrong)} above {TOLERANCE:g}"
    )
    for name, off in wrong.items():
        print(f"  {name}: {off:.1e}")
    return 1 if wrong else 0


if __name__ == "__main__":
    count, first, *names = [*sys.argv[1:], *(str(COUNT), "0")[len(sys.argv) - 1 :]]
    sys.exit(main(int(count), int(first), names or SIX))
