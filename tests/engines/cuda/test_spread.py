"""Engine `graph` by a schedule: the numbers of `eager`, operators on several streams, and what does not fit."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from benchmarks.gpu.branches import branch_schedule
from bow.data import open_stream
from bow.engines import Engine, LearningConfig, step_from_loss
from bow.engines.cuda.graph import CudaGraphs
from bow.engines.cuda.learner import SpreadTask
from bow.engines.cuda.loop import DeviceRoundLoop
from bow.errors import CaptureError, DataError, DeviceMemoryError, GraphError, SettingError
from bow.replicas import LearnerGroup, prepare_template
from bow.runtime.local import dependencies_of, operators_of
from bow.runtime.streams import StreamRuntime
from bow.schedule import FirstComeSchedule, OrderedSchedule, PrioritySchedule, Schedule
from bow.schedule.scheduler import critical_path
from bow.testing import FakeDevice
from tests.engines.cuda.trainings import ADAMW, LEARNERS, SGD, Scaled, model, round_of, training
from tests.engines.pairs import TOLERANCE, assert_alike, batch
from tests.engines.test_agreement import MODELS, random_batch
from tests.graph.cases import Delayed
from tests.grouped import of_replicas
from tests.synchronisers import SYNCHRONISERS


@functools.cache
def step_graph(build: Callable[[], nn.Module] = model, given: Any = None) -> Any:
    return bow.capture(build(), batch(0) if given is None else given, cross_entropy)


def dealt(graph: Any, num_streams: int = 3, seed: int = 1) -> Schedule:
    """Operators dealt to streams at random, in the order of capture."""
    draw = random.Random(seed)
    lanes: list[list[int]] = [[] for _ in range(num_streams)]
    for operator in operators_of(graph):
        draw.choice(lanes).append(operator.index)
    return OrderedSchedule((1,) * num_streams, order=tuple(map(tuple, lanes)))


def levels(graph: Any) -> tuple[int, ...]:
    operators = operators_of(graph)
    costs = [0 if operator.is_view else 1 + operator.bytes_moved for operator in operators]
    return tuple(int(level) for level in critical_path(dependencies_of(operators), costs).levels)


class Trainings:
    """The same training in `eager` and, by a schedule, in engine `graph` on the fake device."""

    def __init__(self, build: Callable[[], nn.Module], schedule: Schedule, **settings: Any) -> None:
        self.device = FakeDevice()
        self.eager = training("eager", "cpu", lambda: build().double(), **settings)
        self.graph = training("graph", self.device, lambda: build().double(), schedule=schedule, **settings)

    def round(self, batches: list[Any]) -> None:
        expected, made = self.eager.round(batches), self.graph.round(batches)
        torch.testing.assert_close(made, expected, rtol=0, atol=TOLERANCE, equal_nan=True)
        self.compare()

    def compare(self) -> None:
        assert_alike(self.graph, self.eager)
        modules = [[*map(each.learner, range(each.learners)), each.central] for each in (self.graph, self.eager)]
        for own, other in zip(*modules, strict=True):
            buffers = dict(own.named_buffers()), dict(other.named_buffers())
            torch.testing.assert_close(*buffers, rtol=0, atol=TOLERANCE)

    @property
    def launches(self) -> dict[str, int]:
        """By stream that is not a learner's first one: what graphs have run there."""
        return {name: count for name, count in self.device.launches.items() if name.startswith("graph ")}


CASES = [
    *((name, "sma", "momentum", LEARNERS) for name in MODELS),
    *((name, "sma", "adamw", 1) for name in ("mlp-batch-norm", "tied")),
    *(("mlp-batch-norm", sync, "momentum", 3) for sync in ("ssgd", "local-sgd", "asgd")),
]
OPTIMIZERS = {"momentum": functools.partial(SGD, weight_decay=1e-3), "adamw": ADAMW}


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "sync", "optimizer", "learners"), CASES)
def test_learners_by_a_schedule_follow_eager(name: str, sync: str, optimizer: str, learners: int) -> None:
    schedule = dealt(step_graph(MODELS[name], (random_batch(0)[0].float(), random_batch(0)[1])))
    settings = {"optimizer": OPTIMIZERS[optimizer], "sync": SYNCHRONISERS[sync]()}
    pair = Trainings(MODELS[name], schedule, learners=learners, **settings)
    for t in range(6):
        pair.round([random_batch(10 * t + j) for j in range(learners)])
    assert pair.graph.engine == "graph"
    assert pair.graph.loop.take_events() == []
    branches = {f"learner {learner}, stream {stream}" for learner in range(learners) for stream in (1, 2)}
    assert {name.partition("/")[2] for name in pair.launches} == branches


