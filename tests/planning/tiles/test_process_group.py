"""How devices talk to each other, and that what carries messages leaves the core to what computes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from bow.errors import ClusterError
from bow.planning.tiles import capture_operators
from bow.planning.tiles import communication as teams
from bow.planning.tiles.communication import ProcessGroup, deprioritise_gloo_threads, wait_for
from tests.planning.tiles.equality import on_one_device


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the system has no batch threads")
def test_only_threads_that_carry_messages_wait_for_the_core() -> None:
    policies: dict[str, int] = {}
    started, done = threading.Barrier(3), threading.Event()

    def sleep(name: str) -> None:
        thread = threading.get_native_id()
        Path(f"/proc/self/task/{thread}/comm").write_text(name, encoding="utf-8")
        started.wait()
        done.wait()
        policies[name] = os.sched_getscheduler(thread)

    threads = [threading.Thread(target=sleep, args=(name,)) for name in ("gloo_tcp_loop", "computes")]
    for thread in threads:
        thread.start()
    started.wait()
    try:
        deprioritise_gloo_threads()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert policies == {"gloo_tcp_loop": os.SCHED_BATCH, "computes": os.sched_getscheduler(0)}


def test_nothing_happens_where_the_system_has_no_such_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "SCHED_BATCH", raising=False)
    deprioritise_gloo_threads()
    monkeypatch.setattr(os, "SCHED_BATCH", 3, raising=False)
    monkeypatch.setattr(teams, "THREADS", Path("nowhere"))
    deprioritise_gloo_threads()


def test_devices_give_way_behind_every_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(5, 4), torch.randint(3, (5,))
    captured = capture_operators(model, batch, nn.functional.cross_entropy)
    runtime, times = on_one_device(captured, model), []
    monkeypatch.setattr(ProcessGroup, "yield_core", lambda group: times.append(group.rank))
    runtime.step(batch, 0)
    assert len(times) == 2 * len(captured.graph.operators)


def test_only_several_devices_on_cpus_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    monkeypatch.setattr(os, "sched_yield", lambda: times.append(None), raising=False)
    group = ProcessGroup(torch.device("cpu"), is_alone=True)
    group.yield_core()
    assert not times
    group.size = 2
    group.yield_core()
    assert len(times) == 1
    group.device = torch.device("cuda")
    group.yield_core()
    assert len(times) == 1


class Nested:
    """What waits for messages itself, one of which has failed."""

    def wait(self) -> None:
        wait_for([Failed()])


class Failed:
    def wait(self) -> None:
        raise RuntimeError("connection closed")


def test_a_message_that_fails_is_told_once() -> None:
    with pytest.raises(ClusterError) as caught:
        wait_for([Nested()])
    assert str(caught.value).count("another process of the partition has ended") == 1
