"""Learners on threads: what is true of them besides that they follow `eager`."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import bow
from bow.devices import available_cores
from bow.engines.streams import Streams
from bow.engines.thread_pool import ThreadPool
from bow.errors import DataError, DivergenceError, LossError, ModelError
from tests.engines.pairs import Pair
from tests.grouped import of_replicas

# The compiler, when it is first imported, uses what torch itself has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")

SIZE, CLASSES = 6, 3

WARM_UP = 2
"""Rounds that run in turn, where nothing is drawn."""

two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="needs two cores; this process has one")

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def batch(seed: int, samples: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, SIZE, generator=generator, dtype=dtype)
    return inputs, torch.randint(CLASSES, (samples,), generator=generator)


def linear() -> nn.Module:
    return nn.Linear(SIZE, CLASSES)


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(SIZE, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, SIZE)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES)
    )


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(SIZE, 16), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, CLASSES))


class Replicas(bow.Replicas):
    """`bow.Replicas` with the settings of these tests, closed at the end of a `with` block."""

    def __init__(
        self, step: Callable[..., Any] | None = None, build: Callable[[], nn.Module] = linear, **settings: Any
    ):
        torch.manual_seed(0)
        given = {"learners": 2, "engine": "streams", "device": "cpu", "optimizer": SGD, **settings}
        super().__init__(build().double(), None if step else cross_entropy, step=step, **of_replicas(**given))

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def warm_up(self, batches: list[Any] | None = None) -> Replicas:
        """The rounds that run in turn."""
        for _ in range(WARM_UP):
            self.round(batches or [batch(100 + j) for j in range(self.learners)])
        return self


def rounds(replicas: bow.Replicas, number: int, start: int = 0) -> Tensor:
    return torch.stack(
        [replicas.round([batch(10 * t + j) for j in range(replicas.learners)]) for t in range(start, start + number)]
    )


def places() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("bow place")]


# --- the same trajectory as eager


@pytest.mark.parametrize("build", [with_batch_norm, convolution, with_dropout])
@pytest.mark.parametrize(
    "sync", [bow.SMA, functools.partial(bow.LocalSGD, every=3), bow.SSGD, bow.ASGD], ids=lambda sync: repr(sync())
)
def test_learners_on_threads_follow_eager(build: Callable[[], nn.Module], sync: Callable[[], Any]) -> None:
    with Pair("streams", build, learners=3, sync=sync) as pair:
        for t in range(8):
            pair.round([batch(10 * t + j) for j in range(3)])
        assert places(), "nothing ran on a thread"


def test_learners_that_come_and_go_follow_eager() -> None:
    with Pair("streams", with_batch_norm, learners=1) as pair:
        for t, learners in enumerate([1, 1, 2, 2, 4, 4, 3, 1, 1]):
            for training in pair.trainings:
                training.resize(learners)
            pair.round([batch(10 * t + j, 8 - t % 2) if j != 2 else None for j in range(learners)])
            assert len(places()) <= min(learners, len(available_cores()))
        assert places()


def test_a_learner_that_sits_out_leaves_no_gradient_of_an_earlier_round() -> None:
    with Pair("streams", with_batch_norm, learners=3, sync=bow.SSGD) as pair:
        for t in range(6):
            pair.round([batch(10 * t + j) if t % 2 == 0 or j != t % 3 else None for j in range(3)])
        assert places()


def test_stacked_batches_and_any_pytree_are_batches_too() -> None:
    def step(model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        loss = sample["weight"] * cross_entropy(model(sample["x"]), sample["y"])
        return loss, {"twice": 2 * loss}

    x, y = (torch.stack(pair) for pair in zip(batch(0), batch(1), strict=True))
    listed = [{"x": x[j], "y": y[j], "weight": 0.5} for j in range(2)]
    stacked = {"x": x, "y": y, "weight": torch.tensor([0.5, 0.5])}
    with Replicas(step) as replicas:
        for given in (listed, stacked) * 4:
            losses = replicas.round(given)
            torch.testing.assert_close(replicas.last.metrics["twice"].double(), 2 * losses, rtol=1e-6, atol=0)
        assert places()


# --- random numbers


class Draws(nn.Module):
    """Draws by operators that take a generator as a keyword, as an argument, and not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * torch.randn_like(x) + 0.1 * torch.rand(x.shape, dtype=x.dtype)
        x = torch.native_dropout(nn.functional.rrelu(x, training=True), 0.3, True)[0]
        return self.linear(x[torch.randperm(len(x))])