@pytest.mark.usefixtures("_captured_once")
def test_they_follow_through_short_rounds_other_shapes_and_changes_of_learners() -> None:
    pair = Trainings(model, dealt(step_graph()))
    for t, learners in enumerate([2, 2, 3, 3, 2, 1, 1, 2]):
        for each in (pair.eager, pair.graph):
            each.resize(learners)
        pair.compare()
        sizes = [4 - t % 3] + [4] * (learners - 1)
        batches: list[Any] = [batch(10 * t + j, size) for j, size in enumerate(sizes)]
        pair.round([*batches[:-1], None] if t == 3 else batches)
    assert pair.graph.engine == "graph"
    assert pair.graph.loop.take_events() == []


def test_clipping_and_metrics_are_those_of_eager() -> None:
    def step(learner: nn.Module, given: Any) -> Any:
        made = learner(given[0])
        return cross_entropy(made, given[1]), {"largest": made.max(), "smallest": made.min()}

    graph = bow.capture(model(), batch(0), step=step)
    pair = Trainings(model, dealt(graph), step=step, clip_norm=0.1)
    free = Trainings(model, dealt(step_graph()))
    for t in range(4):
        pair.round(round_of(t))
        free.round(round_of(t))
        one, other = (each.last.metrics for each in (pair.eager, pair.graph))
        assert list(other) == ["largest", "smallest"]
        torch.testing.assert_close(other, one, rtol=0, atol=1e-6)
    assert not torch.allclose(pair.graph.W, free.graph.W, atol=1e-3)  # the limit was felt
    assert pair.graph.loop.take_events() == []


def test_a_buffer_that_keeps_the_value_of_another_has_the_one_before() -> None:
    def step(learner: nn.Module, given: Any) -> Any:
        before = learner.mean[0].clone()  # type: ignore[index, operator]
        return cross_entropy(learner(given[0]), given[1]), {"before": before}

    pair = Trainings(Delayed, dealt(bow.capture(Delayed(), batch(0), step=step)), step=step)
    for t in range(4):
        pair.round(round_of(t))
        one, other = (each.last.metrics["before"] for each in (pair.eager, pair.graph))
        torch.testing.assert_close(other, one, rtol=0, atol=1e-6)
    assert pair.graph.engine == "graph"


@pytest.mark.filterwarnings("ignore:.*restarts from the central model")
def test_a_diverged_learner_starts_again() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    pair = Trainings(build, dealt(step_graph(build, (batch(0)[0].float(), batch(0)[1]))))
    for t in range(8):
        batches = round_of(t)
        if t in (2, 5):
            batches[t % 2][0][0, 0] = torch.inf
        for each in (pair.eager, pair.graph):
            each.round(batches)
        pair.compare()
    pair.graph.close()  # which hears of the last rounds
    assert [each.loop.num_restarts for each in (pair.eager, pair.graph)] == [2, 2]


