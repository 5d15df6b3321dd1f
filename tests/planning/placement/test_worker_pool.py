from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bow.errors import ClusterError, SettingError
from bow.planning.placement.training import Placement
from bow.planning.placement.worker_pool import WorkerPool
from tests.planning.placement.marking import Marking


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "marks"


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() == before


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_times_come_in_the_order_of_the_placements(file: Path) -> None:
    placements: list[Placement] = [(number, 0) for number in range(7)]
    with WorkerPool(Marking(file), 2) as pool:
        assert pool(placements) == [1.0, 2.0, 3.0, 4.0, 5.0, None, 7.0]
        assert pool(placements[:1]) == [1.0]
        assert pool([]) == []
        assert pool.replaced == 0


def test_a_worker_that_dies_once_is_replaced_and_nothing_is_lost(file: Path) -> None:
    marking = Marking(file, deadly=(1, 0), deaths=1)
    with WorkerPool(marking, 2) as pool:
        assert pool([(0, 0), (1, 0), (2, 0)]) == [1.0, 2.0, 3.0]
        assert pool.replaced == 1
    assert marking.marks().count((1, 0)) == 2


def test_a_placement_that_kills_its_workers_has_failed(file: Path) -> None:
    with WorkerPool(Marking(file, deadly=(1, 0), deaths=9), 1) as pool:
        assert pool([(1, 0), (2, 0)]) == [None, 3.0]
        assert pool.replaced == 2


def test_a_placement_that_takes_too_long_has_failed(file: Path) -> None:
    with WorkerPool(Marking(file, slow=(1, 0)), 1, timeout_s=1.0) as pool:
        assert pool([(1, 0), (2, 0)]) == [None, 3.0]


def test_a_worker_that_was_killed_while_nothing_was_to_do_is_replaced(file: Path) -> None:
    marking = Marking(file)
    with WorkerPool(marking, 1) as pool:
        pool([(0, 0)])
        (pid,) = marking.pids()
        os.kill(pid, signal.SIGKILL)
        assert pool([(1, 0)]) == [2.0]
        assert pool.replaced == 1


def test_a_worker_ends_with_who_started_it_whatever_it_is_doing(file: Path) -> None:
    command = [sys.executable, "-m", "bow.planning.placement.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(pickle.dumps(sys.path) + pickle.dumps(Marking(file, slow=(1, 0))))
        worker.stdin.flush()
        assert pickle.load(worker.stdout) is True
        worker.stdin.write(pickle.dumps((1, 0)))
        worker.stdin.flush()
        while not file.exists():
            assert worker.poll() is None
            time.sleep(0.01)
        worker.stdin.close()
        try:
            assert worker.wait(30) == 0
        finally:
            worker.kill()


def test_what_no_worker_can_begin_with_is_said() -> None:
    class Unreadable:
        def __reduce__(self) -> tuple[object, ...]:
            return os._exit, (3,)

        def __call__(self, placements: list[Placement]) -> list[float | None]:
            raise AssertionError

    pool = WorkerPool(Unreadable(), 1)
    with pool, pytest.raises(ClusterError, match="3 workers ended before they could begin, the last with status 3"):
        pool([(0, 0)])


def test_a_closed_pool_says_so(file: Path) -> None:
    with WorkerPool(Marking(file), 1) as pool:
        pass
    with pytest.raises(ClusterError, match="are closed"):
        pool([(0, 0)])


def test_numbers_are_checked(file: Path) -> None:
    with pytest.raises(SettingError, match="workers must be at least 1"):
        WorkerPool(Marking(file), 0)
    with pytest.raises(SettingError, match="timeout_s above 0"):
        WorkerPool(Marking(file), 1, timeout_s=0.0)
