"""Contestants of `python -m benchmarks schedule`: ways to run one training step of a network."""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import Host, counted
from bow.devices import available_cores
from bow.engines import Loss
from bow.models import NETWORKS
from bow.schedule import FirstComeSchedule
from bow.schedule.profiler import BoundStep, Policy
from bow.schedule.profiler.measuring import ScheduledStep, numbers_of_threads
from bow.timing import TimedCase

PYTORCH = "PyTorch"  # prefix of the names of plain PyTorch

MOST_THREADS = 2  # maximum number of threads per core of uniform pairs

CROWDED = f"they have more than {MOST_THREADS} threads for each core"


@dataclass(frozen=True)
class Entry:
    name: str  # display name; for a policy, its name
    contestant: TimedCase  # runs the step
    is_sequential: bool = False  # sequential execution in the order of capture: the baseline of policies
    is_side_by_side: bool = False  # operators may run concurrently
    is_uniform: bool = False


class PlainStep:
    """Forward and backward pass in plain PyTorch."""

    def __init__(self, model: nn.Module, batch: tuple[Any, Tensor], loss: Loss, threads: int) -> None:
        self.model = copy.deepcopy(model)
        self._inputs, self._targets = batch
        self._loss = loss
        self._threads = threads

    def run(self) -> Tensor:
        """Return the loss; gradients are stored in the model."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        self.model.zero_grad(set_to_none=True)
        loss = self._loss(self.model(self._inputs), self._targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def rest(self) -> None:
        """Restore a single thread, which executors expect of the calling thread."""
        torch.set_num_threads(1)


class SpinningStep:
    """Forward and backward pass in a process whose OpenMP threads spin while they wait for work.

    With several threads this is PyTorch's best case, because no thread has to be woken up. The process is stopped
    outside of its turns, because its threads would spin on the others' cores.
    """

    def __init__(self, network: str, size: str, threads: int) -> None:
        self._host = Host({"OMP_WAIT_POLICY": "ACTIVE"}, prepare=(_prepare, (network, size, threads)))
        self._host.call(_step)
        self.rest()

    def run(self) -> None:
        self._host.call(_step)

    def rest(self) -> None:
        """Suspend the process until its next turn."""
        self._host.stop()

    def close(self) -> None:
        self._host.close()


_prepared: PlainStep | None = None  # in the host process


def _prepare(name: str, size: str, threads: int) -> None:
    global _prepared
    network = NETWORKS[name]
    _prepared = PlainStep(network.build(size), network.batch(size), network.loss, threads)


def _step() -> None:
    assert _prepared is not None
    _prepared.run()


def plain(model: nn.Module, batch: tuple[Any, Tensor], loss: Loss, threads: Sequence[int]) -> list[Entry]:
    """Entries of PyTorch with each number of threads."""
    return [
        Entry(f"{PYTORCH}, {counted(n, 'thread')}", PlainStep(model, batch, loss, n), is_sequential=True)
        for n in threads
    ]


def scheduled(subject: BoundStep, policies: Sequence[Policy], cores: int) -> list[Entry]:
    """Entries of the policies on native executors, and missing uniform ones."""
    made = [
        Entry(
            policy.name,
            ScheduledStep(subject, policy.schedule),
            is_sequential=policy.is_sequential,
            is_side_by_side=not policy.is_sequential,
            is_uniform=isinstance(policy.schedule, FirstComeSchedule),
        )
        for policy in policies
    ]
    known = {policy.schedule.threads for policy in policies if isinstance(policy.schedule, FirstComeSchedule)}
    for executors, threads in pairs(cores):
        schedule = FirstComeSchedule((threads,) * executors)
        if schedule.threads not in known:
            name = f"first come, {shape(executors, threads)}"
            several, enough = executors > 1, executors * threads <= cores
            shared = None if enough else [available_cores()] * executors  # as unpinned threads
            made.append(Entry(name, ScheduledStep(subject, schedule, shared), is_side_by_side=several, is_uniform=True))
    return made


def pairs(cores: int) -> list[tuple[int, int]]:
    """Return all uniform numbers of executors and threads, in powers of two, with at most two threads per core.

    Example:
        >>> pairs(2)
        [(1, 1), (1, 2), (2, 1), (2, 2)]
    """
    return [pair for pair in _all_pairs(cores) if pair[0] * pair[1] <= MOST_THREADS * cores]


def left_out(cores: int) -> dict[str, str]:
    """Return the uniform pairs that are left out, and why."""
    named = [shape(*pair) for pair in _all_pairs(cores) if pair not in pairs(cores)]
    return dict.fromkeys(named, CROWDED)


def shape(executors: int, threads: int) -> str:
    """Format a number of executors and threads as policies do."""
    return f"{counted(executors, 'executor')} of {counted(threads, 'thread')}"


def _all_pairs(cores: int) -> list[tuple[int, int]]:
    numbers = numbers_of_threads(cores)
    return list(itertools.product(numbers, numbers))
