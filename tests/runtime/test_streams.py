"""Step graphs on streams of the fake device: the same numbers, eagerly and captured, and no wait that is not needed."""

import contextlib
import dataclasses
import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bow
from benchmarks.gpu.branches import branch_schedule
from bow.devices import Stream
from bow.devices.cuda import cuda_device
from bow.errors import GraphError, ScheduleError
from bow.graph import StepGraph
from bow.graph.learning_step import StepOutputs
from bow.models import LSTMLanguageModel, ResNet, Transformer, sequence_cross_entropy
from bow.runtime.local import dependencies_of
from bow.runtime.streams import MemoryUse, StreamRuntime
from bow.schedule import OrderedSchedule, PrioritySchedule, Schedule
from bow.schedule.scheduler.stream_plan import START, StreamPlan
from bow.testing import CaptureRuleError, FakeDevice, RaceError, Wait
from tests.graph.cases import Case, state
from tests.runtime.stream_captures import StreamCapture, capture_step
from tests.runtime.test_local import assert_same


class Branches(nn.Module):
    """Two dropouts side by side, the one on a residual branch; buffers that change and a view that is a result."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.output = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3, bias=False)
        self.norm, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        left = self.dropout(torch.relu(self.left(inputs)))
        right = self.dropout(self.norm(self.right(inputs)))
        made: Tensor = self.output(left + right + inputs)
        return made


def _vectors() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 6), torch.randint(3, (4,))


def _images() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 8, 8), torch.randint(10, (2,))


def _tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(20, (2, 4)), torch.randint(20, (2, 4))


MODELS = {
    "branches": Case(Branches, _vectors, F.cross_entropy),
    "residual": Case(lambda: ResNet(8, width=4), _images, F.cross_entropy),
    "lstm": Case(lambda: LSTMLanguageModel(20, 8, 8, layers=2), _tokens, sequence_cross_entropy),
    "transformer": Case(
        lambda: Transformer(20, width=8, heads=2, context=4, dropout=0.2), _tokens, sequence_cross_entropy
    ),
}
SMALL, *LARGE = MODELS


@functools.cache
def graph_of(name: str) -> StepGraph:
    torch.manual_seed(0)
    return bow.capture(MODELS[name].build(), MODELS[name].batch(), MODELS[name].loss)


def random_schedule(graph: StepGraph, seed: int, num_streams: int, *, in_capture_order: bool = False) -> Schedule:
    """Operators dealt to streams at random; some schedules have a random order, which respects the dependencies."""
    draw, dependencies = random.Random(seed), dependencies_of(graph.operators)
    left, lanes = list(range(len(dependencies))), [list[int]() for _ in range(num_streams)]
    while left:
        ready = [index for index in left if dependencies[index].isdisjoint(left)]
        chosen = ready[0] if in_capture_order or seed % 2 else draw.choice(ready)
        draw.choice(lanes).append(chosen)
        left.remove(chosen)
    return OrderedSchedule((1,) * num_streams, order=tuple(map(tuple, lanes)))


def streams_of(num_streams: int) -> tuple[FakeDevice, list[Stream]]:
    device = FakeDevice()
    return device, [device.stream(str(number)) for number in range(num_streams)]


@dataclass
class Learner:
    """One learner on streams of a device: tensors that stay where they are, written to on the first stream."""

    graph: StepGraph
    schedule: Schedule
    device: FakeDevice
    name: str = "learner"
    generator: torch.Generator = field(default_factory=torch.Generator)
    sources: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = [self.device.stream(f"{self.name}/{index}") for index in range(len(self.schedule.threads))]
        graph, empty = self.graph, {v: torch.zeros(s.shape, dtype=s.dtype) for v, s in self.graph.values.items()}
        self.parameters = {name: empty[value] for name, value in graph.parameters.items()}
        self.buffers = {name: empty[value] for name, value in graph.buffers.items()}
        self.batch = tuple(empty[value] for value in graph.batch.values())
        self.runtime = StreamRuntime(graph, self.schedule, self.device, self.streams)

    def write(self, model: nn.Module, batch: Sequence[Tensor]) -> None:
        """Change all that a step reads."""
        self.sources.append((model, batch))  # memory of the caller's, which these copies may still be reading
        parameters, buffers = state(model)
        with torch.no_grad(), self.device.issuing(), self.device.on(self.streams[0]):
            for own, given in ((self.parameters, parameters), (self.buffers, buffers)):
                for name, tensor in own.items():
                    tensor.copy_(given[name])
            for tensor, part in zip(self.batch, batch, strict=True):
                tensor.copy_(part)

    def run(self, seed: int | None = None) -> StepOutputs:
        return self.runtime.run(self.parameters, self.buffers, self.batch, seed=seed)

    def capture(self, generator: torch.Generator | None = None) -> StreamCapture:
        tensors = self.parameters, self.buffers, self.batch
        return capture_step(self.runtime, self.device, self.streams, *tensors, generator)

    def read(self, outputs: StepOutputs) -> StepOutputs:
        """A copy of the results, made on the first stream."""
        with self.device.issuing(), self.device.on(self.streams[0]):
            groups = (outputs.gradients, outputs.buffers, outputs.metrics)
            return StepOutputs(outputs.loss.clone(), *({n: t.clone() for n, t in group.items()} for group in groups))


def spread(name: str, seed: int, num_streams: int) -> Learner:
    """Of a model, by a random schedule on a device of its own."""
    graph = graph_of(name)
    return Learner(graph, random_schedule(graph, seed, num_streams), FakeDevice())


def run_eagerly(learner: Learner, case: Case, rounds: Iterable[int]) -> None:
    """Run steps on other weights and batches each time, and compare with the graph."""
    for number in rounds:
        torch.manual_seed(number)
        model, batch = case.build(), case.batch()
        learner.write(model, batch)
        made = learner.read(learner.run(seed=number))
        assert_same(made, learner.graph.run(*state(model), batch, seed=number))


def run_captured(learner: Learner, case: Case, rounds: Iterable[int]) -> None:
    """Capture a step and replay it on other weights and batches each time, and compare with the graph."""
    captured = learner.capture(learner.generator)
    for number in rounds:
        torch.manual_seed(number)
        model, batch = case.build(), case.batch()
        learner.write(model, batch)
        learner.generator.manual_seed(number)
        made = learner.read(captured.replay())
        torch.manual_seed(number)
        assert_same(made, learner.graph.run(*state(model), batch))


@pytest.mark.sample(7)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_streams", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_any_schedule_gives_the_numbers_of_the_graph(name: str, num_streams: int, seed: int) -> None:
    run_eagerly(spread(name, seed, num_streams), MODELS[name], range(2))


@pytest.mark.sample(7, 3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_streams", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_gives_the_numbers_of_the_graph(name: str, num_streams: int, seed: int) -> None:
    graph = graph_of(name)
    draws = any(operator.is_random for operator in graph.operators)  # without a seed, in the order of issue
    schedule = random_schedule(graph, seed, num_streams, in_capture_order=draws)
    run_captured(Learner(graph, schedule, FakeDevice()), MODELS[name], range(2))


@pytest.mark.parametrize("name", MODELS)
def test_branches_and_priorities_are_schedules_too(name: str) -> None:
    graph = graph_of(name)
    learner = Learner(graph, branch_schedule(graph, 3), FakeDevice())
    run_eagerly(learner, MODELS[name], range(2))
    run_captured(learner, MODELS[name], range(2))
    draw = random.Random(0)
    priorities = PrioritySchedule((1, 1), priority=tuple(draw.randrange(100) for _ in graph.operators))
    run_eagerly(Learner(graph, priorities, FakeDevice()), MODELS[name], range(2))


@contextlib.contextmanager
def unnamed() -> Iterator[None]:
    """What the device found, without the name of the operator that it found it at."""
    try:
        yield
    except GraphError as error:
        raise error.__cause__ or error from None


def run_all(graph: StepGraph, schedule: Schedule, case: Case, without: Wait | None = None) -> FakeDevice:
    device = FakeDevice(without)
    learner = Learner(graph, schedule, device)
    run_eagerly(learner, case, range(2))
    learner.runtime.close()
    run_captured(learner, case, range(1))
    return device


def assert_needed(name: str, schedule: Schedule, at_most: int | None = None) -> None:
    """Leaving out any of the waits is noticed; of many waits, some are tried."""
    graph, case = graph_of(name), MODELS[name]
    waits = list(run_all(graph, schedule, case).waits)
    assert waits
    for wait in waits if at_most is None else random.Random(0).sample(waits, min(at_most, len(waits))):
        with pytest.raises((RaceError, CaptureRuleError)), unnamed():
            run_all(graph, schedule, case, without=wait)


@pytest.mark.parametrize("num_streams", [2, 3, 4])
def test_every_wait_is_needed(num_streams: int) -> None:
    assert_needed(SMALL, random_schedule(graph_of(SMALL), 1, num_streams))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", LARGE)
def test_waits_of_larger_graphs_are_needed(name: str) -> None:
    assert_needed(name, random_schedule(graph_of(name), 1, 3, in_capture_order=True), at_most=5)


@pytest.mark.parametrize("name", MODELS)
def test_the_device_sees_the_waits_of_the_plan_and_no_others(name: str) -> None:
    learner = spread(name, 2, 3)
    run_eagerly(learner, MODELS[name], range(2))
    plan, waits = learner.runtime.plan, learner.device.waits
    assert sum(waits.values()) == 2 * (sum(len(turn.waits) for turn in plan.tasks) + len(plan.join))
    assert set(waits.values()) == {2}


def test_one_stream_takes_no_event() -> None:
    graph, device = graph_of(SMALL), FakeDevice()
    learner = Learner(graph, Schedule.sequential(len(graph.operators)), device)
    run_eagerly(learner, MODELS[SMALL], range(2))
    run_captured(learner, MODELS[SMALL], range(2))
    assert not device.waits
    assert not learner.runtime.plan.awaited


def test_streams_without_operators_are_left_alone() -> None:
    graph, device = graph_of(SMALL), FakeDevice()
    lane = tuple(range(len(graph.operators)))
    learner = Learner(graph, OrderedSchedule((1, 1, 1), order=((), lane, ())), device)
    run_eagerly(learner, MODELS[SMALL], range(2))
    run_captured(learner, MODELS[SMALL], range(2))
    first, second, third = (stream.name for stream in learner.streams)
    assert {wait.waiting for wait in device.waits} == {first, second}
    assert learner.runtime.plan.tasks[0].waits == (START,)
    assert third not in device.launches


def test_a_stream_waits_for_what_an_operator_comes_after() -> None:
    graph = graph_of(SMALL)
    kernels = [op.index for op in graph.operators if not op.is_view]

    def waits(free: int, *others: int) -> tuple[int, ...]:
        lanes = tuple(op.index for op in graph.operators if op.index != free), (free,)
        schedule = OrderedSchedule((1, 1), order=lanes, after=tuple((free, other) for other in others))
        device, streams = streams_of(2)
        plan = StreamRuntime(graph, schedule, device, streams).plan
        return next(turn.waits for turn in plan.tasks if turn.task == free)

    pairs = itertools.pairwise(kernels)
    other, free = next((one, free) for one, free in pairs if not _waits_for(graph, free, one))
    assert other not in waits(free)
    assert other in waits(free, other)


def _waits_for(graph: StepGraph, operator: int, other: int) -> bool:
    before = dependencies_of(graph.operators)
    return other in before[operator] or any(_waits_for(graph, earlier, other) for earlier in before[operator])


@pytest.mark.parametrize("name", MODELS)
def test_nothing_waits_for_a_view(name: str) -> None:
    graph, device = graph_of(name), FakeDevice()
    lanes = [[op.index for op in graph.operators if op.is_view == is_view] for is_view in (False, True)]
    learner = Learner(graph, OrderedSchedule((1, 1), order=tuple(map(tuple, lanes))), device)
    run_eagerly(learner, MODELS[name], range(2))
    run_captured(learner, MODELS[name], range(1))
    assert lanes[1]
    assert not device.waits
    assert learner.streams[1].name not in device.launches


def test_events_are_made_once() -> None:
    made = []

    class Counting(FakeDevice):
        def event(self, name: str):
            made.append(name)
            return super().event(name)

    graph = graph_of(SMALL)
    learner = Learner(graph, random_schedule(graph, 0, 3), Counting())
    before = len(made)
    assert before == len(learner.runtime.plan.awaited) == len(set(made))
    run_eagerly(learner, MODELS[SMALL], range(3))
    assert len(made) == before


# Memory


def last_uses(plan: StreamPlan, allocations: Sequence[Sequence[int]]) -> list[list[int]]:
    """Memory goes back behind its last use, whoever makes it."""
    position = {turn.task: index for index, turn in enumerate(plan.tasks)}
    gone: list[list[int]] = [[] for _ in plan.tasks]
    for allocation, uses in enumerate(allocations):
        gone[max(position[use] for use in uses)].append(allocation)
    return gone


@pytest.mark.parametrize("name", MODELS)
def test_memory_that_goes_back_at_its_last_use_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamPlan, "releases", last_uses)
    with pytest.raises(RaceError, match="was given back while"), unnamed():
        run_eagerly(spread(name, 1, 2), MODELS[name], range(2))


@pytest.mark.parametrize("name", MODELS)
def test_memory_that_is_not_held_until_the_next_step_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamRuntime, "_hold", lambda self, live: None)
    with pytest.raises(RaceError, match="was given back while"), unnamed():
        run_eagerly(spread(name, 1, 2), MODELS[name], range(2))


@pytest.mark.parametrize("num_streams", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_most_memory_goes_back_within_the_step(name: str, num_streams: int) -> None:
    graph = graph_of(name)
    plan = StreamRuntime(graph, branch_schedule(graph, num_streams), *streams_of(num_streams)).plan
    uses = list(MemoryUse(graph, graph.operators).uses.values())
    released = sum(map(len, plan.releases(uses)))
    assert released == len(uses) if num_streams == 1 else released > 0.85 * len(uses)


def test_what_is_held_is_the_memory_of_one_step() -> None:
    learner, used = spread(SMALL, 1, 3), []
    for _ in range(4):
        learner.read(learner.run())
        used.append(learner.device.used_bytes())
    assert used == used[:1] * 4


def test_closing_lets_go_of_what_was_held() -> None:
    learner = spread(SMALL, 1, 3)
    torch.manual_seed(0)
    learner.write(MODELS[SMALL].build(), MODELS[SMALL].batch())
    inputs = learner.device.used_bytes()
    with contextlib.closing(learner.runtime):
        learner.read(learner.run())
        assert learner.device.used_bytes() > inputs
    assert learner.device.used_bytes() == inputs
    run_eagerly(learner, MODELS[SMALL], range(2))


# Captures


def test_capturing_leaves_inputs_and_random_numbers_alone() -> None:
    torch.manual_seed(0)
    model, batch = MODELS[SMALL].build(), MODELS[SMALL].batch()
    learner = spread(SMALL, 1, 2)
    learner.write(model, batch)
    before = torch.get_rng_state()
    learner.capture()
    assert torch.equal(torch.get_rng_state(), before)
    parameters, buffers = state(model)
    assert all(torch.equal(learner.parameters[name], parameters[name]) for name in parameters)
    assert all(torch.equal(learner.buffers[name], buffers[name]) for name in buffers)


def test_replays_draw_from_the_generator_of_the_device_where_none_is_given() -> None:
    torch.manual_seed(0)
    model, batch = MODELS[SMALL].build(), MODELS[SMALL].batch()
    learner = spread(SMALL, 1, 2)
    captured = learner.capture()
    learner.write(model, batch)
    torch.manual_seed(3)
    made = [learner.read(captured.replay()) for _ in range(2)]
    torch.manual_seed(3)
    for outputs in made:
        assert_same(outputs, learner.graph.run(*state(model), batch))
    assert made[0].loss != made[1].loss


def test_inputs_in_another_memory_order_are_read_anew_by_every_replay() -> None:
    learner = spread(SMALL, 1, 3)
    learner.parameters["left.weight"] = torch.zeros(6, 6).t()
    run_eagerly(learner, MODELS[SMALL], range(2))
    run_captured(learner, MODELS[SMALL], range(2))


def test_results_stay_where_they_are() -> None:
    learner = spread(SMALL, 1, 2)  # whose tensors the replays write to
    captured = learner.capture()
    addresses = {name: gradient.data_ptr() for name, gradient in captured.replay().gradients.items()}
    assert {name: gradient.data_ptr() for name, gradient in captured.replay().gradients.items()} == addresses


def test_learners_are_branches_of_one_graph() -> None:
    """As the graph of a whole round takes them up: runtimes within a capture, each on streams of its own."""
    device, case, graph = FakeDevice(), MODELS["residual"], graph_of("residual")
    learners = [Learner(graph, random_schedule(graph, seed, 2), device, f"learner {seed}") for seed in range(2)]
    models = []
    stream, forked = device.stream("round"), device.event("forked")
    for number, learner in enumerate(learners):
        torch.manual_seed(number)
        models.append((case.build(), case.batch()))
        learner.write(*models[-1])
        learner.run()
        learner.runtime.close()
        ready = device.event(f"ready {number}")
        learner.streams[0].record(ready)
        stream.wait(ready)
    joined = [device.event(f"joined {number}") for number in range(2)]
    with device.issuing():
        with device.capture(stream) as captured:
            stream.record(forked)
            outputs = []
            for learner, event in zip(learners, joined, strict=True):
                learner.streams[0].wait(forked)
                outputs.append(learner.run())
                learner.streams[0].record(event)
                stream.wait(event)
        with device.on(stream):
            captured.replay()
            copies = [{name: t.clone() for name, t in made.gradients.items()} for made in outputs]
    for (model, batch), made in zip(models, copies, strict=True):
        expected = graph.run(*state(model), batch).gradients
        assert [name for name in expected if not torch.equal(made[name], expected[name])] == []


# Failures


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.table = nn.Embedding(10, 4)

    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        vectors, tokens = given
        found: Tensor = torch.tanh(self.left(vectors)) * self.table(tokens) + self.right(vectors)
        return found


def _lookup() -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (torch.randn(3, 4), torch.randint(10, (3,))), torch.randint(4, (3,))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("captured", [False, True])
def test_an_operator_that_fails_is_named_and_leaves_the_streams_in_order(captured: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model, device = Lookup(), FakeDevice()
    graph = bow.capture(model, _lookup(), F.cross_entropy)
    streams = [device.stream(name) for name in "abc"]
    runtime = StreamRuntime(graph, random_schedule(graph, seed, 3), device, streams)
    parameters, buffers = state(model)
    (vectors, tokens), targets = _lookup()
    good, bad = tokens.clone(), tokens + 10
    for attempt in range(3):
        with device.issuing(), device.on(streams[0]):
            tokens.copy_(bad)
            vectors.add_(1)
        batch = (vectors, tokens), targets
        runtime.close()
        with (
            pytest.raises(GraphError, match=r"aten.embedding.default\(float32\[10, 4\], int64\[3\]\) of table"),
            device.issuing(),
            device.capture(streams[0]) if captured else contextlib.nullcontext(),
        ):
            runtime.run(parameters, buffers, batch, seed=None if captured else attempt)
        with device.issuing(), device.on(streams[0]):
            tokens.copy_(good)
            vectors.add_(1)
            made = runtime.run(parameters, buffers, batch)
            loss = made.loss.clone()
        assert torch.equal(loss, graph.run(parameters, buffers, batch).loss)


def test_what_does_not_fit_is_refused() -> None:
    graph, device = graph_of(SMALL), FakeDevice()
    schedule = random_schedule(graph, 0, 2)
    with pytest.raises(ScheduleError, match="has 2 executors, got 1 streams; give one stream for each executor"):
        StreamRuntime(graph, schedule, device, [device.stream("a")])
    with pytest.raises(ScheduleError, match="never runs in the schedule"):
        StreamRuntime(graph, OrderedSchedule((1,), order=((0,),)), device, [device.stream("a")])
    elsewhere = dataclasses.replace(graph, device="cuda:0")
    with pytest.raises(GraphError, match="was captured for cuda:0, the device is cpu; capture it there"):
        StreamRuntime(elsewhere, schedule, device, [device.stream(name) for name in "ab"])
    learner = Learner(graph, schedule, device)
    with pytest.raises(GraphError, match="the graph was captured with"):
        learner.runtime.run(learner.parameters, learner.buffers, [part[:2] for part in learner.batch])


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_gives_the_numbers_of_the_graph(name: str) -> None:
    gpu, case = torch.device("cuda", 0), MODELS[name]
    device, generator = cuda_device(gpu), torch.Generator(gpu)
    torch.manual_seed(0)
    model, batch = case.build().to(gpu), tuple(part.to(gpu) for part in case.batch())
    graph = bow.capture(model, batch, case.loss)
    schedule = random_schedule(graph, 1, 3, in_capture_order=True)
    streams = [device.stream(f"test of streams {n}") for n in range(3)]
    runtime = StreamRuntime(graph, schedule, device, streams)
    torch.cuda.synchronize()  # the streams have nothing to do with the one that the model was made on
    for seed in range(3):
        made = runtime.run(*state(model), batch, seed=seed)
        torch.cuda.synchronize()
        assert_close(made, graph.run(*state(model), batch, seed=seed))
    captured = capture_step(runtime, device, streams, *state(model), batch, generator)
    for seed in range(3):
        torch.manual_seed(seed)
        for part, changed in zip(batch, case.batch(), strict=True):
            part.copy_(changed)
        generator.manual_seed(seed)
        torch.cuda.synchronize()
        made = captured.replay()
        torch.cuda.synchronize()
        torch.cuda.manual_seed(seed)
        assert_close(made, graph.run(*state(model), batch))
    captured.graph.reset()


def assert_close(made: StepOutputs, expected: StepOutputs) -> None:
    """Equal to rounding: some libraries of a GPU add in no fixed order."""
    for own, other in ((made.gradients, expected.gradients), (made.buffers, expected.buffers)):
        torch.testing.assert_close(own, other)
    torch.testing.assert_close(made.loss, expected.loss)