@pytest.mark.parametrize("build", [with_dropout, Draws])
def test_random_numbers_are_those_of_eager_and_differ_between_learners_and_rounds(
    build: Callable[[], nn.Module],
) -> None:
    with Pair("streams", build, learners=3, sync=bow.Independent) as pair:
        for _ in range(4):
            pair.round([batch(0)] * 3)
        assert pair.engine == "streams"
        losses = rounds(pair.trainings[1], 2)
        assert len(losses.unique()) == losses.numel()


def dropout_run(seed: int) -> Tensor:
    with Replicas(build=with_dropout, seed=seed) as replicas:
        rounds(replicas, 4)
        return replicas.z.clone()


def test_random_numbers_follow_from_the_seed() -> None:
    assert torch.equal(dropout_run(0), dropout_run(0))
    assert not torch.equal(dropout_run(0), dropout_run(1))


def test_a_resumed_training_draws_the_same_whatever_ran_in_turn() -> None:
    with Replicas(build=with_dropout) as one, Replicas(build=with_dropout) as other:
        rounds(one, 3)
        other.load_training_state(one.training_state())
        assert torch.equal(rounds(one, 2, start=3), rounds(other, 2, start=3))
        assert torch.equal(one.W, other.W)


def test_the_callers_random_numbers_are_left_alone() -> None:
    with Replicas(build=Draws) as replicas:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        rounds(replicas, 3)
        assert torch.equal(torch.rand(3), expected)


