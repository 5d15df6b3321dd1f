"""Strategies of a training on a device with streams: the numbers of one without, `"auto"`, and what is refused."""

from __future__ import annotations

import functools
import statistics
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.engines import step_from_loss
from bow.engines.config import Engine
from bow.errors import BowError, ScheduleError, SettingError
from bow.runtime.local import operators_of
from bow.schedule import FirstComeSchedule, OrderedSchedule, PrioritySchedule, Schedule, Timeline
from bow.schedule.profiler import Policy
from bow.testing import FakeDevice
from bow.training import schedule as module
from bow.training.replicas import ReplicasConfig
from bow.training.schedule import decide, engine_with
from tests.training.blueprints import Data, Train, replicas_config

pytestmark = pytest.mark.usefixtures("_captured_once")


def branches() -> nn.Module:
    """Two branches, one of them with dropout."""

    class Sides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.output = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
            self.norm = nn.BatchNorm1d(5)

        def forward(self, inputs: Tensor) -> Tensor:
            made: Tensor = self.output(torch.tanh(self.left(inputs)) + self.norm(self.right(inputs)))
            return made

    torch.manual_seed(0)
    return Sides()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 5, generator=generator), torch.randint(3, (4,), generator=generator)


@functools.cache
def turned(streams: int = 2) -> Schedule:
    """Operators on streams in turn."""
    count = len(operators_of(bow.capture(branches(), batch(), cross_entropy)))
    return OrderedSchedule(
        (1,) * streams, order=tuple(tuple(range(stream, count, streams)) for stream in range(streams))
    )


def on_fake(**settings: Any) -> tuple[FakeDevice, ReplicasConfig]:
    device = FakeDevice()
    return device, replicas_config(**{"device": device, "model": branches(), **settings})


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "TURNS", 1)
    monkeypatch.setattr(module, "WINDOW_S", 0.0)
    for name in ("WARM_UP", "COPIES"):  # of operators that are timed
        monkeypatch.setattr(f"bow.schedule.profiler.device.{name}", 1)
    monkeypatch.setattr("bow.schedule.profiler.measuring.cache_folder", lambda: tmp_path / "cache")


def made_up(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[str], float]) -> list[list[str]]:
    """Turns take what `seconds` says of their names; who took part, race by race."""
    races: list[list[str]] = []

    def time_in_turns(contestants: Mapping[str, Any], **_: Any) -> dict[str, tuple[float, ...]]:
        races.append(list(contestants))
        for contestant in contestants.values():
            contestant.run()
            contestant.rest()
        return {name: (seconds(name),) for name in contestants}

    monkeypatch.setattr(module, "time_in_turns", time_in_turns)
    return races


@pytest.mark.parametrize("learners", [1, 2])
def test_a_training_by_a_schedule_is_that_without(train: Train, data: Data, tmp_path: Path, learners: int) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(turned(3).to_json())
    device = FakeDevice()
    data = data[0].double(), data[1]
    results = [
        train(branches().double(), data, learners=learners, engine=engine, devices=where, run_dir=tmp_path / name,
              epochs=2, schedule=schedule)
        for name, engine, where, schedule in (("plain", "eager", "cpu", None), ("by", "graph", device, file))
    ]  # fmt: skip
    weights = [torch.cat([p.flatten() for p in result.model.parameters()]) for result in results]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-10)
    assert results[1].engine == "graph"
    assert any("stream 2" in name for name in device.launches)


@pytest.mark.parametrize("kind", [PrioritySchedule, FirstComeSchedule])
def test_a_gpu_trains_by_a_schedule_that_has_no_order(train: Train, data: Data, kind: type[Schedule]) -> None:
    settings = {"priority": tuple(range(sum(map(len, turned().order))))} if kind is PrioritySchedule else {}
    device = FakeDevice()
    result = train(branches(), data, engine="graph", devices=device, epochs=1, schedule=kind((1, 1), **settings))
    assert result.engine == "graph"
    assert any("stream 1" in name for name in device.launches)


