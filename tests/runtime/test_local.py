"""Step graphs on executors: the same numbers whatever the schedule, failures with a name, Ctrl-C."""

import contextlib
import importlib
import itertools
import os
import random
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bow
from bow.devices import available_cores
from bow.errors import GraphError, SettingError
from bow.graph import StepGraph
from bow.graph.learning_step import StepOutputs
from bow.runtime.loading import is_available
from bow.runtime.local import LocalRuntime, dependencies_of, in_turn
from bow.schedule import FirstComeSchedule, OrderedSchedule, PrioritySchedule, Schedule
from tests.forked import FORKED
from tests.graph.cases import PAPER_MODELS, captured, state

NATIVE = [False, True]


def test_the_native_runtime_builds_here() -> None:
    assert is_available()


def random_schedule(dependencies: Sequence[frozenset[int]], seed: int, executors: int) -> Schedule:
    """Operators dealt to executors at random, in a random order that respects the dependencies; or as they are free."""
    draw = random.Random(seed)
    threads = (1,) * executors
    small = tuple(index for index in range(len(dependencies)) if draw.random() < 0.3)
    if seed % 3 == 1:
        priority = tuple(draw.randrange(100) for _ in dependencies)
        return PrioritySchedule(threads, priority=priority, small=small, stay=draw.random() < 0.5)
    if seed % 3 == 2:
        return FirstComeSchedule(threads, small=small, stay=draw.random() < 0.5)
    order: list[list[int]] = [[] for _ in threads]
    done: set[int] = set()
    while len(done) < len(dependencies):
        ready = [i for i, before in enumerate(dependencies) if i not in done and before <= done]
        chosen = draw.choice(ready)
        order[draw.randrange(executors)].append(chosen)
        done.add(chosen)
    return OrderedSchedule(threads, order=tuple(tuple(lane) for lane in order))


def assert_same(made: StepOutputs, expected: StepOutputs) -> None:
    assert torch.equal(made.loss, expected.loss)
    for own, other in (
        (made.gradients, expected.gradients),
        (made.buffers, expected.buffers),
        (made.metrics, expected.metrics),
    ):
        assert own.keys() == other.keys()
        assert [name for name in own if not torch.equal(own[name], other[name])] == []


@pytest.mark.quick(12, 8)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))])
@pytest.mark.parametrize("use_native", NATIVE)
@pytest.mark.parametrize("name", PAPER_MODELS)
def test_any_schedule_gives_the_numbers_of_the_graph(name: str, use_native: bool, seed: int) -> None:
    model, graph = captured(name)
    schedule = random_schedule(dependencies_of(graph.operators), seed, executors=2)
    parameters, buffers = state(model)
    with LocalRuntime(graph, schedule, use_native=use_native) as runtime:
        for _ in range(2):
            batch = PAPER_MODELS[name].batch()
            assert_same(runtime.run(parameters, buffers, batch, seed=1), graph.run(parameters, buffers, batch, seed=1))


