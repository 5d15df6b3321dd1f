from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from bow.errors import ClusterError, ScheduleError
from bow.planning.placement import training
from bow.planning.placement.training import (
    LearnedPlacement,
    LearningSettings,
    Placement,
    SampledPlacements,
    TrainingState,
    train_policy,
)
from bow.planning.search.processes import SearchProcess
from tests.forked import FORKED
from tests.planning.placement.policies import SMALL, chain, sums

QUICK = LearningSettings(samples=3, learning_rate=0.02, exploring=0.0, elites=2)


def trained(updates: int, processes: int, **arguments: object) -> LearnedPlacement:
    return train_policy(
        chain(),
        sums,
        updates=updates,
        controllers=processes,
        settings=QUICK,
        sizes=SMALL,
        **arguments,  # type: ignore[arg-type]
    )


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were started, in order."""
    pids: list[int] = []

    class Noted(SearchProcess):
        def __init__(self, messages: Any) -> None:
            super().__init__(messages)
            pids.append(self.pid)

    monkeypatch.setattr(training, "SearchProcess", Noted)
    return pids


class Killer:
    """Kills a controller after some update; remembers what was best before."""

    def __init__(self, update: int, started: list[int]) -> None:
        self.update, self.started = update, started
        self.killed: int | None = None
        self.best_before = float("inf")
        self.told: list[int] = []  # the numbers of updates

    def __call__(self, state: TrainingState, _: SampledPlacements) -> None:
        self.told.append(state.updater.updates)
        if self.killed is None and state.updater.updates >= self.update:
            (self.killed,) = self.started
            self.best_before = state.best.time_s if state.best else self.best_before
            os.kill(self.killed, signal.SIGKILL)


def test_a_killed_controller_is_replaced_and_does_not_end_the_training(started: list[int]) -> None:
    killer = Killer(4, started)
    found = trained(9, 1, watch=killer)
    assert killer.killed is not None
    assert len(started) == 2
    assert killer.told == [*range(1, 10)]
    assert found.samples == 27
    assert found.best.time_s <= killer.best_before
    assert found.best.time_s == sums([found.best.placement])[0]
    assert all(each.isfinite().all() for each in found.policy.parameters())
    assert not any(map(is_alive, started))


def test_controllers_share_parameters_and_leave_no_process(started: list[int]) -> None:
    found = trained(6, 2)
    assert (found.updates, found.samples) == (6, 18)
    assert len(started) == 2
    assert not any(map(is_alive, started))


def test_the_time_ends_a_training_in_which_nothing_is_heard() -> None:
    def sleeps(placements: list[Placement]) -> list[float | None]:
        time.sleep(60)
        raise AssertionError

    with pytest.raises(ScheduleError, match="no placement was sampled before the search ended"):
        train_policy(chain(), sleeps, updates=2, controllers=1, budget_s=0.5, sizes=SMALL)


def test_controllers_that_never_send_anything_end_the_training() -> None:
    def breaks(placements: list[Placement]) -> list[float | None]:
        os._exit(7)

    with pytest.raises(ClusterError, match=r"controller 0 died 3 times before .* \(last exit status 7\)"):
        train_policy(chain(), breaks, updates=2, controllers=1, settings=QUICK, sizes=SMALL)


STARTER = """
import os, sys, time
from bow.planning.placement.training import train_policy
from tests.forked import FORKED
from tests.planning.placement.policies import SMALL, chain

def sleeps(placements):
    print(os.getpid(), file=sys.stderr, flush=True)
    time.sleep(60)

if __name__ == "__main__":
    train_policy(chain(), sleeps, updates=2, controllers=1, sizes=SMALL)
"""


def test_a_controller_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text(STARTER)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [*FORKED, str(tmp_path / "starter.py")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as starter:
        assert starter.stderr is not None
        controller = int(starter.stderr.readline())
        starter.kill()
    deadline = time.monotonic() + 300
    while is_alive(controller) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(controller)
