"""Trains a policy in several processes: controllers with workers of their own, which share parameters."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle

from bow.errors import ClusterError, SettingError
from bow.planning.placement.controller_process import ControllerJob
from bow.planning.placement.parameter_server import ParameterServer
from bow.planning.placement.policy import Operations, PolicySettings
from bow.planning.placement.reinforce import LearningSettings
from bow.planning.placement.training import Evaluate, LearnedPlacement, TrainingState, Watch
from bow.planning.placement.worker_pool import WorkerPool

PAUSE_S = 0.002
"""So long the server rests when no controller has sent anything."""

CLOSING_S = 5.0
"""So long a controller may take to end by itself."""

MOST_DEATHS = 3
"""A controller that ends so often in a row without having sent anything is not started again."""


def train_policy_asynchronously(
    operations: Operations,
    evaluate: Evaluate,
    *,
    controllers: int,
    workers: int = 0,
    updates: int,
    settings: LearningSettings | None = None,
    sizes: PolicySettings | None = None,
    seed: int = 0,
    budget_s: float | None = None,
    timeout_s: float | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 50,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> LearnedPlacement:
    """Learn to place operations as `train_policy` does, with several controllers at a time.

    Each controller draws placements from the newest parameters, has them evaluated by workers of its own, compares
    them with a baseline of its own, and sends gradients; this process applies them as they come, whatever was changed
    in between. A controller or a worker that dies is replaced: a controller goes on from what it sent last. Which
    placements are drawn depends on who is first, and is not the same each time.

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.4.
    """
    if controllers < 1 or workers < 0:
        raise SettingError(f"controllers must be at least 1 and workers at least 0, got {controllers} and {workers}")
    if timeout_s is not None and not (workers and timeout_s > 0):
        raise SettingError(f"timeout_s must be above 0 and needs workers, got {timeout_s} and {workers} workers")
    state = TrainingState(
        operations,
        settings,
        sizes,
        seed,
        updates=updates,
        budget_s=budget_s,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        clock=clock,
    )
    server = ParameterServer(state)

    def job(number: int, start: int) -> ControllerJob:
        known = state.controllers.get(number)
        name = f"{number}.{start}"
        return ControllerJob(
            server.port, name, number, operations, sizes, state.settings, seed, evaluate, workers, timeout_s, known
        )

    team = [_Member(number, job) for number in range(controllers)]
    with state.kept():
        try:
            _serve(server, state, team, watch)
        finally:
            server.close()
            for member in team:
                member.end()
    with WorkerPool(evaluate, 1, timeout_s=timeout_s) as pool:  # what kills its process must not kill this one
        return state.result(pool)


def _serve(server: ParameterServer, state: TrainingState, team: list[_Member], watch: Watch | None) -> None:
    """Apply gradients until the training is over."""
    for member in team:
        member.begin()
    while not state.is_over:
        is_idle = True
        for member in team:
            is_dead = member.is_dead  # asked before: what it sent until then is there
            progress = server.apply(member.name, member.number)
            if progress is not None:
                is_idle, member.deaths = False, 0
                if (watch is not None and watch(progress) is False) or state.is_over:
                    return
            elif is_dead and member.deaths < MOST_DEATHS:
                member.replace()
        if all(member.deaths >= MOST_DEATHS for member in team):
            raise ClusterError(f"{team[0].failure}; see what it printed")
        if is_idle:
            time.sleep(PAUSE_S)


class _Member:
    """A controller's number, and the process that has it now."""

    def __init__(self, number: int, job: Callable[[int, int], ControllerJob]) -> None:
        self.number = number
        self._job = job
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.name = ""
        self.deaths = 0

    @property
    def is_dead(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def begin(self) -> None:
        job = self._job(self.number, self._starts)
        self.name, self._starts = job.name, self._starts + 1
        command = [sys.executable, "-m", "bow.planning.placement.controller_process"]
        # Its standard input stays open: by its end the controller knows that this process is gone.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it died is seen later
            self._process.stdin.write(pickle.dumps(sys.path) + cloudpickle.dumps(job))
            self._process.stdin.flush()

    def replace(self) -> None:
        assert self._process is not None
        self.deaths += 1
        self._close()
        if self.deaths < MOST_DEATHS:
            self.begin()

    @property
    def failure(self) -> str:
        assert self._process is not None
        status = self._process.returncode
        return f"controller {self.number} ended {self.deaths} times before it sent anything, last with status {status}"

    def end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:  # its workers end when it is gone
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what it did not read before it died
            self._process.stdin.close()