class Noisy(nn.Module):
    """Draws random numbers in operators that take a generator, and in one that knows only torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.RReLU(), nn.Linear(8, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.layers(inputs + torch.rand_like(inputs))
        return made


@pytest.fixture(scope="module")
def noisy() -> tuple[nn.Module, StepGraph, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    batch = torch.randn(3, 4), torch.randint(2, (3,))
    model = Noisy()
    return model, bow.capture(model, batch, F.cross_entropy), batch


@pytest.mark.parametrize("use_native", NATIVE)
def test_random_numbers_follow_the_seed_and_not_the_schedule(
    noisy: tuple[nn.Module, StepGraph, tuple[Tensor, Tensor]], use_native: bool
) -> None:
    model, graph, batch = noisy
    dependencies = dependencies_of(graph.operators)
    untouched = torch.get_rng_state()
    losses = []
    for seed in range(4):
        with LocalRuntime(graph, random_schedule(dependencies, seed, 2), use_native=use_native) as runtime:
            made = runtime.run(*state(model), batch, seed=5)
            assert_same(made, graph.run(*state(model), batch, seed=5))
            losses.append(float(runtime.run(*state(model), batch, seed=seed).loss))
    assert len(set(losses)) == len(losses)
    assert torch.equal(torch.get_rng_state(), untouched)


@pytest.mark.parametrize("use_native", NATIVE)
def test_without_a_seed_every_run_draws_anew_from_the_generator_of_torch(
    noisy: tuple[nn.Module, StepGraph, tuple[Tensor, Tensor]], use_native: bool
) -> None:
    model, graph, batch = noisy
    with LocalRuntime(graph, use_native=use_native) as runtime:
        torch.manual_seed(3)
        first, second = (runtime.run(*state(model), batch).loss for _ in range(2))
        torch.manual_seed(3)
        again = runtime.run(*state(model), batch).loss
    assert first != second
    assert first == again


@pytest.mark.parametrize("use_native", NATIVE)
def test_a_recorded_run_has_every_operator_in_its_place(use_native: bool) -> None:
    model, graph = captured("transformer")
    dependencies = dependencies_of(graph.operators)
    schedule = random_schedule(dependencies, 0, executors=2)
    with LocalRuntime(graph, schedule, use_native=use_native) as runtime:
        runtime.run(*state(model), PAPER_MODELS["transformer"].batch(), seed=0, record=True)
    assert runtime.timeline is not None
    spans = runtime.timeline.spans
    assert isinstance(schedule, OrderedSchedule)
    for executor, lane in enumerate(schedule.order):
        own = [span for span in spans if span.place == f"executor {executor}"]
        assert [span.name for span in own] == [graph.operators[index].kind for index in lane]
        ends = [0, *(span.end_ns for span in own)]
        assert all(span.start_ns >= end for span, end in zip(own, ends, strict=False))
    position = {index: (e, i) for e, lane in enumerate(schedule.order) for i, index in enumerate(lane)}
    by_executor = [[s for s in spans if s.place == f"executor {e}"] for e in range(2)]
    placed = {index: by_executor[e][i] for index, (e, i) in position.items()}
    for index, before in enumerate(dependencies):
        assert all(placed[earlier].end_ns <= placed[index].start_ns for earlier in before)


class Pooling(nn.Module):
    """Max pooling of elements that are their own weights, so that each gradient says which of them was taken."""

    def __init__(self, elements: Tensor, settings: dict[str, Any], is_negated: bool) -> None:
        super().__init__()
        self.elements = nn.Parameter(elements)
        self.settings, self.is_negated = settings, is_negated

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        elements = torch._neg_view(self.elements) if self.is_negated else self.elements
        made: tuple[Tensor, Tensor] = F.max_pool2d(elements, **self.settings, return_indices=True)
        pooled, places = made
        weights = noise.flatten()[: pooled.numel()].view_as(pooled)
        return (pooled.nan_to_num() * weights).sum(), (places * weights.double()).sum()


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((2, 3, 8, 8), {"kernel_size": 2}),
        ((1, 2, 7, 9), {"kernel_size": 2}),
        ((2, 1, 9, 40), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((1, 3, 6, 37), {"kernel_size": (2, 5), "stride": (1, 3), "padding": (0, 2)}),
        ((1, 1, 5, 5), {"kernel_size": 2, "ceil_mode": True}),
        ((1, 2, 9, 9), {"kernel_size": 3, "dilation": 2}),
        ((2, 3, 2, 2), {"kernel_size": 13, "stride": 1, "padding": 6}),  # no window lies inside
        ((1, 1, 1, 1), {"kernel_size": 9, "stride": 1, "padding": 4}),
    ],
)
@pytest.mark.parametrize("kind", ["ties", "random", "nan", "infinite", "double", "channels last", "negated"])
def test_max_pooling_is_that_of_torch(shape: tuple[int, ...], settings: dict[str, Any], kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    elements = torch.randn(shape, generator=generator)
    if kind != "random":
        elements = elements.round()
    if kind in ("nan", "infinite"):
        odd = torch.rand(shape, generator=generator) < 0.4
        elements[odd] = torch.nan if kind == "nan" else -torch.inf
    if kind == "double":
        elements = elements.double()
    if kind == "channels last":
        elements = elements.to(memory_format=torch.channels_last)
    model = Pooling(elements, settings, kind == "negated")
    noise = torch.randn(elements.numel() * 2, generator=generator, dtype=elements.dtype)

    def step(learner: nn.Module, batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, places = learner(batch)
        return loss, {"places": places}

    graph = bow.capture(model, noise, step=step)
    with LocalRuntime(graph, use_native=True) as runtime:
        assert_same(runtime.run(*state(model), noise), graph.run(*state(model), noise))


class Branches(nn.Module):
    """ReLU of a parameter in `channels_last`, whose gradient lies otherwise: strided, expanded, or part of a whole."""

    def __init__(self, elements: Tensor, kind: str) -> None:
        super().__init__()
        self.elements = nn.Parameter(elements)
        self.kind = kind

    def forward(self, noise: Tensor) -> Tensor:
        made = F.relu(self.elements * 1)
        if self.kind == "slice":
            return made[:, :, ::2] * noise[:, :, ::2]
        if self.kind == "mean":
            return made.mean((2, 3)) * noise[:, :, 0, 0]
        if self.kind == "sum":
            return made.sum((2, 3)) * noise[:, :, 0, 0]
        return torch.cat([noise.to(memory_format=torch.channels_last), made], 1).square()


@pytest.mark.parametrize("kind", ["slice", "mean", "sum", "cat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_gradient_of_relu_in_another_order_of_memory_is_that_of_torch(kind: str, dtype: torch.dtype) -> None:
    elements = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    elements[0, 1] = 0
    noise = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    model = Branches(elements.to(memory_format=torch.channels_last), kind)
    graph = bow.capture(model, noise, step=lambda learner, batch: learner(batch).sum())
    (backward,) = (each for each in graph.operators if each.kind.startswith("aten.threshold_backward"))
    gradient, result = (graph.values[value] for value in backward.reads)
    assert gradient.strides != result.strides
    if kind in ("slice", "mean"):
        assert gradient.strides[1] > 1  # where the channels of the result are neighbours: it has to be reordered
    with LocalRuntime(graph, use_native=True) as runtime:
        made, expected = runtime.run(*state(model), noise), graph.run(*state(model), noise)
    assert_same(made, expected)
    assert made.gradients["elements"].stride() == expected.gradients["elements"].stride()


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.table(tokens)
        return found.mean(1)


@pytest.mark.parametrize("executors", [1, 2])
@pytest.mark.parametrize("use_native", NATIVE)
def test_an_operator_that_fails_is_named_and_the_next_run_works(use_native: bool, executors: int) -> None:
    good = torch.randint(10, (3, 5)), torch.randint(4, (3,))
    model = Lookup()
    graph = bow.capture(model, good, F.cross_entropy)
    schedule = random_schedule(dependencies_of(graph.operators), 2, executors)
    with LocalRuntime(graph, schedule, use_native=use_native) as runtime:
        for _ in range(3):
            with pytest.raises(GraphError, match=r"aten.embedding.default\(float32\[10, 4\], int64\[3, 5\]\) of table"):
                runtime.run(*state(model), (good[0] + 10, good[1]))
            assert_same(runtime.run(*state(model), good), graph.run(*state(model), good))


@pytest.mark.parametrize("use_native", NATIVE)
def test_tensors_that_do_not_fit_are_refused(use_native: bool) -> None:
    model, graph = captured("transformer")
    inputs, targets = PAPER_MODELS["transformer"].batch()
    with (
        LocalRuntime(graph, use_native=use_native) as runtime,
        pytest.raises(GraphError, match=r"the graph was captured with int64\[3, 5\]"),
    ):
        runtime.run(*state(model), (inputs[:2], targets[:2]))


def test_executors_end_when_they_are_told_to_and_start_again() -> None:
    model, graph = captured("transformer")
    batch = PAPER_MODELS["transformer"].batch()
    schedule = random_schedule(dependencies_of(graph.operators), 0, executors=2)
    runtime = LocalRuntime(graph, schedule, use_native=True)
    before = num_threads()
    for _ in range(2):
        runtime.run(*state(model), batch, seed=0)
        assert num_threads() == before + 1  # the caller is an executor itself
        runtime.close()
        assert num_threads() == before


def test_the_calling_thread_keeps_its_cores_and_its_number_of_threads() -> None:
    model, graph = captured("transformer")
    schedule = random_schedule(dependencies_of(graph.operators), 0, executors=2)
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with LocalRuntime(graph, schedule, use_native=True) as runtime:
            runtime.run(*state(model), PAPER_MODELS["transformer"].batch(), seed=0)
        assert torch.get_num_threads() == 2
        assert os.sched_getaffinity(0) == cores
        with_default: list[int] = []
        other = threading.Thread(target=lambda: with_default.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert with_default == [2]  # what new threads get was not changed either
    finally:
        torch.set_num_threads(threads)


INTERRUPTED = textwrap.dedent(
    """
    import os, signal, threading, torch, bow
    from torch import nn
    from bow.runtime.local import LocalRuntime
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(10)))
    batch = torch.randn(256, 512), torch.randn(256, 512)
    graph = bow.capture(model, batch, nn.functional.mse_loss)
    torch.set_num_threads(1)
    state = dict(model.named_parameters()), {}
    with LocalRuntime(graph, use_native=True) as runtime:
        for _ in range(2):
            try:
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                while True:
                    runtime.run(*state, batch)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        print(float(runtime.run(*state, batch).loss) == float(graph.run(*state, batch).loss))
    """
)


def test_ctrl_c_arrives_within_a_run_and_the_next_one_works() -> None:
    done = subprocess.run([*FORKED, "-c", INTERRUPTED], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split() == ["interrupted", "interrupted", "True"]


def num_threads() -> int:
    """Without those that torch built for CUDA keeps for backward passes."""
    names = []
    for path in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            names.append((path / "comm").read_text())
    return sum(not name.startswith("pt_autograd_") for name in names)


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = num_threads()
    yield
    deadline = time.monotonic() + 300
    while num_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_threads() <= before


class Parallel(nn.Module):
    """Two dropouts that do not depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.dropout = nn.Linear(4, 512), nn.Linear(4, 512), nn.Dropout(0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.dropout(self.left(inputs)) + self.dropout(self.right(inputs))
        return made[:, :2] + made[:, 2:].mean()


def test_random_operators_that_run_at_the_same_time_keep_their_streams() -> None:
    torch.manual_seed(0)
    batch = torch.randn(64, 4), torch.randint(2, (64,))
    model = Parallel()
    graph = bow.capture(model, batch, F.cross_entropy)
    priority = PrioritySchedule((1, 1), priority=(0,) * len(graph.operators))
    with LocalRuntime(graph, priority, use_native=True) as runtime:
        for seed in range(50):
            assert_same(runtime.run(*state(model), batch, seed=seed), graph.run(*state(model), batch, seed=seed))


def test_python_carries_a_schedule_out_in_an_order_that_respects_it() -> None:
    _, graph = captured("lstm")
    dependencies = dependencies_of(graph.operators)
    for seed in range(4):
        order = in_turn(random_schedule(dependencies, seed, 3), dependencies)
        place = {index: position for position, (_, index) in enumerate(order)}
        assert sorted(place) == list(range(len(dependencies)))
        assert all(place[earlier] < place[index] for index, before in enumerate(dependencies) for earlier in before)


def test_in_python_operators_have_as_many_threads_as_in_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = captured("lstm")
    count, before = len(graph.operators), torch.get_num_threads()
    seen: list[int] = []
    run = importlib.import_module("bow.graph.execution").run_operator

    def noted(*given: object) -> None:
        seen.append(torch.get_num_threads())
        torch.set_num_threads(1)  # no other threads are started for it
        run(*given)

    monkeypatch.setattr("bow.graph.execution.run_operator", noted)
    lanes = tuple(range(count)), tuple(range(count // 2, count))
    with LocalRuntime(graph, OrderedSchedule((1, 2), order=lanes), use_native=False) as runtime:
        runtime.run(*state(model), PAPER_MODELS["lstm"].batch())
    assert seen == [1] * (count // 2) + [3] * (count - count // 2)
    assert torch.get_num_threads() == before


def test_an_operator_on_several_executors_has_them_to_itself() -> None:
    model, graph = captured("lstm")
    dependencies = dependencies_of(graph.operators)
    draw = random.Random(0)
    lanes: list[list[int]] = [[], [], []]
    for index in range(len(dependencies)):  # the order of capture is a legal one
        for executor in draw.sample(range(3), draw.randint(1, 3)):
            lanes[executor].append(index)
    schedule = OrderedSchedule((1, 1, 1), order=tuple(map(tuple, lanes)))
    batch = PAPER_MODELS["lstm"].batch()
    cores = available_cores()
    with pytest.MonkeyPatch.context() as patch:  # as if there were enough cores
        patch.setattr("bow.runtime.job.core_sets", lambda threads: [cores] * len(threads))
        runtime = LocalRuntime(graph, schedule, use_native=True)
    with runtime:
        for seed in range(5):
            made = runtime.run(*state(model), batch, seed=seed, record=True)
            expected = graph.run(*state(model), batch, seed=seed)
            torch.testing.assert_close(made.loss, expected.loss)  # products round by the number of threads
            torch.testing.assert_close(made.gradients, expected.gradients)
    assert runtime.timeline is not None
    ran = {int(span.details["operator"]): span for span in runtime.timeline.spans}
    assert len(ran) == len(dependencies)
    for lane in lanes:
        for earlier, later in itertools.pairwise(lane):
            assert ran[earlier].end_ns <= ran[later].start_ns


@pytest.mark.parametrize("use_native", NATIVE)
def test_what_comes_after_another_starts_when_that_is_over(use_native: bool) -> None:
    model, graph = captured("lstm")
    dependencies = dependencies_of(graph.operators)
    ordered = random_schedule(dependencies, 0, executors=2)
    assert isinstance(ordered, OrderedSchedule)
    lanes = ordered.order
    turns = [index for _, index in in_turn(OrderedSchedule((1, 1), order=lanes), dependencies)]
    draw = random.Random(0)
    after = tuple((later, earlier) for earlier, later in (sorted_by(turns, draw.sample(turns, 2)) for _ in range(40)))
    batch = PAPER_MODELS["lstm"].batch()
    with LocalRuntime(graph, OrderedSchedule((1, 1), order=lanes, after=after), use_native=use_native) as runtime:
        made = runtime.run(*state(model), batch, seed=0, record=True)
        assert_same(made, graph.run(*state(model), batch, seed=0))
    assert runtime.timeline is not None
    spans = {int(span.details["operator"]): span for span in runtime.timeline.spans}
    assert all(spans[earlier].end_ns <= spans[later].start_ns for later, earlier in after)


def sorted_by(turns: Sequence[int], operators: Sequence[int]) -> list[int]:
    return sorted(operators, key=turns.index)


def test_small_operators_run_where_they_became_ready() -> None:
    model, graph = captured("lstm")
    dependencies = dependencies_of(graph.operators)
    small = tuple(range(0, len(dependencies), 2))
    schedule = PrioritySchedule((1, 1), priority=tuple(range(len(dependencies), 0, -1)), small=small)
    with LocalRuntime(graph, schedule, use_native=True) as runtime:
        runtime.run(*state(model), PAPER_MODELS["lstm"].batch(), seed=0, record=True)
    assert runtime.timeline is not None
    spans = {int(span.details["operator"]): span for span in runtime.timeline.spans}
    triggered = [index for index in small if dependencies[index]]
    assert triggered
    for index in triggered:
        places = {spans[before].place for before in dependencies[index]}
        assert spans[index].place in places


def test_what_is_no_graph_or_no_schedule_is_refused() -> None:
    with pytest.raises(SettingError, match=r"graph must be what .* returns, got 3"):
        bow.LocalRuntime(3, 4)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"schedule must be a bow\.Schedule, or None, got 4"):
        bow.LocalRuntime(captured("transformer")[1], 4)  # type: ignore[arg-type]