def test_dropout_is_repeated_and_differs_between_learners() -> None:
    build = functools.partial(model, dropout=0.5)
    schedule = dealt(step_graph(build))
    seen = []
    for seed in (0, 0, 1):
        replicas = training("graph", FakeDevice(), build, seed=seed, schedule=schedule)
        with torch.random.fork_rng():
            state = torch.default_generator.get_state()
            seen.append(torch.stack([replicas.round([batch(3), batch(3)]) for _ in range(3)]))
            assert torch.equal(torch.default_generator.get_state(), state)
        assert replicas.loop.take_events() == []
        replicas.close()
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0][:, 0], seen[0][:, 1])
    assert len(set(seen[0][:, 0].tolist())) == 3


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["levels", "levels, stay", "first come", "branches", "one stream"])
def test_every_kind_of_schedule_is_carried_out(kind: str) -> None:
    graph = step_graph()
    schedule = {
        "levels": PrioritySchedule((1, 1, 1), priority=levels(graph)),
        "levels, stay": PrioritySchedule((1, 1), priority=levels(graph), stay=True),
        "first come": FirstComeSchedule((1, 1, 1)),
        "branches": branch_schedule(graph, 3),
        "one stream": Schedule.sequential(len(operators_of(graph))),
    }[kind]
    device, template = FakeDevice(), prepare_template(model(), 0)
    group = LearnerGroup(template, SGD, learners=2, device=device.torch_device)
    settings = LearningConfig(step_from_loss(cross_entropy), engine=Engine("graph", schedule=schedule))
    engine = DeviceRoundLoop(CudaGraphs, group, bow.SMA(), settings, device)
    eager = training("eager", "cpu")
    for t in range(4):
        torch.testing.assert_close(engine.round(round_of(t)).losses, eager.round(round_of(t)), rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(group.matrix.weights, eager.W, rtol=0, atol=TOLERANCE)
    engine.close()
    assert engine.take_events() == []
    assert any("stream 1" in name for name in device.launches) == (kind != "one stream")


def test_data_that_reside_on_the_device_are_gathered_in_the_graph() -> None:
    data = batch(0, samples=26)
    found = []
    for schedule in (None, dealt(step_graph())):
        replicas = training("graph", FakeDevice(), schedule=schedule)
        stream = open_stream(data, batch_size=4, epochs=2)
        assert stream.reside(torch.device("cpu"), room_bytes=0)
        while (deal := stream.deal(LEARNERS)) is not None:
            replicas.rounds_at_once([deal.batches])
        found.append(replicas.W.clone())
        assert replicas.loop.take_events() == []
        replicas.close()
    torch.testing.assert_close(*found, rtol=0, atol=TOLERANCE)


def test_autocast_is_captured_with_the_step() -> None:
    def step(learner: nn.Module, given: Any) -> Tensor:
        return cross_entropy(learner(given[0].float()), given[1])

    def cast(learner: nn.Module, given: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return step(learner, given)

    def build() -> nn.Module:
        return model().float()

    losses = []
    for schedule in (None, dealt(bow.capture(build(), batch(0), step=cast))):
        settings = {"optimizer": SGD, "learners": 2, "precision": "bfloat16", "schedule": schedule}
        given = of_replicas(engine="graph", device=FakeDevice(), **settings)
        replicas = bow.Replicas(build(), step=step, **given)
        losses.append(torch.stack([replicas.round(round_of(t)) for t in range(3)]))
        assert replicas.loop.take_events() == []  # a graph of operators in float32 would not fit the schedule
        replicas.close()
    torch.testing.assert_close(*losses, rtol=1e-2, atol=1e-2)


def test_a_value_in_python_that_changes_is_captured_anew() -> None:
    pair = Trainings(Scaled, dealt(step_graph(Scaled, (batch(0)[0].float(), batch(0)[1])), 2))
    for t in range(4):
        for each in (pair.eager, pair.graph):
            for index in range(LEARNERS):
                each.learner(index).scale = 1.0 + t // 2
        pair.round(round_of(t))
    assert pair.graph.loop.take_events() == []


# What does not fit


def test_a_schedule_of_other_operators_is_left_out_and_the_user_hears_of_it() -> None:
    pair = Trainings(model, OrderedSchedule((1, 1), order=((0,), (1,))))
    with pytest.warns(UserWarning, match="schedule does not fit this step .*never runs.* run one after another"):
        pair.round(round_of(0))
    for t in range(1, 4):
        pair.round(round_of(t))
    assert pair.graph.engine == "graph"  # it is captured all the same
    assert pair.device.replays >= 6
    assert [event.event for event in pair.graph.loop.take_events()] == ["engine changed"]


def test_a_step_that_is_no_step_graph_is_captured_as_it_is() -> None:
    class Counting(nn.Linear):
        """Changes what is no buffer, which a graph of the device repeats and a step graph would not."""

        def __init__(self) -> None:
            super().__init__(6, 3)
            self.seen = torch.zeros((), dtype=torch.float64)

        def forward(self, inputs: Tensor) -> Tensor:
            self.seen.add_(1)
            return super().forward(inputs)

    pair = Trainings(Counting, OrderedSchedule((1, 1), order=((0,), (1,))))
    with pytest.warns(UserWarning, match="the schedule does not fit this step .*neither a buffer nor an input"):
        pair.round(round_of(0))
    pair.round(round_of(1))
    assert pair.graph.engine == "graph"


def test_shapes_that_are_rare_run_as_they_are() -> None:
    pair = Trainings(model, dealt(step_graph()))
    pair.round(round_of(0))
    replays = pair.device.replays
    pair.round([batch(8, 3), batch(9, 3)])  # comes for the first time
    assert pair.device.replays == replays
    pair.round([batch(10, 3), batch(11, 3)])
    assert pair.device.replays == replays + 2
    assert pair.graph.loop.take_events() == []


def test_a_step_that_makes_something_else_of_a_buffer_is_refused() -> None:
    class Growing(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.register_buffer("last", torch.zeros(3, dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            made = super().forward(inputs)
            self.last = made.detach()
            return made

    device, made = FakeDevice(), Growing().double()
    group = LearnerGroup(made, SGD, learners=1, device=device.torch_device)
    graph = bow.capture(made, batch(0), cross_entropy)
    streams = [device.stream(name) for name in "ab"]
    with pytest.raises(CaptureError, match=r"changes buffer 'last' from float64\[3\] to float64\[4, 3\]"):
        SpreadTask(device, graph, dealt(graph, 2), streams, group.learners[0], group.layout)


def test_a_mistake_in_the_data_is_told_as_such() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3)).double()

    def tokens(largest: int, samples: int) -> tuple[Tensor, Tensor]:
        return torch.full((samples, 2), largest), torch.zeros(samples, dtype=torch.int64)

    replicas = training("graph", FakeDevice(), build, schedule=dealt(step_graph(build, tokens(4, 4)), 2))
    replicas.round([tokens(4, 4), tokens(4, 4)])
    replicas.round([tokens(4, 3), tokens(4, 3)])
    with pytest.raises(DataError, match="index is out of range"):  # while that shape is captured
        replicas.round([tokens(5, 3), tokens(4, 3)])
    assert replicas.loop.take_events() == []


def test_running_out_of_memory_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise GraphError("operator 3 failed") from torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

    replicas = training("graph", FakeDevice(), schedule=dealt(step_graph()))
    monkeypatch.setattr(StreamRuntime, "run", full)
    with pytest.raises(DeviceMemoryError, match=r"ran out of memory \(2.00 GiB more\)"):
        replicas.round(round_of(0))


def test_a_learner_for_which_there_are_no_streams_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    replicas = training("graph", device, schedule=dealt(step_graph()))
    replicas.round(round_of(0))
    make = device._make_stream

    def none_left(name: str, high_priority: bool) -> Any:
        if name == "learner 2, stream 1":
            raise SettingError("32 streams are in use; use fewer learners")
        return make(name, high_priority)

    monkeypatch.setattr(device, "_make_stream", none_left)
    with pytest.raises(SettingError, match="use fewer learners"):
        replicas.resize(replicas.learners + 1)
    assert replicas.learners == 2
    assert replicas.round(round_of(1)).isfinite().all()


# Memory


@pytest.mark.usefixtures("_captured_once")
def test_memory_comes_back_when_learners_go() -> None:
    device = FakeDevice()
    replicas = training("graph", device, schedule=dealt(step_graph()))
    used = []
    for turn in range(3):
        for learners in (2, 3, 3, 2):  # as many rounds as there are slots for batches
            replicas.resize(learners)
            for t in range(2):
                replicas.round(round_of(10 * turn + t, learners))
        replicas.close()
        used.append(device.used_bytes())
    assert used[2] <= used[1]


def test_nothing_of_what_ran_before_a_capture_is_held_behind_it() -> None:
    device = FakeDevice()
    replicas = training("graph", device, schedule=dealt(step_graph()))
    replicas.round(round_of(0))
    captured = [task for learner in replicas.loop.context.learners for task in learner._captured.values()]
    assert len(captured) == LEARNERS
    for task in captured:
        assert task.spread._runtime._held == {}