@pytest.mark.parametrize(
    "schedule", ["auto", PrioritySchedule((1, 1), priority=(0,)), OrderedSchedule((1,), order=((0,),))], ids=str
)
def test_a_gpu_carries_out_every_kind_of_schedule(schedule: Any) -> None:
    for device in (FakeDevice(), torch.device("cuda", 0)):
        engine = engine_with(schedule, Engine(), device)
        assert engine == ("auto" if schedule == "auto" else "graph")
    if isinstance(schedule, PrioritySchedule):
        with pytest.raises(ScheduleError, match="needs an order for every executor"):
            engine_with(schedule, Engine(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "graph", "capture": "round"}, 'engine="graph", got engine=.graph.round'),
        ({"dispatch": "first_come"}, 'needs dispatch="fixed"'),
        ({"compile": True}, "a compiled learning task is one operator"),
    ],
)
def test_settings_that_cannot_carry_out_a_schedule_are_refused_there_too(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        engine_with("auto", Engine(**settings), FakeDevice())


@pytest.mark.sample(2)
@pytest.mark.parametrize("wins", [False, True])
def test_auto_uses_a_schedule_when_it_wins_and_says_so_when_it_does_not(
    wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    races = made_up(monkeypatch, lambda name: 1.0 if ("critical path on 2" in name) == wins else 2.0)
    device, plan = on_fake()
    said: list[str] = []
    found = decide("auto", plan, batch(), said.append)
    assert races[0][:2] == ["one stream", "critical path on 2 streams"]
    assert set(races[1]) == ({"one stream", "critical path on 2 streams"} if wins else {"one stream"})
    if wins:
        assert found.threads == (1, 1)
        assert isinstance(found, OrderedSchedule)
        assert "critical path on 2 streams: 2.00 times as fast as one stream" in said[-1]
    else:
        assert found is None
        assert "one stream: no policy that runs operators in parallel is faster" in said[-1]
    assert any("learner 0, stream 1" in name for name in device.launches)  # contestants really ran by it


def test_a_schedule_that_wins_by_little_is_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, lambda name: 1.0 if name == "one stream" else 0.99)
    said: list[str] = []
    assert decide("auto", on_fake()[1], batch(), said.append) is None
    assert "1.01 times as fast, below the 2% threshold for using a schedule" in said[-1]


def test_a_training_uses_what_auto_has_found(train: Train, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, lambda name: 2.0 if name == "one stream" else 1.0)
    device = FakeDevice()
    result = train(branches(), data, devices=device, schedule="auto", learners="auto", engine="auto", epochs=1)
    assert result.engine == "graph"
    assert result.learners == 1
    assert any("stream 1" in name for name in device.launches)


def test_turns_are_really_timed() -> None:
    device, plan = on_fake()
    comparison = module.compare_on(device, plan, batch())
    assert all(seconds > 0 for own in comparison.seconds.values() for seconds in own)
    faster = min(comparison.seconds, key=lambda name: statistics.median(comparison.seconds[name]))
    assert {faster, "one stream"} == set(comparison.finalist_seconds)
    assert comparison.best.name in comparison.finalist_seconds
    assert comparison.path.parallelism > 1


def test_what_cannot_be_captured_has_no_schedule() -> None:
    def reading(model: nn.Module, given: Any) -> Tensor:
        made = cross_entropy(model(given[0]), given[1])
        return made * 2 if made.item() > 0 else made

    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decide("auto", on_fake(step=reading)[1], batch(), said.append) is None
    assert "none, because the step cannot be scheduled" in said[-1]


def test_policies_that_a_learner_cannot_run_by_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    device, plan = on_fake()
    races = made_up(monkeypatch, lambda name: 1.0)
    good, bad = (
        Policy("one stream", OrderedSchedule((1,), order=((0,),)), Timeline()),
        OrderedSchedule((1, 1), order=((0,), (1,))),
    )
    monkeypatch.setattr(module, "device_policies", lambda *_: [good, Policy("of others", bad, Timeline())])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comparison = module.compare_on(device, plan, batch())
    assert comparison.policies == (good,)
    assert races == [["one stream"], ["one stream"]]


def test_a_learner_that_cannot_run_on_one_stream_ends_the_comparison() -> None:
    device, plan = on_fake(on_nan="error")
    infinite = batch()[0].fill_(torch.inf), batch()[1]
    with pytest.raises(BowError, match="loss was"):
        module.compare_on(device, plan, infinite)


def test_comparing_leaves_the_template_and_the_random_numbers_alone() -> None:
    device, plan = on_fake(step=step_from_loss(cross_entropy))
    before = {name: tensor.clone() for name, tensor in plan.model.state_dict().items()}
    state = torch.default_generator.get_state()
    module.compare_on(device, plan, batch())
    assert torch.equal(torch.default_generator.get_state(), state)
    assert all(torch.equal(plan.model.state_dict()[name], tensor) for name, tensor in before.items())
