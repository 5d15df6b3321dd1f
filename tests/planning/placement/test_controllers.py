from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bow.errors import ClusterError
from bow.planning.placement.controllers import train_policy
from bow.planning.placement.training import LearnedPlacement, LearningSettings, Placement, PolicyProgress
from tests.forked import FORKED
from tests.planning.placement.policies import SMALL, chain, sums

QUICK = LearningSettings(samples=3, learning_rate=0.02, exploring=0.0, elites=2)


def trained(updates: int, controllers: int, **arguments: object) -> LearnedPlacement:
    return train_policy(
        chain(),
        sums,
        updates=updates,
        controllers=controllers,
        settings=QUICK,
        sizes=SMALL,
        **arguments,  # type: ignore[arg-type]
    )


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()


class Killer:
    """Kills a controller after some update; remembers what was best before."""

    def __init__(self, update: int) -> None:
        self.update = update
        self.killed: int | None = None
        self.best_before = float("inf")
        self.told: list[PolicyProgress] = []

    def __call__(self, progress: PolicyProgress) -> None:
        self.told.append(progress)
        if self.killed is None and progress.updates >= self.update:
            (controller,) = multiprocessing.active_children()
            self.killed = controller.pid
            self.best_before = progress.best.time_s if progress.best else self.best_before
            assert controller.pid is not None
            os.kill(controller.pid, signal.SIGKILL)


def test_a_killed_controller_is_replaced_and_does_not_end_the_training() -> None:
    killer = Killer(4)
    found = trained(9, 1, watch=killer)
    assert killer.killed is not None
    assert not is_alive(killer.killed)
    assert [each.updates for each in killer.told] == [*range(1, 10)]
    assert found.history.samples == 27
    assert found.best.time_s <= killer.best_before
    assert found.best.time_s == sums([found.best.placement])[0]
    assert all(each.isfinite().all() for each in found.policy.parameters())
    assert multiprocessing.active_children() == []


def test_controllers_share_parameters_and_leave_no_process() -> None:
    found = trained(6, 2)
    assert (found.updates, found.history.samples) == (6, 18)
    assert found.greedy_s == sums([found.greedy])[0]
    assert multiprocessing.active_children() == []


def test_the_time_ends_a_training_in_which_nothing_is_heard() -> None:
    def sleeps(placements: list[Placement]) -> list[float | None]:
        time.sleep(60)
        raise AssertionError

    with pytest.raises(BaseException, match="none of 0 placements"):
        train_policy(chain(), sleeps, updates=2, controllers=1, budget_s=0.5, sizes=SMALL)


def test_controllers_that_never_send_anything_end_the_training() -> None:
    def breaks(placements: list[Placement]) -> list[float | None]:
        os._exit(7)

    with pytest.raises(ClusterError, match="controller 0 ended 3 times before it sent anything, last with status 7"):
        train_policy(chain(), breaks, updates=2, controllers=1, settings=QUICK, sizes=SMALL)


STARTER = """
import os, sys, time
from bow.planning.placement.controllers import train_policy
from tests.forked import FORKED
from tests.planning.placement.policies import SMALL, chain

def sleeps(placements):
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    train_policy(chain(), sleeps, updates=2, controllers=1, sizes=SMALL)
"""


def test_a_controller_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text(STARTER)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [*FORKED, str(tmp_path / "starter.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as starter:
        assert starter.stdout is not None
        controller = int(starter.stdout.readline())
        starter.kill()
    deadline = time.monotonic() + 30
    while is_alive(controller) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(controller)