class Checkpointed(nn.Module):
    """Draws its dropout mask again in the backward pass, from the state of the generator that it kept."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(SIZE, 8), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


class NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + 0.1 * torch.randn_like(gradient)


class NoisyBackward(nn.Linear):
    def __init__(self) -> None:
        super().__init__(SIZE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return NoisyGradient.apply(super().forward(x))


class Reseeding(nn.Linear):
    def __init__(self) -> None:
        super().__init__(SIZE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return super().forward(x + torch.randn_like(x))


@pytest.mark.parametrize("build", [Checkpointed, NoisyBackward, Reseeding])
def test_random_numbers_that_threads_would_mix_up_make_learners_run_in_turn(build: Callable[[], nn.Module]) -> None:
    with Pair("streams", build, learners=2) as pair:
        with pytest.warns(UserWarning, match="the learners run one after another"):
            pair.round([batch(0), batch(1)])
        for t in range(1, 4):
            pair.round([batch(10 * t + j) for j in range(2)])
        assert pair.engine == "streams (in turn)"
        assert [event.event for event in pair.trainings[1].loop.take_events()] == ["engine changed"]


def test_a_generator_of_the_models_own_makes_learners_run_in_turn() -> None:
    generator = torch.Generator().manual_seed(0)

    def step(model: nn.Module, sample: Any) -> Tensor:
        noise = torch.randn(sample[0].shape, generator=generator, dtype=torch.float64)
        return cross_entropy(model(sample[0] + noise), sample[1])

    with Replicas(step) as replicas:
        with pytest.warns(UserWarning, match="one after another"):
            replicas.warm_up()
        assert replicas.engine == "streams (in turn)"


def test_checkpointing_without_random_numbers_runs_on_threads() -> None:
    def build() -> nn.Module:
        model = Checkpointed()
        model.block[1] = nn.Tanh()  # type: ignore[index]
        return model

    with Pair("streams", build, learners=2) as pair:
        for t in range(4):
            pair.round([batch(10 * t + j) for j in range(2)])
        assert pair.engine == "streams"


def test_a_compiled_task_that_draws_runs_in_turn() -> None:
    with torch.compiler.set_stance("force_eager"), Replicas(build=with_dropout, compile=True) as replicas:
        with pytest.warns(UserWarning, match="one after another"):
            replicas.warm_up()
        assert replicas.engine == "streams (in turn)"


def test_a_task_that_begins_to_draw_later_is_told_of_and_follows_the_seed_from_then_on() -> None:
    noise = {"scale": 0.0}

    def step(model: nn.Module, sample: Any) -> Tensor:
        extra = noise["scale"] * torch.randn_like(sample[0]) if noise["scale"] else 0
        return cross_entropy(model(sample[0] + extra), sample[1])

    with Replicas(step) as replicas, Replicas(step, engine="eager") as eager:
        rounds(replicas, 2)
        noise["scale"] = 0.1
        with pytest.warns(UserWarning, match="in round 2 for the first time"):
            rounds(replicas, 1)
        eager.load_training_state(replicas.training_state())
        torch.testing.assert_close(rounds(replicas, 3, start=3), rounds(eager, 3, start=3), rtol=0, atol=1e-10)
        assert replicas.engine == "streams"


def test_compiled_tasks_follow_eager_and_nothing_is_compiled_on_a_thread() -> None:
    counters.clear()
    stance = torch.compiler.set_stance("default", force_backend="aot_eager")
    with stance, Pair("streams", with_batch_norm, learners=2, compile=True) as pair:
        pair.round([batch(0), batch(1)])
        graphs = counters["stats"]["unique_graphs"]
        assert graphs >= 1
        for t in range(1, 4):
            pair.round([batch(10 * t + j) for j in range(2)])
        assert counters["stats"]["unique_graphs"] == graphs
        assert pair.engine == "streams"
        assert places()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # the compiler's
@pytest.mark.parametrize("draws", [False, True])
def test_compiled_functions_in_a_model_run_as_in_eager(draws: bool) -> None:
    @functools.partial(torch.compile, fullgraph=True, backend="eager")
    def activation(x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5) if draws else torch.tanh(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = with_batch_norm()

        def forward(self, x: Tensor) -> Tensor:
            return activation(self.layers(x))

    counters.clear()
    with Pair("streams", Model, learners=2) as pair:
        pair.trainings.reverse()  # whoever compiles first
        pair.schedulers.reverse()
        for t in range(4):
            pair.round([batch(10 * t + j) for j in range(2)])
        assert pair.trainings[0].engine == "streams"
        assert places()
    assert counters["stats"]["unique_graphs"] >= 1


# --- places


PATIENCE_S = 300.0
"""How long tasks wait for each other before the test fails."""


def observed(see: Callable[[], Any], learners: int) -> list[Any]:
    """What the learning tasks of one round on threads see; the first task of a place waits for those of the others."""
    seen: list[Any] = []
    changed = threading.Condition()
    places = min(learners, len(available_cores()))

    def step(model: nn.Module, sample: Any) -> Tensor:
        with changed:
            seen.append(see())
            changed.notify_all()
            if threading.current_thread() is not threading.main_thread():
                assert changed.wait_for(lambda: len(seen) >= places, PATIENCE_S)
        return cross_entropy(model(sample[0]), sample[1])

    with Replicas(step, learners=learners) as replicas:
        replicas.warm_up()
        seen.clear()
        rounds(replicas, 1)
    return seen


@two_cores
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_learners_are_pinned_to_cores_of_their_own() -> None:
    before = os.sched_getaffinity(0)
    sets = observed(lambda: frozenset(os.sched_getaffinity(0)), learners=2)
    assert len(sets) == 2
    assert not sets[0] & sets[1]
    assert sets[0] | sets[1] <= before
    assert os.sched_getaffinity(0) == before


def test_learners_beyond_the_cores_share_them() -> None:
    cores = len(available_cores())
    threads = observed(lambda: threading.current_thread().name, learners=cores + 2)
    assert len(threads) == cores + 2
    assert len(set(threads)) == cores


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
@two_cores
def test_rounds_that_run_in_turn_have_as_many_threads_as_those_on_places() -> None:
    seen = []

    def step(model: nn.Module, sample: Any) -> Tensor:
        seen.append(torch.get_num_threads())
        return cross_entropy(model(sample[0]), sample[1])

    with Replicas(step) as replicas:
        replicas.warm_up()
    assert seen == [1] * 2 * WARM_UP
    assert torch.get_num_threads() == 2


@two_cores
@pytest.mark.usefixtures("_two_threads")
def test_torchs_threads_are_shared_among_the_places_and_the_callers_stay() -> None:
    assert observed(torch.get_num_threads, learners=1) == [2]
    assert observed(torch.get_num_threads, learners=2) == [1, 1]
    assert torch.get_num_threads() == 2
    fresh: list[int] = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [2]


def test_threads_end_when_the_engine_is_closed_and_start_again() -> None:
    replicas = Replicas()
    rounds(replicas, WARM_UP + 1)
    assert places()
    replicas.close()
    assert not places()
    rounds(replicas, 1)
    assert places()
    replicas.close()
    assert not places()


def test_threads_of_an_engine_that_nobody_closed_end_with_it() -> None:
    replicas = Replicas()
    rounds(replicas, WARM_UP + 1)
    threads = places()
    assert threads
    del replicas
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_learners_that_come_and_go_leave_no_threads_behind() -> None:
    with Replicas(learners=1) as replicas:
        for _ in range(5):
            rounds(replicas, 2)
            replicas.resize(replicas.learners + 1)
            rounds(replicas, 2)
            replicas.resize(replicas.learners - 1)
        assert len(places()) <= 1
    assert not places()


class Meeting:
    """A step in which the tasks of two learners wait for each other, once `together` is set."""

    def __init__(self) -> None:
        self.together = False
        self.threads: set[str] = set()
        self._both = threading.Barrier(2, timeout=PATIENCE_S)

    def __call__(self, model: nn.Module, sample: Any) -> Tensor:
        self.threads.add(threading.current_thread().name)
        if self.together:
            self._both.wait()
        return cross_entropy(model(sample[0]), sample[1])


@two_cores
def test_two_learners_on_two_cores_run_at_the_same_time() -> None:
    step = Meeting()
    with Replicas(step) as replicas:
        replicas.warm_up()
        assert step.threads == {threading.main_thread().name}  # the first rounds run in turn
        step.threads.clear()
        step.together = True
        rounds(replicas, 1)
    assert len(step.threads) == 2


@two_cores
def test_what_ran_when_can_be_recorded() -> None:
    step = Meeting()
    with Replicas(step) as replicas:
        replicas.warm_up()
        step.together = True
        replicas.timeline.start()
        first = replicas.rounds
        rounds(replicas, 2)
        tasks = [span for span in replicas.timeline.take().spans if span.name == "learning task"]
        spans = sorted(tasks, key=lambda span: (span.details["round"], span.details["learner"]))
    seen = [(span.details["round"], span.details["learner"]) for span in spans]
    assert seen == [(first, 0), (first, 1), (first + 1, 0), (first + 1, 1)]
    assert [span.place for span in spans] == ["place 0", "place 1"] * 2
    assert spans[0].start_ns < spans[1].end_ns
    assert spans[1].start_ns < spans[0].end_ns


# --- mistakes


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (lambda m, b: cross_entropy(m(b[0]), b[1], reduction="none"), LossError, r"shape \(8,\); take its mean"),
        (lambda m, b: b[0].mean(), LossError, "does not depend on the model"),
        (lambda m, b: cross_entropy(m(b[0]), b[1] + 5), DataError, "index is out of range"),
        (lambda m, b: m(b[0]).nonsense(), AttributeError, "nonsense"),
        (lambda m, b: m(b[0].float()).mean(), RuntimeError, "dtype"),
    ],
    ids=["vector", "constant", "label", "attribute", "runtime"],
)
def test_errors_of_a_learning_task_are_those_of_eager_and_training_goes_on(step, error, message: str) -> None:
    wrong = {"from": None}

    def sometimes(model: nn.Module, sample: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() and wrong["from"]:
            return step(model, sample)
        return cross_entropy(model(sample[0]), sample[1])

    with Replicas(sometimes) as replicas:
        replicas.warm_up()
        before = replicas.W.clone()
        wrong["from"] = True
        with pytest.raises(error, match=message):
            rounds(replicas, 1)
        assert torch.equal(replicas.W, before)
        assert replicas.rounds == WARM_UP
        wrong["from"] = None
        assert rounds(replicas, 2).isfinite().all()


def test_sparse_gradients_are_refused_with_the_remedy() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 3))

    sample = torch.zeros(8, 2, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    with Replicas(build=build) as replicas, pytest.raises(ModelError, match="sparse=False"):
        replicas.round([sample, sample])


class Steps:
    """Steps that do as they are told, by learner; the learner is the label of the first sample."""

    def __init__(self) -> None:
        self.actions: dict[int, Callable[[], object]] = {}
        self.ended: list[int] = []
        self._changed = threading.Condition()

    def __call__(self, model: nn.Module, sample: Any) -> Tensor:
        learner = int(sample[1][0])
        try:
            self.actions.get(learner, lambda: None)()
        finally:
            with self._changed:
                self.ended.append(learner)
                self._changed.notify_all()
        return cross_entropy(model(sample[0]), sample[1])

    def wait_for(self, learner: int, times: int = 1) -> None:
        """Until so many tasks of a learner have ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended.count(learner) >= times, PATIENCE_S)

    @staticmethod
    def batches(learners: int) -> list[tuple[Tensor, Tensor]]:
        return [(batch(j)[0], torch.full((8,), j)) for j in range(learners)]


