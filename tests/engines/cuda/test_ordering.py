"""Every wait of the engines on devices with streams is needed: leave any one out, and the fake device notices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bow
from bow.engines.cuda.transfers import SLOTS
from bow.engines.live_check import LiveCheck
from bow.schedule import OrderedSchedule, Schedule
from bow.testing import CaptureRuleError, FakeDevice, RaceError, Wait
from tests.engines.cuda.trainings import ENGINES, SGD, model, round_of, training
from tests.engines.pairs import OPEN, batch

pytestmark = pytest.mark.usefixtures("_unchecked")

ROUNDS = SLOTS + 3  # every slot of results is used again


@pytest.fixture
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round is held against the step, for which the host waits: that would stand in for waits of streams."""
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, round_index: False)


def train(device: FakeDevice, engine: str, optimizer: Any, sync: Callable[[], Any]) -> str:
    """A training in which everything happens: calls of one round and of several, short rounds, a caller that looks."""
    replicas = training(engine, device, optimizer=optimizer, sync=sync())
    with device.issuing():
        t = 0
        while t < ROUNDS:
            together = 4 if t % 3 == 0 else 1
            outcomes = replicas.rounds_at_once([round_of(t + i) for i in range(together)])
            t += together
            for outcome in outcomes:
                outcome.losses.mul(1)  # what a caller may do behind a call: read results and learners, change learners
            replicas.z.mul(1)
            replicas.W.mul_(1)
        replicas.round([batch(7), None])
        for _ in range(2):  # another shape is captured when it comes again, here in a round of different ones
            replicas.round([batch(8, 3), batch(9)])
        for _ in range(2):
            replicas.round([batch(8, 3), batch(9, 3)])
        replicas.round(round_of(t))
        replicas.training_state()
    replicas.close()
    return str(replicas.engine)


CASES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "SGD and SMA by kernels": (SGD, bow.SMA),
    "every second round": (SGD, functools.partial(bow.SMA, every=2)),
    "another optimizer": (functools.partial(SGD, dampening=0.1), bow.SMA),
    "another synchroniser": (SGD, bow.SSGD),
}


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("engine", ENGINES)
def test_every_wait_is_needed(engine: str) -> None:
    occurring: dict[Wait, list[str]] = {}
    for case in CASES:
        device = FakeDevice()
        assert train(device, engine, *CASES[case]).startswith(engine)
        for wait in device.waits:
            occurring.setdefault(wait, []).append(case)
    assert len(occurring) > 10
    unnoticed = [wait for wait, cases in occurring.items() if not any(is_noticed(engine, case, wait) for case in cases)]
    assert unnoticed == []


def is_noticed(engine: str, case: str, wait: Wait) -> bool:
    try:
        return "not captured" in train(FakeDevice(without=wait), engine, *CASES[case])
    except (RaceError, CaptureRuleError):
        OPEN.clear()  # to close them would race again
        return True


def train_spread(device: FakeDevice) -> bool:
    """A training whose operators run on three streams of its learner; whether it ran by its schedule."""
    replicas = training("graph", device, learners=1, schedule=spread_over(3))
    with device.issuing():
        for t in range(2):
            for outcome in replicas.rounds_at_once([round_of(2 * t, 1), round_of(2 * t + 1, 1)]):
                outcome.losses.mul(1)
            replicas.W.mul_(1)
    replicas.close()
    return not replicas.loop.take_events()


@functools.cache
def spread_over(streams: int) -> Schedule:
    """Every operator on another stream than the one before it."""
    graph = bow.capture(model(), batch(0), torch.nn.functional.cross_entropy)
    count = len(graph.operators)
    return OrderedSchedule(
        (1,) * streams, order=tuple(tuple(range(stream, count, streams)) for stream in range(streams))
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_captured_once")
def test_every_wait_of_a_schedule_is_needed() -> None:
    device = FakeDevice()
    assert train_spread(device)
    waits = [wait for wait in device.waits if "stream" in f"{wait.waiting} {wait.event}" or "of learner" in wait.event]
    assert {wait.waiting for wait in waits} == {"learner 0", "learner 0, stream 1", "learner 0, stream 2"}
    assert len(waits) > 10
    unnoticed = [wait for wait in waits if not is_noticed_of_spread(wait)]
    assert unnoticed == []


def is_noticed_of_spread(wait: Wait) -> bool:
    try:
        return not train_spread(FakeDevice(without=wait))
    except (RaceError, CaptureRuleError):
        OPEN.clear()
        return True


def test_the_engines_need_no_barrier_of_the_whole_device() -> None:
    for engine in ENGINES:
        assert not any(wait.waiting == "host" and "slot" not in wait.event for wait in steady(engine)), engine


def steady(engine: str) -> set[Wait]:
    """The waits of rounds whose shapes are known."""
    device = FakeDevice()
    replicas = training(engine, device)
    with torch.compiler.set_stance("force_eager"):
        for t in range(8):
            replicas.round(round_of(t))
        before = dict(device.waits)
        for t in range(8, 16):
            replicas.round(round_of(t))
    replicas.close()
    return {wait for wait, count in device.waits.items() if count > before.get(wait, 0)}
