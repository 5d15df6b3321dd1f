"""Processes that evaluate placements at the same time, and may die of it."""

from __future__ import annotations

import contextlib
import math
import pickle
import selectors
import subprocess
import sys
import time
from collections import Counter, deque
from types import TracebackType
from typing import Self

import cloudpickle

from bow.errors import ClusterError, SettingError
from bow.planning.placement.training import Evaluate, Placement

TRIES = 2
"""A placement whose worker dies is tried once more: the worker may have died of something else."""

MOST_STARTS = 3
"""So many workers in a row may end before they begin."""

CLOSING_S = 2.0
"""So long a worker may take to end by itself."""


class WorkerPool:
    """Evaluates placements in processes, one placement each at a time.

    A worker that dies is replaced, and its placement evaluated again; where that ends in the same way, the placement
    has failed. So it has where it takes too long. An exception in `evaluate` is printed and ends the worker.

    Args:
        evaluate: seconds of a step with each placement; each process has a copy of it.
        workers: how many processes.
        timeout_s: seconds after which an evaluation is given up; None: never.

    Raises:
        SettingError: a value outside its range.

    Example:
        >>> with WorkerPool(lambda placements: [1.0 + sum(each) for each in placements], workers=1) as pool:
        ...     pool([(0, 1), (1, 1)])
        [2.0, 3.0]

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.4.
    """

    def __init__(self, evaluate: Evaluate, workers: int, *, timeout_s: float | None = None) -> None:
        if workers < 1 or (timeout_s is not None and not timeout_s > 0):
            raise SettingError(f"workers must be at least 1 and timeout_s above 0, got {workers} and {timeout_s}")
        self._job = pickle.dumps(sys.path) + cloudpickle.dumps(evaluate)
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._workers = [_Worker() for _ in range(workers)]
        for worker in self._workers:  # all of them are starting by now
            worker.begin(self._job)
        self._failed_starts = 0
        self.replaced = 0
        """How many workers were replaced."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(at_once=error is not None)

    def close(self, *, at_once: bool = False) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.close(at_once=at_once)
        self._workers = []

    def __call__(self, placements: list[Placement]) -> list[float | None]:
        """Seconds of a step with each placement; None: it does not fit or fails."""
        if not self._workers:
            raise ClusterError("the workers are closed; make another pool")
        for worker in self._workers:
            if worker.task is not None:  # an interrupt left it busy with what nobody waits for any more
                self._replace(worker)
        times: list[float | None] = [None] * len(placements)
        waiting, deaths = deque(range(len(placements))), Counter[int]()
        while waiting or any(worker.task is not None for worker in self._workers):
            for worker in [each for each in self._workers if each.is_idle]:
                if waiting:
                    worker.send(waiting[0], placements[waiting.popleft()])
            for worker in self._heard():
                task = worker.task
                if worker.receive():
                    if task is not None:
                        times[task] = worker.answer
                    continue
                self._replace(worker)
                if task is not None:
                    deaths[task] += 1
                    if deaths[task] < TRIES:
                        waiting.append(task)
            for worker in [each for each in self._workers if time.monotonic() - each.since >= self._timeout_s]:
                self._replace(worker)
        return times

    def _heard(self) -> list[_Worker]:
        """The workers that said something, or died, before the next one is late."""
        latest = min(worker.since for worker in self._workers) + self._timeout_s
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if not worker.is_idle:
                    selector.register(worker.output, selectors.EVENT_READ, worker)
            timeout = None if latest == math.inf else max(0.0, latest - time.monotonic())
            return [key.data for key, _ in selector.select(timeout)]

    def _replace(self, worker: _Worker) -> None:
        worker.close(at_once=True)
        self._failed_starts = 0 if worker.has_begun else self._failed_starts + 1
        if self._failed_starts == MOST_STARTS:
            raise ClusterError(
                f"{MOST_STARTS} workers ended before they could begin, the last with status {worker.status}; see what "
                "they printed"
            )
        self._workers[self._workers.index(worker)] = fresh = _Worker()
        fresh.begin(self._job)
        self.replaced += 1


class _Worker:
    """A process that evaluates one placement after the other."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bow.planning.placement.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.has_begun = False
        self.task: int | None = None
        self.since = math.inf  # when its task began
        self.answer: float | None = None

    def begin(self, job: bytes) -> None:
        self._write(job)

    @property
    def is_idle(self) -> bool:
        return self.has_begun and self.task is None

    @property
    def output(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def send(self, task: int, placement: Placement) -> None:
        self.task, self.since = task, time.monotonic()
        self._write(pickle.dumps(placement))

    def receive(self) -> bool:
        """Take its answer, or that it is ready; whether it is alive."""
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):  # it died, perhaps in the middle of a message
            return False
        if self.has_begun:
            self.answer = answer
        self.has_begun, self.task, self.since = True, None, math.inf
        return True

    def close(self, *, at_once: bool = False) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if at_once:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _write(self, message: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it died is heard from its output
            self._process.stdin.write(message)
            self._process.stdin.flush()