def failing(error: BaseException, *before: Callable[[], object]) -> Callable[[], None]:
    def fail() -> None:
        for wait in before:
            wait()
        raise error

    return fail


@two_cores
def test_the_first_learners_error_is_raised_and_all_tasks_have_ended_by_then() -> None:
    steps = Steps()
    with Replicas(steps) as replicas:
        replicas.warm_up(steps.batches(2))
        steps.ended.clear()
        both = threading.Barrier(2, timeout=PATIENCE_S).wait
        steps.actions = {
            0: failing(ValueError("of learner 0"), both, lambda: steps.wait_for(1)),
            1: failing(ValueError("of learner 1"), both),
        }
        with pytest.raises(ValueError, match="of learner 0"):
            replicas.round(steps.batches(2))
        assert steps.ended == [1, 0]
        steps.actions = {0: lambda: (both(), steps.wait_for(1, times=2)), 1: failing(ValueError("of learner 1"), both)}
        with pytest.raises(ValueError, match="of learner 1"):
            replicas.round(steps.batches(2))
        assert sorted(steps.ended) == [0, 0, 1, 1]
        steps.actions = {}
        assert replicas.round(steps.batches(2)).isfinite().all()


@pytest.mark.usefixtures("_one_place")
def test_tasks_that_had_not_begun_when_another_failed_do_not_run() -> None:
    steps = Steps()
    with Replicas(steps, learners=3) as replicas:
        replicas.warm_up(steps.batches(3))
        steps.ended.clear()
        steps.actions = {0: failing(ValueError("of learner 0"))}
        with pytest.raises(ValueError, match="of learner 0"):
            replicas.round(steps.batches(3))
        assert steps.ended == [0]


