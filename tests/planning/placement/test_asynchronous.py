from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch

from bow.errors import ClusterError, SettingError
from bow.planning.placement.asynchronous import train_policy_asynchronously
from bow.planning.placement.messages import batch_header, batch_of, packed, unpacked
from bow.planning.placement.reinforce import LearningSettings
from bow.planning.placement.training import Batch, LearnedPlacement, Placement, Progress
from tests.planning.placement.policies import SMALL, chain, sums

QUICK = LearningSettings(samples=3, learning_rate=0.02, failing_s=None, is_scaled=True, elites=2)


def trained(updates: int, controllers: int, **arguments: object) -> LearnedPlacement:
    return train_policy_asynchronously(
        chain(),
        sums,
        updates=updates,
        controllers=controllers,
        settings=QUICK,
        sizes=SMALL,
        **arguments,  # type: ignore[arg-type]
    )


def children(pid: int, thread: int | None = None) -> list[int]:
    """The processes that a process (one of its threads) has started."""
    threads = [thread] if thread else [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    lists = [Path(f"/proc/{pid}/task/{each}/children").read_text().split() for each in threads]
    return sorted(int(child) for each in lists for child in each)


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


class Killer:
    """Kills a worker, and later its controller; remembers what was best before each death."""

    def __init__(self, **at: int) -> None:
        self.at = at
        self.killed: dict[str, int] = {}
        self.best_before = float("inf")
        self.told: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.told.append(progress)
        for what, update in self.at.items():
            if what not in self.killed and progress.updates >= update:
                self.kill(what, progress)

    def kill(self, what: str, progress: Progress) -> None:
        controllers = [pid for pid in children(os.getpid()) if "controller_process" in command(pid)]
        victims = controllers if what == "controller" else [pid for each in controllers for pid in children(each)]
        if victims:
            self.killed[what] = victims[0]
            self.best_before = progress.best.time_s if progress.best else self.best_before
            os.kill(victims[0], signal.SIGKILL)


def test_a_killed_worker_and_a_killed_controller_do_not_end_the_training(tmp_path: Path) -> None:
    killer = Killer(worker=2, controller=5)
    found = trained(9, 1, workers=1, watch=killer, checkpoint=tmp_path / "policy.pt")
    assert set(killer.killed) == {"worker", "controller"}
    assert not any(Path(f"/proc/{pid}/stat").exists() for pid in killer.killed.values())
    assert [each.updates for each in killer.told] == [*range(1, 10)]
    assert found.findings.samples == 27
    assert found.best.time_s <= killer.best_before
    assert found.best.time_s == sums([found.best.placement])[0]
    assert all(each.isfinite().all() for each in found.policy.parameters())


def test_controllers_share_parameters_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "policy.pt"
    before = children(os.getpid(), threading.get_native_id())  # such as what keeps track of processes of other tests
    first = trained(6, 2, checkpoint=file)
    assert (first.updates, first.findings.samples) == (6, 18)
    resumed = trained(7, 2, checkpoint=file)
    assert (resumed.updates, resumed.findings.samples) == (7, 21)
    assert resumed.findings.bests[: len(first.findings.bests)] == first.findings.bests
    assert children(os.getpid(), threading.get_native_id()) == before


def test_controllers_that_never_send_anything_end_the_training() -> None:
    def breaks(placements: list[Placement]) -> list[float | None]:
        os._exit(7)

    with pytest.raises(ClusterError, match="controller 0 ended 3 times before it sent anything, last with status 7"):
        train_policy_asynchronously(chain(), breaks, updates=2, controllers=1, settings=QUICK, sizes=SMALL)


@pytest.mark.nightly
def test_a_greedy_placement_that_kills_its_process_does_not_lose_the_best() -> None:
    def kills(placements: list[Placement]) -> list[float | None]:
        if "controller_process" not in sys.argv[0]:
            os.kill(os.getpid(), signal.SIGTERM)
        return sums(placements)

    found = train_policy_asynchronously(chain(), kills, updates=2, controllers=1, settings=QUICK, sizes=SMALL)
    assert found.greedy_s is None
    assert found.best.time_s == sums([found.best.placement])[0]


def test_numbers_are_checked() -> None:
    with pytest.raises(SettingError, match="controllers must be at least 1"):
        trained(1, 0)
    with pytest.raises(SettingError, match="timeout_s must be above 0 and needs workers"):
        trained(1, 1, timeout_s=1.0)


def test_messages_bring_numbers_and_batches_unchanged() -> None:
    values = torch.randn(100, generator=torch.Generator().manual_seed(0))
    values[3] = float("nan")
    batch = Batch(((0, 1), (2, 1)), (0.1, None), 0.5)
    state = {"generator": torch.Generator().manual_seed(4).get_state(), "baseline": {"value": 1 / 3, "square": None}}
    header, numbers = unpacked(packed(batch_header(batch, state), values))
    assert numbers.numpy().tobytes() == values.numpy().tobytes()
    found, controller = batch_of(header)
    assert found == batch
    assert controller["generator"].equal(state["generator"])
    assert controller["baseline"] == state["baseline"]