def test_an_error_leaves_nothing_of_the_round_in_memory() -> None:
    def fail() -> None:
        raise ValueError("mine")

    steps = Steps()
    with Replicas(steps) as replicas:
        replicas.warm_up(steps.batches(2))
        steps.actions = {1: fail}
        batches = steps.batches(2)
        kept = [weakref.ref(inputs) for inputs, _ in batches]
        gc.collect()
        gc.disable()  # what lives on lives in a circle
        try:
            with pytest.raises(ValueError, match="mine"):
                replicas.round(batches)
            del batches
            give_up = time.monotonic() + PATIENCE_S
            while any(reference() is not None for reference in kept):  # the threads are on their way to their queues
                assert time.monotonic() < give_up
                time.sleep(0.01)
        finally:
            gc.enable()


def test_an_interrupt_waits_for_running_tasks_and_training_goes_on() -> None:
    steps = Steps()
    with Replicas(steps, learners=1) as replicas:
        replicas.warm_up(steps.batches(1))
        steps.ended.clear()

        def interrupt() -> None:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.2)

        steps.actions = {0: interrupt}
        with pytest.raises(KeyboardInterrupt):
            replicas.round(steps.batches(1))
        assert steps.ended == [0]
        steps.actions = {}
        assert replicas.round(steps.batches(1)).isfinite().all()


def test_warnings_of_a_learning_task_arrive() -> None:
    def warn() -> None:
        warnings.warn("from a learning task", RuntimeWarning, stacklevel=1)

    steps = Steps()
    with Replicas(steps) as replicas:
        replicas.warm_up(steps.batches(2))
        steps.actions = {1: warn}
        with pytest.warns(RuntimeWarning, match="from a learning task"):
            replicas.round(steps.batches(2))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="from a learning task"):
                replicas.round(steps.batches(2))


def test_a_learner_that_diverges_starts_again_as_in_eager() -> None:
    with Pair("streams", with_batch_norm, learners=3) as pair:
        pair.round([batch(j) for j in range(3)])
        poisoned = batch(5)[0] * float("nan"), batch(5)[1]
        with pytest.warns(UserWarning, match="learner 1's loss was nan in round 1: it restarts"):
            pair.round([batch(3), poisoned, batch(4)])
        pair.round([batch(10 + j) for j in range(3)])


# --- first come, first served


FREE = {"dispatch": "first_come"}


@pytest.mark.sample(3)
@pytest.mark.usefixtures("_one_place")
@pytest.mark.parametrize("build", [with_batch_norm, with_dropout])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("optimizer", [SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
@pytest.mark.parametrize(
    "sync", [bow.SMA(every=4), bow.LocalSGD(every=3), bow.DiLoCo(every=4), bow.Independent()], ids=repr
)
def test_on_one_place_learners_take_turns_and_all_is_as_in_eager(
    build: Any, sync: Any, optimizer: Any, clip_norm: Any
) -> None:
    settings = {"build": build, "learners": 3, "sync": sync, "optimizer": optimizer, "clip_norm": clip_norm}
    batches = [batch(i) for i in range(3 * 17 + 2)]
    with Replicas(**settings, **FREE) as free, Replicas(**settings, engine="eager") as eager:
        losses = [one.run(iter(batches), 18) for one in (free, eager)]
        assert places()
        torch.testing.assert_close(*losses, rtol=0, atol=1e-10, equal_nan=True)
        torch.testing.assert_close(free.W, eager.W, rtol=0, atol=1e-10)
        torch.testing.assert_close(free.z, eager.z, rtol=0, atol=1e-10)
        buffers = [dict(one.central.named_buffers()) for one in (free, eager)]
        torch.testing.assert_close(*buffers, rtol=0, atol=1e-10)
        assert free.rounds == eager.rounds == 18


@pytest.mark.parametrize("sync", [bow.SMA(), bow.SSGD(), bow.ASGD()], ids=repr)
def test_where_every_round_synchronises_first_come_is_fixed(sync: Any) -> None:
    with Replicas(sync=sync, **FREE) as free, Replicas(sync=sync, engine="eager") as eager:
        assert free.loop.period == 1
        torch.testing.assert_close(rounds(free, 5), rounds(eager, 5), rtol=0, atol=1e-10)
        torch.testing.assert_close(free.z, eager.z, rtol=0, atol=1e-10)


@two_cores
def test_a_slow_learner_gets_fewer_batches_and_nobody_waits_before_the_synchronisation_task() -> None:
    begun: list[str] = []
    changed = threading.Condition()

    def step(model: nn.Module, sample: Any) -> Tensor:
        name = threading.current_thread().name
        with changed:
            begun.append(name)
            changed.notify_all()
            if len(begun) == 1 and is_free:  # the slow one: until the other has begun five
                assert changed.wait_for(lambda: len(begun) - begun.count(name) >= 5, PATIENCE_S)
        return cross_entropy(model(sample[0]), sample[1])

    is_free = False
    with Replicas(step, sync=bow.LocalSGD(every=WARM_UP + 5), **FREE) as replicas:
        replicas.warm_up()
        assert replicas.loop.period == 5
        begun.clear()
        is_free = True
        outcomes = replicas.rounds_at_once([[batch(10 * t + j) for j in range(2)] for t in range(5)])
    taken = [outcome.taken_by for outcome in outcomes]
    assert taken[-1] is None  # in the round that is averaged everybody has a batch
    by_learner = sorted(list(itertools.chain(*taken[:-1])).count(learner) for learner in (0, 1))
    assert sum(by_learner) == 8
    assert by_learner[0] <= 3


@two_cores
def test_a_learner_steps_as_soon_as_its_gradient_is_there() -> None:
    seen: list[tuple[int, Tensor]] = []
    third = threading.Event()  # learner 0 has begun three tasks
    steps = Steps()

    def look(learner: int) -> Callable[[], None]:
        def action() -> None:
            seen.append((learner, replicas.W[learner].clone()))
            if sum(of == 0 for of, _ in seen) == 3:
                third.set()
            if learner == 1:
                assert third.wait(PATIENCE_S)

        return action

    class Sorted(Steps):
        def __call__(self, model: nn.Module, sample: Any) -> Tensor:
            learner = next(j for j in range(2) if replicas.learner(j) is model)
            steps.actions.get(learner, lambda: None)()
            return cross_entropy(model(sample[0]), sample[1])

    with Replicas(Sorted(), sync=bow.LocalSGD(every=WARM_UP + 3), **FREE) as replicas:
        replicas.warm_up()
        steps.actions = {0: look(0), 1: look(1)}
        replicas.rounds_at_once([[batch(10 * t + j) for j in range(2)] for t in range(3)])
    first = [weights for learner, weights in seen if learner == 0]
    assert len(first) == 4  # three of the four that are free, and its own of the last round
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(first))
    assert sum(learner == 1 for learner, _ in seen) == 2


def test_losses_and_metrics_come_back_by_round_and_batch() -> None:
    def step(model: nn.Module, sample: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss = 0 * model(sample[0]).mean() + sample[1][0]
        return loss, {"number": sample[1][0]}

    with Replicas(step, learners=3, sync=bow.LocalSGD(every=5), **FREE) as replicas:
        replicas.round([(batch(0)[0], torch.zeros(8, dtype=torch.int64))] * 3)
        numbered = [(batch(0)[0], torch.full((8,), i)) for i in range(14)]
        losses = replicas.run(iter(numbered), 10)
        expected = torch.cat([torch.arange(14.0), torch.tensor([torch.nan])]).view(5, 3).double()
        torch.testing.assert_close(losses, expected, equal_nan=True)
        torch.testing.assert_close(replicas.last.metrics["number"], expected[-1].float(), equal_nan=True)


@pytest.mark.usefixtures("_one_place")
def test_a_learner_that_diverges_on_its_way_starts_again_from_the_central_model() -> None:
    poisoned = batch(1)[0] * float("nan"), batch(1)[1]
    with Replicas(build=with_batch_norm, sync=bow.LocalSGD(every=8), **FREE) as replicas:
        replicas.warm_up()
        means = [replicas.learner(j)[1].running_mean.clone() for j in range(2)]
        with pytest.warns(UserWarning, match="learner 1's loss was nan in round 3: it restarts"):
            replicas.rounds_at_once([[batch(0), batch(1)], [batch(2), poisoned]])
        assert replicas.loop.num_restarts == 1
        assert torch.equal(replicas.W[1], replicas.z)
        assert not torch.equal(replicas.W[0], replicas.z)
        torch.testing.assert_close(replicas.learner(1)[1].running_mean, sum(means) / 2)
        assert [event.event for event in replicas.loop.take_events()] == ["learner restarted"]
        rounds(replicas, 2)


def test_divergence_on_the_way_can_be_an_error_or_the_end() -> None:
    poisoned = batch(1)[0] * float("nan"), batch(1)[1]
    with Replicas(sync=bow.LocalSGD(every=8), on_nan="error", **FREE) as replicas:
        replicas.warm_up()
        with pytest.raises(DivergenceError, match="loss was nan in round 3; lower the learning rate"):
            replicas.rounds_at_once([[batch(0), batch(1)], [batch(2), poisoned]])
    with Replicas(sync=bow.Independent(), **FREE) as replicas:
        replicas.warm_up()
        with pytest.warns(UserWarning, match="restarts"), pytest.raises(DivergenceError, match="all others diverged"):
            replicas.rounds_at_once([[poisoned, poisoned]] * 12)


def test_an_error_on_the_way_ends_the_period_and_training_goes_on() -> None:
    steps = Steps()
    with Replicas(steps, sync=bow.LocalSGD(every=8), **FREE) as replicas:
        replicas.warm_up(steps.batches(2))
        steps.ended.clear()
        steps.actions = {1: failing(ValueError("mine"))}
        with pytest.raises(ValueError, match="mine"):
            replicas.rounds_at_once([steps.batches(2)] * 3)
        assert len(steps.ended) < 6
        steps.actions = {}
        assert all(outcome.losses.isfinite().all() for outcome in replicas.rounds_at_once([steps.batches(2)] * 3))


def test_batches_of_a_new_shape_are_looked_at_before_learners_run_ahead() -> None:
    threads: list[tuple[int, bool]] = []

    def step(model: nn.Module, sample: Any) -> Tensor:
        threads.append((len(sample[1]), threading.current_thread() is threading.main_thread()))
        return cross_entropy(model(sample[0]), sample[1])

    with Replicas(step, sync=bow.LocalSGD(every=8), **FREE) as replicas:
        replicas.warm_up()
        threads.clear()
        sizes = [8, 8, 5, 5, 5]
        replicas.rounds_at_once([[batch(10 * t + j, size) for j in range(2)] for t, size in enumerate(sizes)])
        assert sorted(threads) == [(5, False)] * 2 + [(5, True)] * 2 * WARM_UP + [(8, False)] * 4
        assert replicas.rounds == WARM_UP + 5


def test_one_learner_has_nobody_to_run_ahead_of() -> None:
    with Replicas(learners=1, sync=bow.LocalSGD(every=8), **FREE) as replicas:
        assert replicas.loop.period == 1


def test_learners_that_had_to_fall_back_to_turns_do_not_run_ahead() -> None:
    with Replicas(build=Reseeding, sync=bow.LocalSGD(every=8), **FREE) as replicas:
        assert replicas.loop.period == 8
        with pytest.warns(UserWarning, match="one after another"):
            rounds(replicas, 1)
        assert replicas.loop.period == 1
        rounds(replicas, 2)


def test_in_a_fixed_order_nobody_asks_how_many_rounds_can_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def num_ahead(*args: Any) -> int:
        raise AssertionError("asked")

    with Replicas() as replicas:
        monkeypatch.setattr(Streams, "num_ahead", num_ahead)
        assert len(replicas.rounds_at_once([[batch(10 * t + j) for j in range(2)] for t in range(4)])) == 4


def test_large_batches_are_dealt_in_smaller_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    per_round = 2 * sum(part.nbytes for part in batch(0))
    monkeypatch.setattr("bow.training.batches.MAX_BYTES_TOGETHER", 2 * per_round)
    with Replicas(sync=bow.Independent(), **FREE) as replicas:
        at_once = replicas.rounds_at_once
        monkeypatch.setattr(Replicas, "rounds_at_once", lambda _, given: taken.append(len(given)) or at_once(given))
        losses = replicas.run((batch(i) for i in range(14)), 7)
    assert taken == [2, 2, 2, 1]
    assert losses.shape == (7, 2)


@pytest.mark.parametrize("failing_call", ["start", "wait"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_threads_that_could_not_all_be_started_leave_none(
    failing_call: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    owner = {"start": threading.Thread, "wait": threading.Event}[failing_call]
    original = getattr(owner, failing_call)

    def call(self: Any, *args: Any) -> Any:
        result = original(self, *args) if failing_call == "wait" or not calls else None
        if threading.current_thread() is threading.main_thread() and sys._getframe(1).f_code.co_name == "__init__":
            calls.append(self)
            if len(calls) == 2:
                raise error
        return result

    before, threads = set(threading.enumerate()), torch.get_num_threads()
    pool = ThreadPool([available_cores()[:1]] * 3, threads + 1)
    with monkeypatch.context() as patch:
        patch.setattr(owner, failing_call, call)
        with pytest.raises(error):
            pool._open()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert set(threading.enumerate()) == before
    assert torch.get_num_threads() == threads
    pool._open()
    assert len(places()) == 3
    pool.close()


def test_rounds_that_never_synchronise_are_handed_over_in_portions() -> None:
    with Replicas(sync=bow.Independent(), **FREE) as replicas:
        assert 1 < replicas.loop.period < 1000


@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_first_come_is_warned_about_where_it_has_no_effect(engine: str) -> None:
    with pytest.warns(UserWarning, match=f'dispatch="first_come" has no effect in engine {engine}'):
        Replicas(engine=engine, **FREE)
