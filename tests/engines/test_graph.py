"""Engine `graph`: what it captures, what it compiles, what it leaves to `eager`, and how its executors behave."""

import contextlib
import functools
import gc
import itertools
import os
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow import devices
from bow.devices import available_cores
from bow.engines import captured
from bow.engines.averaging import ModelAveraging
from bow.engines.captured import COMPILING_PAYS_S, MAX_SHAPES, compiling_pays
from bow.engines.eager import LearningTasks, SequentialTasks
from bow.engines.fused import Fused
from bow.engines.graph_round import GraphRound
from bow.engines.live_check import LiveCheck
from bow.engines.restarts import Restarts
from bow.errors import GraphError, RuntimeUnavailableError
from bow.models import LSTMLanguageModel, sequence_cross_entropy
from bow.replicas.optimizer import OptimizerRows
from tests.engines.pairs import TOLERANCE, Pair, are_equal, assert_alike, batch
from tests.forked import FORKED
from tests.graph.cases import Averaging, Branching, Remembering
from tests.grouped import of_replicas

CLASSES, FEATURES = 3, 6


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def batches(t: int, learners: int, samples: int = 4) -> list[Any]:
    return [batch(10 * t + j, samples) for j in range(learners)]


class Counting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs)


@contextlib.contextmanager
def replicas(model: nn.Module | None = None, **settings: Any) -> Iterator[bow.Replicas]:
    torch.manual_seed(0)
    settings = {"learners": 2, "engine": "graph", "device": "cpu", "seed": 3, **settings}
    if "step" not in settings:
        settings["loss"] = cross_entropy
    made = bow.Replicas(model or classifier().double(), **of_replicas(**settings))
    try:
        yield made
    finally:
        made.close()


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_round_equals_eager_bit_for_bit_where_the_optimizer_is_torchs_own() -> None:
    optimizer = functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.9)
    with (
        devices.num_threads(1),  # three learners leave each of them one, in graph
        replicas(learners=3, optimizer=optimizer) as graph,
        replicas(learners=3, optimizer=optimizer, engine="eager") as eager,
    ):
        for t in range(5):
            assert torch.equal(*(training.round(batches(t, 3)) for training in (graph, eager)))
            assert torch.equal(graph.W, eager.W)


@pytest.mark.parametrize("settings", [{"momentum": 0.0}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_sgd_and_averaging_in_one_pass_equal_torch_and_sma(settings: dict[str, Any], mu: float) -> None:
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, **settings)
    sync = bow.SMA(mu=mu, every=2)
    with (
        replicas(learners=3, optimizer=optimizer, sync=sync) as graph,
        replicas(learners=3, optimizer=optimizer, sync=sync, engine="eager") as eager,
    ):
        for t in range(6):
            for training in (graph, eager):
                training.round(batches(t, 3))
            assert_alike(graph, eager)


@pytest.mark.filterwarnings("ignore:learner 1's loss was nan")
@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        functools.partial(torch.optim.AdamW, lr=0.02, eps=1e-4),
    ],
    ids=["momentum", "adamw"],
)
@pytest.mark.parametrize("sync", [bow.Independent(), bow.LocalSGD(every=3), bow.DiLoCo(every=3)], ids=repr)
def test_learners_step_on_the_executors_in_rounds_that_do_not_average(sync: Any, optimizer: Any) -> None:
    settings = {"learners": 3, "sync": sync, "optimizer": optimizer}
    with replicas(**settings) as graph, replicas(engine="eager", **settings) as eager:
        for t in range(9):
            given = batches(t, 3)
            if t == 4:  # learner 1 starts again from z
                given[1] = torch.full_like(given[1][0], torch.nan), given[1][1]
            for training in (graph, eager):
                training.round(given)
                if t == 3:
                    training.settle()
            assert_alike(graph, eager)
        graph.timeline.start()
        graph.round(batches(9, 3))
        stepped = [span for span in graph.timeline.take().spans if span.name == "step and averaging"]
        assert stepped
        assert all(span.place.startswith("executor") for span in stepped)


class Counted(bow.LocalSGD):
    """Counts how often it is asked, keeps a tensor named as one of SMA's, and may fail when it begins."""

    def __init__(self) -> None:
        super().__init__(every=3)
        self.asked, self.fails = 0, False

    def due(self, round_index: int, learners: int) -> bool:
        self.asked += 1
        return super().due(round_index, learners)

    def start(self, rows: Any) -> None:
        rows.state["z_prev"] = torch.zeros(1, dtype=torch.float32)

    def prepare(self, rows: Any) -> None:
        if self.fails:
            raise ValueError("not now")


def test_a_synchroniser_of_the_users_own_is_asked_once_a_round_and_may_fail_before_it() -> None:
    sync = Counted()
    with replicas(sync=sync) as training:
        for t in range(5):
            training.round(batches(t, 2))
        assert sync.asked == 5
        sync.fails = True
        with pytest.raises(ValueError, match="not now"):
            training.round(batches(5, 2))
        assert training.loop.is_undone


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_and_averaging_in_one_pass_equal_torch_and_sma(kind: Any, decay: float) -> None:
    optimizer = functools.partial(kind, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=decay)
    with (
        replicas(learners=3, optimizer=optimizer, sync=bow.SMA(mu=0.5, every=2)) as graph,
        replicas(learners=3, optimizer=optimizer, sync=bow.SMA(mu=0.5, every=2), engine="eager") as eager,
    ):
        for t in range(8):
            given: list[Any] = batches(t, 3)
            if t == 2:
                given[1] = None  # a learner that sits out counts no step
            for training in (graph, eager):
                training.round(given)
            if t == 4:
                for training in (graph, eager):
                    training.optimizer.param_groups[0]["lr"] = 0.01
            assert_alike(graph, eager)
        states = [training.optimizer.state_dict()["state"] for training in (graph, eager)]
        torch.testing.assert_close(*states, rtol=0, atol=TOLERANCE)
        assert [float(each["step"]) for each in states[0].values()] == [8, 7, 8]


def test_adam_steps_on_where_torch_steps_between() -> None:
    optimizer = functools.partial(torch.optim.AdamW, lr=0.02, eps=1e-4)
    with replicas(optimizer=optimizer) as graph, replicas(optimizer=optimizer, engine="eager") as eager:
        for t in range(9):
            given = batches(t, 2)
            if t in (0, 4):  # a rare shape runs in eager, its step is torch's
                given = [(inputs[:3], targets[:3]) for inputs, targets in given]
            if t == 6:
                for training in (graph, eager):
                    training.load_state_dict(training.state_dict())
            for training in (graph, eager):
                training.round(given)
            torch.testing.assert_close(graph.W, eager.W, rtol=0, atol=TOLERANCE)


def test_a_row_that_is_longer_than_a_block_is_averaged_whole() -> None:
    wide = nn.Sequential(nn.Linear(FEATURES, 700), nn.Tanh(), nn.Linear(700, CLASSES)).double()
    with replicas(wide) as graph, replicas(wide, engine="eager") as eager:
        for t in range(3):
            for training in (graph, eager):
                training.round(batches(t, 2))
        assert graph.z.numel() > 5 * 1024
        assert_alike(graph, eager)


def test_a_model_that_cannot_be_captured_runs_in_eager_and_says_why() -> None:
    with replicas(Branching(FEATURES, CLASSES).double()) as training:
        with pytest.warns(UserWarning, match="engine graph does not work for this model .* running eager"):
            assert training.round(batches(0, 2)).isfinite().all()
        assert training.engine == "eager"
        assert [event.event for event in training.loop.take_events()] == ["engine changed"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            training.round(batches(1, 2))  # it is said once


def test_an_error_of_the_users_is_no_reason_to_fall_back() -> None:
    with replicas() as training:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            training.round([(inputs[:, :2], targets) for inputs, targets in batches(0, 2)])
        training.round(batches(0, 2))
        assert training.engine == "graph"


def test_without_a_native_runtime_learners_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> NoReturn:
        raise RuntimeUnavailableError("there is no compiler")

    monkeypatch.setattr("bow.runtime.loading._load", unavailable)
    with contextlib.ExitStack() as stack:
        with pytest.warns(UserWarning, match=r"\(there is no compiler\); running eager"):
            training = stack.enter_context(replicas())
        assert training.round(batches(0, 2)).isfinite().all()
        assert training.engine == "eager"


def test_an_operator_that_fails_is_named_and_nothing_has_changed() -> None:
    class Solving(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            made = super().forward(inputs)
            return made + torch.linalg.cholesky(inputs.T @ inputs).sum()

    def fitting(seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        inputs, targets = batch(seed, samples=FEATURES)
        return inputs * scale + torch.eye(FEATURES, dtype=torch.float64) * scale, targets

    with replicas(Solving(FEATURES, CLASSES).double()) as training:
        training.round([fitting(0), fitting(1)])
        weights = training.W.clone()
        with pytest.raises(GraphError, match=r"operator \d+, aten.linalg_cholesky_ex|aten._linalg_check_errors"):
            training.round([fitting(0), fitting(1, scale=0.0)])
        assert torch.equal(training.W, weights)
        assert training.round([fitting(2), fitting(3)]).isfinite().all()
        assert training.engine == "graph"


def test_dropout_differs_between_learners_and_rounds_and_follows_the_seed() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Dropout(0.5), nn.Linear(64, CLASSES)).double()
    still = functools.partial(torch.optim.SGD, lr=0.0)

    def losses(seed: int) -> Tensor:
        with replicas(model, optimizer=still, seed=seed) as training:
            return torch.stack([training.round([batch(0), batch(0)]) for _ in range(3)])

    first, again, other = losses(1), losses(1), losses(2)
    assert torch.equal(first, again)
    assert len(torch.cat([first, other]).unique()) == 12
    with replicas(model, optimizer=still) as training:
        before = torch.get_rng_state()
        training.round([batch(0), batch(0)])
        assert torch.equal(torch.get_rng_state(), before)


def test_a_shape_is_captured_when_it_comes_again_and_rare_ones_run_in_eager() -> None:
    with Pair("graph", classifier, learners=2) as pair:
        engine = pair.trainings[1].loop
        for t, samples in enumerate([4, 4, 3, 3, 4, 5, 3]):
            pair.round(batches(t, 2, samples))
        captured = {shape[2][0][0] for shape in engine.runner.tasks._captured}  # type: ignore[attr-defined]
        assert captured == {4, 3}
        assert engine.runner.tasks._most == MAX_SHAPES  # type: ignore[attr-defined]
        engine.runner.tasks._most = 4  # type: ignore[attr-defined]
        for t, samples in enumerate(range(6, 10)):
            pair.round(batches(t, 2, samples))
            pair.round(batches(t, 2, samples))
        assert len(engine.runner.tasks._captured) == 4  # type: ignore[attr-defined]
        assert pair.engine == "graph"


@pytest.mark.parametrize(("most", "expected"), [(16, 2), (1, 6)])
def test_what_was_made_for_a_shape_is_kept_up_to_a_limit(
    most: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[GraphRound] = []

    def counted(*arguments: Any) -> GraphRound:
        made.append(GraphRound(*arguments))
        return made[-1]

    monkeypatch.setattr("bow.engines.graph_round.GraphRound", counted)
    monkeypatch.setattr("bow.engines.graph_round.MAX_JOBS", most)
    with replicas() as graph:
        for t, samples in enumerate([4, 4, 3, 3] * 3):
            graph.round(batches(t, 2, samples))
    assert len(made) == expected


def test_learners_with_batches_of_different_shapes_share_a_round() -> None:
    with Pair("graph", classifier, learners=3) as pair:
        for t in range(6):
            sizes = [4, 4, 3] if t % 2 else [3, 4, 4]
            pair.round([batch(10 * t + j, size) for j, size in enumerate(sizes)])


def test_a_step_may_return_metrics_and_take_any_batch() -> None:
    def step(model: nn.Module, given: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = model(given["inputs"])
        right = (outputs.argmax(1) == given["targets"]).float().mean()
        return cross_entropy(outputs, given["targets"]), {"right": right}

    def as_dict(pair: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"targets": pair[1], "inputs": pair[0]}

    with replicas(step=step) as graph, replicas(step=step, engine="eager") as eager:
        for t in range(3):
            for training in (graph, eager):
                training.round([as_dict(each) for each in batches(t, 2)])
            torch.testing.assert_close(graph.last.metrics, eager.last.metrics)
        graph.round([as_dict(batch(0)), None])
        assert graph.last.metrics["right"].isnan().tolist() == [False, True]
        assert graph.engine == "graph"


POINTS = {
    "batches are there": ("graph", GraphRound, "feed", 2),
    "the executors begin": ("graph", GraphRound, "begin", 2),
    "the executors have ended": ("graph", GraphRound, "_outcome", 3),
    "restarts": ("graph", Restarts, "count", 3),
    "buffers are written": ("graph, torch steps", GraphRound, "_outcome", 3),
    "torch steps": ("graph, torch steps", OptimizerRows, "step", 3),
    "eager begins": ("eager", SequentialTasks, "learn", 2),
    "eager steps": ("eager", OptimizerRows, "step", 3),
    "eager averages": ("eager", ModelAveraging, "after_step", 3),
}
"""Engine, what Ctrl-C comes in front of in the third round, and how many rounds there are then."""


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("every", [1, 2])
def test_a_round_that_is_interrupted_is_whole_or_has_not_happened(
    point: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, owner, name, rounds = POINTS[point]
    kind = torch.optim.NAdam if "torch" in engine else torch.optim.Adam
    sync = bow.SMA(every=1 if owner is ModelAveraging else every)
    settings = {"engine": engine.partition(",")[0], "optimizer": functools.partial(kind, lr=0.01), "sync": sync}
    before = getattr(owner, name)

    def interrupted(self: Any, *arguments: Any, **given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return before(self, *arguments, **given)

    with replicas(**settings) as one, replicas(**settings) as other:
        for t in range(2):
            one.round(batches(t, 2))
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.round(batches(2, 2))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert one.rounds == rounds
        for t in range(rounds, 5):
            one.round(batches(t, 2))
        for t in range(5):
            other.round(batches(t, 2))
        states = [each.training_state() for each in (one, other)]
    assert are_equal(*states)


def interrupting(before: Any, at: int) -> Any:
    """A method behind whose call of this number the main thread hears Ctrl-C."""
    main, calls = threading.main_thread().ident, itertools.count()
    assert main is not None

    def interrupted(*arguments: Any, **given: Any) -> Any:
        made = before(*arguments, **given)
        if next(calls) == at:
            signal.pthread_kill(main, signal.SIGINT)
        return made

    return interrupted


INTERRUPTED = {"eager": (LearningTasks, "run"), "streams": (LearningTasks, "run"), "fused": (Fused, "_learn_together")}


GENERATOR = torch.Generator()


def scaled_at_random(model: nn.Module, given: Any) -> Tensor:
    return cross_entropy(model(given[0]), given[1]) * torch.rand((), generator=GENERATOR)


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("engine", INTERRUPTED)
@pytest.mark.parametrize("step", [None, scaled_at_random], ids=["", "with a generator of its own"])
def test_buffers_are_as_if_an_interrupted_round_had_not_begun(
    step: Any, engine: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (engine == "fused" and at) or (engine != "eager" and step):
        pytest.skip("there is one task; learners that learn at once draw from no generator of the step's own")
    owner, name = INTERRUPTED[engine]
    settings: dict[str, Any] = {"engine": engine, "optimizer": functools.partial(torch.optim.Adam, lr=0.01)}
    settings |= {} if step is None else {"step": step}
    with replicas(**settings) as made:
        GENERATOR.manual_seed(0)
        for t in range(3):
            made.round(batches(t, 2))
        before, drawn = made.training_state(), GENERATOR.get_state()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, interrupting(getattr(owner, name), at))
            with pytest.raises(KeyboardInterrupt):
                made.round(batches(3, 2))
        after = made.training_state()
        assert torch.equal(GENERATOR.get_state(), drawn)
        made.round(batches(3, 2))
        repeated = made.training_state()
    assert are_equal(before, after)
    with replicas(**settings) as other:
        GENERATOR.manual_seed(0)
        for t in range(4):
            other.round(batches(t, 2))
        expected = other.training_state()
    assert are_equal(repeated, expected)


@pytest.mark.parametrize("engine", ["eager", "streams"])
def test_a_step_that_fails_leaves_the_buffers_of_learners_in_front_of_it_alone(engine: str) -> None:
    def step(model: nn.Module, given: Any) -> Tensor:
        if given[1][0] < 0:
            raise ValueError("a label is missing")
        return cross_entropy(model(given[0]), given[1])

    with replicas(engine=engine, step=step) as made:
        for t in range(2):
            made.round(batches(t, 2))
        before = made.training_state()
        first, second = batches(2, 2)
        with pytest.raises(ValueError, match="a label is missing"):
            made.round([first, (second[0], second[1] - CLASSES)])
        after = made.training_state()
    assert are_equal(before, after)


@pytest.mark.parametrize(
    ("engine", "owner", "name"), [("streams", LearningTasks, "run"), ("graph", GraphRound, "collect")]
)
def test_ctrl_c_waits_for_learners_that_step_as_they_go(
    engine: str, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, index: False)
    with replicas(engine=engine, dispatch="first_come", sync=bow.SMA(every=4)) as made:
        made.rounds_at_once([batches(t, 2) for t in range(4)])
        z = made.z.clone()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, interrupting(getattr(owner, name), 2))
            with pytest.raises(KeyboardInterrupt):
                made.rounds_at_once([batches(t, 2) for t in range(4, 8)])
        assert made.rounds == 8
        assert not torch.equal(made.z, z)


def test_ctrl_c_arrives_while_the_executors_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveCheck, "is_due", lambda self, index: False)
    torch.manual_seed(0)
    wide = nn.Sequential(*(nn.Linear(512, 512) for _ in range(10)))
    given = [(torch.randn(1024, 512), torch.randn(1024, 512))]
    made = bow.Replicas(wide, nn.functional.mse_loss, learners=1, engine="graph", device="cpu")
    made.round(given)
    weights, main = made.W.clone(), threading.main_thread().ident
    assert main is not None
    before = GraphRound.run

    def running(*arguments: Any, **more: Any) -> Any:
        timer = threading.Timer(0.02, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        try:
            return before(*arguments, **more)
        finally:
            timer.join()

    with monkeypatch.context() as patched:
        patched.setattr(GraphRound, "run", running)
        with pytest.raises(KeyboardInterrupt):
            made.round(given)
    assert made.rounds == 1
    assert torch.equal(made.W, weights)
    assert made.round(given).isfinite().all()
    made.close()


def test_who_listens_for_ctrl_c_is_told_once_and_may_listen_otherwise_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []

    def listening(*_: Any) -> None:
        told.append(made.rounds)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.getsignal(signal.SIGINT)
    try:
        for name, rounds in (("begin", 1), ("_outcome", 3)):
            with replicas() as made, monkeypatch.context() as patched:
                method = getattr(GraphRound, name)
                made.round(batches(0, 2))
                made.round(batches(1, 2)) if name == "_outcome" else None
                patched.setattr(
                    GraphRound, name, lambda *given, method=method: signal.raise_signal(signal.SIGINT) or method(*given)
                )
                signal.signal(signal.SIGINT, listening)
                made.round(batches(2, 2))
                assert told.pop() == rounds
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_autocast_is_captured() -> None:
    model = classifier()
    with (
        replicas(model, precision="bfloat16") as graph,
        replicas(model, precision="bfloat16", engine="eager") as eager,
        replicas(model) as exact,
    ):
        for t in range(3):
            given = [(inputs.float(), targets) for inputs, targets in batches(t, 2)]
            losses = [training.round(given) for training in (graph, eager, exact)]
            torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-6)
            assert not torch.equal(losses[0], losses[2])


@pytest.mark.nightly
@pytest.mark.parametrize("is_expanded", [False, True])
def test_a_compiled_learning_task_follows_eager_and_says_so(is_expanded: bool) -> None:
    with (
        torch._inductor.config.patch(compile_threads=1),  # no pool of threads that outlives the test
        Pair("graph", classifier, compile=True) as pair,
    ):
        for t in range(5):
            given = batches(t, 3)
            inputs, targets = given[t % 2]
            turned = torch.complex(inputs, -inputs).conj() if t % 2 else torch.complex(inputs, inputs)
            # the same numbers, negated by a bit in some rounds
            given[t % 2] = turned.imag[:1].expand_as(inputs) if is_expanded else turned.imag, targets
            pair.round(given)
        assert pair.engine == "graph (compiled)"


def test_a_compiled_learning_task_that_fails_names_the_operator() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, CLASSES)).double()
    good = torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 1])
    with torch._inductor.config.patch(compile_threads=1), replicas(model, compile=True) as training:
        for _ in range(2):
            assert training.round([good, good]).isfinite().all()
            weights = training.W.clone()
            with pytest.raises(bow.BowError, match=r"out of range .* aten.embedding.default\(.*\) of 0"):
                training.round([good, (good[0] + 1, good[1])])
            assert torch.equal(training.W, weights)
        assert training.engine == "graph (compiled)"


def test_a_long_training_is_compiled_and_a_short_one_is_not() -> None:
    model = nn.Linear(FEATURES, CLASSES).double()
    graph = bow.capture(model, batch(0), cross_entropy)
    assert not compiling_pays(graph, None)
    assert not compiling_pays(graph, 1000)
    assert compiling_pays(graph, 10**7)
    assert COMPILING_PAYS_S > 60  # compiling takes up to that


@pytest.mark.parametrize(("shape", "pays"), [((4, 2), True), ((4, 2, 3, 3), False)])
def test_batch_norm_of_pictures_is_better_left_alone(shape: tuple[int, ...], pays: bool) -> None:
    norm = nn.BatchNorm1d(2) if len(shape) == 2 else nn.BatchNorm2d(2)
    step = (torch.randn(shape), torch.zeros(4, dtype=torch.long))
    graph = bow.capture(norm, step, lambda outputs, targets: outputs.square().mean() + 0 * targets.sum())
    assert compiling_pays(graph, 10**9) == pays


@pytest.mark.parametrize("learners", [1, 2, 3])
def test_executors_start_with_the_first_round_and_end_with_close(learners: int) -> None:
    before = num_threads()
    with replicas(learners=learners) as training:
        for _ in range(2):
            training.round(batches(0, learners))
            cores = len(os.sched_getaffinity(0))
            assert num_threads() == before + min(learners, cores) - 1  # the caller is one of them
            training.close()
            assert num_threads() == before


def test_executors_that_nobody_closed_end_with_the_replicas() -> None:
    before = num_threads()
    torch.manual_seed(0)
    training = bow.Replicas(classifier().double(), cross_entropy, learners=2, engine="graph", device="cpu")
    training.round(batches(0, 2))
    assert num_threads() == before + 1
    del training
    gc.collect()
    deadline = time.monotonic() + 300
    while num_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_threads() == before


def numbered(count: int) -> list[Any]:
    """Batches whose targets say which they are."""
    return [(torch.randn(2, FEATURES, dtype=torch.float64), torch.full((2, 1), float(j))) for j in range(count)]


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("sync", [bow.SMA(every=4), bow.LocalSGD(every=4), bow.SSGD(), bow.Independent()])
def test_first_come_takes_every_batch_once_and_every_learner_learns(sync: Any, optimizer: str) -> None:
    def step(model: nn.Module, given: Any) -> Any:
        inputs, targets = given
        return (model(inputs) ** 2).mean(), {"number": targets.mean()}

    made = {"momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), "adamw": torch.optim.AdamW}
    model = nn.Linear(FEATURES, 1).double()
    settings = {"learners": 3, "sync": sync, "dispatch": "first_come", "optimizer": made[optimizer]}
    with replicas(model, step=step, **settings) as training:
        training.run(iter(numbered(3)), rounds=1)  # captures
        start = training.W.clone()
        outcomes = []
        given = numbered(48)
        rounds = [given[t : t + 3] for t in range(0, 48, 3)]
        while rounds:
            together = min(training.loop.period, len(rounds))
            outcomes += training.rounds_at_once(rounds[:together])
            rounds = rounds[together:]
        seen = torch.cat([outcome.metrics["number"] for outcome in outcomes])
        assert seen.tolist() == list(range(48))  # by batch, whoever took it
        assert (training.W - start).abs().amax(1).gt(1e-4).all()
        assert training.rounds == 17
        assert training.engine == "graph"


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("sync", [bow.SMA(every=4), bow.LocalSGD(every=4)])
def test_first_come_on_one_core_is_eager_in_turn(sync: Any, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # With one executor the learner that has been free for longest is the next in turn: nothing depends on time.
    monkeypatch.setattr("bow.engines.graph_round.available_cores", lambda: available_cores()[:1])
    made = {
        "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "adamw": functools.partial(torch.optim.AdamW, eps=1e-4),
    }
    settings = {"learners": 3, "sync": sync, "optimizer": made[optimizer]}
    with replicas(dispatch="first_come", **settings) as free, replicas(engine="eager", **settings) as eager:
        given = [batch(j) for j in range(36)]
        for training in (free, eager):
            losses = training.run(iter(given), rounds=12)
            assert losses.shape == (12, 3)
        assert_alike(free, eager)
        buffers = [dict(training.central.named_buffers()) for training in (free, eager)]
        torch.testing.assert_close(*buffers, rtol=0, atol=TOLERANCE)


def test_first_come_is_recorded_on_the_executors_that_ran_it() -> None:
    with replicas(dispatch="first_come", sync=bow.LocalSGD(every=8)) as training:
        training.run(iter([batch(j) for j in range(16)]), rounds=8)
        training.timeline.start()
        training.run(iter([batch(j) for j in range(16)]), rounds=8)
        timeline = training.timeline.take()
    executors = {span.place for span in timeline.spans if span.place.startswith("executor")}
    assert len(executors) == min(2, len(available_cores()))
    for place in executors:
        own = sorted((span for span in timeline.spans if span.place == place), key=lambda span: span.start_ns)
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(own))


def test_first_come_an_error_ends_the_rounds_and_training_goes_on() -> None:
    with replicas(dispatch="first_come", sync=bow.SMA(every=3)) as training:
        training.run(iter([batch(j) for j in range(6)]), rounds=3)
        wrong = batch(0)[0], torch.full((4,), CLASSES)
        with pytest.raises(bow.BowError, match="out of range"):
            training.run(iter([batch(0), wrong, batch(1), batch(2), batch(3), batch(4)]), rounds=3)
        assert training.run(iter([batch(j) for j in range(6)]), rounds=3).isfinite().all()


def test_a_learner_that_diverges_ahead_of_the_others_starts_again_from_the_central_model() -> None:
    with replicas(dispatch="first_come", sync=bow.SMA(every=4)) as training:
        training.run(iter([batch(j) for j in range(8)]), rounds=4)
        infinite = torch.full_like(batch(0)[0], torch.inf), batch(0)[1]
        with pytest.warns(UserWarning, match="restarts from the central model"):
            training.run(iter([infinite, *(batch(j) for j in range(7))]), rounds=4)
        assert training.loop.num_restarts == 1
        assert training.W.isfinite().all()


@pytest.mark.parametrize("sync", [bow.SMA, functools.partial(bow.LocalSGD, every=4)])
def test_buffers_that_the_model_assigns_follow_eager_through_rounds_of_other_shapes(sync: Any) -> None:
    with Pair("graph", Averaging, learners=2, sync=sync) as pair:
        for t, samples in enumerate([4, 4, 3, 4, 4, 3, 3, 4, 4, 4]):
            pair.round(batches(t, 2, samples))
        assert pair.trainings[1].learner(0).mean.abs().max() > 0.01
        assert pair.engine == "graph"


class Conjugates(nn.Linear):
    """Two buffers and a gradient are, or become, tensors whose conjugation or negation is a bit."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.turn = nn.Parameter(torch.tensor([0.6, 0.8]))
        self.register_buffer("plain", torch.zeros(FEATURES, dtype=torch.complex128))
        self.register_buffer("conjugate", torch.zeros(FEATURES, dtype=torch.complex128).conj())
        self.register_buffer("imaginary", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        turned = torch.complex(inputs, inputs * self.weight[0])
        mean = turned.detach().mean(0)
        self.plain, self.conjugate, self.imaginary = mean.conj(), mean, mean[:1].conj().imag
        turned = turned * torch.view_as_complex(self.turn).conj()
        return super().forward((turned * torch.complex(torch.zeros_like(self.scale), self.scale).conj()).imag)


def test_tensors_that_are_conjugated_or_negated_by_a_bit_follow_eager() -> None:
    with Pair("graph", Conjugates, learners=2) as pair:
        for t in range(3):
            pair.round(batches(t, 2))
        assert pair.engine == "graph"


def test_copies_of_weights_are_made_before_the_executors_step() -> None:
    def step(model: nn.Module, given: Any) -> Tensor:
        return model(given).square().mean()

    model = Remembering(300)
    with contextlib.ExitStack() as closing:
        trainings = [
            closing.enter_context(replicas(model, learners=3, engine=engine, step=step))
            for engine in ("eager", "graph")
        ]
        for t in range(8):
            given = [torch.randn(4, 300, generator=torch.Generator().manual_seed(10 * t + j)) for j in range(3)]
            for training in trainings:
                training.round(given)
            for j in range(3):
                expected, made = (dict(training.learner(j).named_buffers()) for training in trainings)
                torch.testing.assert_close(made, expected, rtol=0, atol=1e-6)
        assert trainings[1].engine == "graph"


@pytest.mark.parametrize("sizes", [(8, 6), (6, 8)], ids=str)
def test_learners_with_batches_of_two_shapes_may_have_different_metrics(sizes: tuple[int, int]) -> None:
    def step(model: nn.Module, given: Any) -> tuple[Tensor, dict[str, Tensor]]:
        some = {"some": given[0].mean()} if len(given[0]) == 6 else {}
        return cross_entropy(model(given[0]), given[1]), {"mean": given[0].mean(), **some}

    with replicas(step=step, learners=2) as training:
        for t in range(4):
            training.round([batch(2 * t + j, size) for j, size in enumerate(sizes)])
            metrics = training.last.metrics
            assert metrics["some"].isnan().tolist() == [size == 8 for size in sizes]
            assert metrics["some"].nansum() == metrics["mean"][sizes.index(6)]
        assert training.engine == "graph"


@pytest.mark.parametrize("engine", ["streams", "graph"])
def test_a_metric_that_is_a_buffer_has_its_value_in_that_task(engine: str) -> None:
    def step(model: nn.Module, given: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return cross_entropy(model(given[0]), given[1]), {"calls": model.calls}

    with replicas(
        Counting(FEATURES, CLASSES).double(), engine=engine, step=step, sync=bow.SMA(every=4), dispatch="first_come"
    ) as training:
        calls: list[list[float]] = [[], []]
        for period in range(3):
            for outcome in training.rounds_at_once([batches(4 * period + t, 2) for t in range(4)]):
                for learner, value in zip(outcome.taken_by or range(2), outcome.metrics["calls"].tolist(), strict=True):
                    calls[learner].append(value)
        assert [sorted(own) for own in calls] == [list(range(1, len(own) + 1)) for own in calls]
        assert training.engine == engine


def test_a_buffer_that_becomes_another_kind_of_tensor_is_left_to_eager() -> None:
    class Growing(nn.Linear):
        def __init__(self) -> None:
            super().__init__(FEATURES, CLASSES)
            self.register_buffer("seen", torch.zeros(1, FEATURES))

        def forward(self, inputs: Tensor) -> Tensor:
            self.seen = torch.cat([self.seen, inputs.detach()[:1]])
            return super().forward(inputs)

    with replicas(Growing().double()) as training:
        with pytest.warns(UserWarning, match="changes buffer 'seen' from float64.* running eager"):
            training.round(batches(0, 2))
        assert training.learner(0).seen.shape == (2, FEATURES)


def test_numbers_of_the_step_and_attributes_of_the_model_are_followed() -> None:
    beta = [1.0]

    class Scaling(nn.Linear):
        factor = 1.0

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = Scaling(FEATURES, CLASSES).double()
        model.factor = 1.0
        return model

    def step(model: Any, given: Any) -> Tensor:
        inputs, targets = given
        return beta[0] * model.factor * cross_entropy(model(inputs), targets)

    with replicas(build(), step=step) as graph, replicas(build(), step=step, engine="eager") as eager:
        for t in range(6):
            if t == 2:
                beta[0] = 0.5
            if t == 4:
                for training in (graph, eager):
                    for j in range(2):
                        training.learner(j).factor = 3.0
            losses = [training.round(batches(t, 2)) for training in (graph, eager)]
            torch.testing.assert_close(*losses, rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(graph.W, eager.W, rtol=0, atol=TOLERANCE)
        assert graph.engine == "graph"


def test_numbers_that_change_between_periods_are_followed_too() -> None:
    factor = [1.0]

    def step(model: nn.Module, given: Any) -> Any:
        loss = factor[0] * cross_entropy(model(given[0]), given[1])
        return loss, {"factor": loss.detach() * 0 + factor[0]}

    with replicas(step=step, dispatch="first_come", sync=bow.LocalSGD(every=3)) as training:
        for value in (1.0, 2.0):
            factor[0] = value
            training.run(iter([batch(j) for j in range(6)]), rounds=3)
            training.run(iter([batch(j) for j in range(6)]), rounds=3)
            assert training.last.metrics["factor"].tolist() == [value, value]
        assert training.engine == "graph"


SCALE = 1.0


def scaled(loss: Tensor) -> Tensor:
    return loss * SCALE


def test_globals_of_functions_that_the_step_calls_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, given: Any) -> Tensor:
        return scaled(cross_entropy(model(given[0]), given[1]))

    still = functools.partial(torch.optim.SGD, lr=0.0)
    with replicas(step=step, optimizer=still) as training:
        before = training.round(batches(0, 2))
        monkeypatch.setitem(globals(), "SCALE", 2.0)
        torch.testing.assert_close(training.round(batches(0, 2)), 2 * before)
        assert training.engine == "graph"


def test_a_step_that_counts_in_python_is_left_to_eager() -> None:
    count = [0]

    def step(model: nn.Module, given: Any) -> Tensor:
        count[0] += 1
        return cross_entropy(model(given[0]), given[1]) * min(1.0, count[0] / 10)

    with replicas(step=step) as training:
        with pytest.warns(UserWarning, match="the step changes 'count' in Python.* running eager"):
            training.round(batches(0, 2))
        before = count[0]
        training.round(batches(1, 2))
        assert count[0] == before + 2


def test_a_value_that_is_not_a_number_has_not_changed() -> None:
    model = classifier().double()
    model.best = float("nan")
    with replicas(model) as training:
        for t in range(12):
            training.round(batches(t, 2))
        assert training.engine == "graph"


def test_a_number_that_changes_every_round_ends_in_eager_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MAX_CHANGES", 2)
    beta = [1.0]

    def step(model: nn.Module, given: Any) -> Tensor:
        return beta[0] * cross_entropy(model(given[0]), given[1])

    with replicas(step=step) as training, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(5):
            beta[0] *= 0.9
            training.round(batches(t, 2))
        assert training.engine == "eager"
    (warning,) = caught
    assert "'beta' (a Python value of the step) changes too often" in str(warning.message)


def test_a_dictionary_in_another_order_is_not_taken_for_the_same() -> None:
    def step(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(given["inputs"]), given["targets"])

    def pair(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(3, 2, generator=generator, dtype=torch.float64) for name in ("inputs", "targets")}

    model = nn.Linear(2, 2).double()
    with replicas(model, step=step) as graph, replicas(model, step=step, engine="eager") as eager:
        for t in range(4):
            given = [pair(2 * t), pair(2 * t + 1)]
            if t % 2:
                given = [dict(reversed(each.items())) for each in given]
            losses = [training.round(given) for training in (graph, eager)]
            torch.testing.assert_close(*losses, rtol=0, atol=TOLERANCE)


def test_a_batch_with_something_that_is_no_tensor_runs_in_eager() -> None:
    def step(model: nn.Module, given: Any) -> Tensor:
        return cross_entropy(model(given[0]), given[1]) * len(given[2])

    given = [(*each, {"a", "b"}) for each in batches(0, 2)]
    message = "a batch contains something that is not a dense tensor.* running eager"
    with replicas(step=step) as training, pytest.warns(UserWarning, match=message):
        assert training.round(given).isfinite().all()


def test_the_callers_autocast_reaches_all_learners_or_none() -> None:
    model = classifier()
    given = [(inputs.float(), targets) for inputs, targets in batches(0, 2)]
    given[1] = given[0]
    with replicas(model, optimizer=functools.partial(torch.optim.SGD, lr=0.0)) as training:
        plain = training.round(given)
        with torch.autocast("cpu", torch.bfloat16):
            reduced = training.round(given)
            reduced = training.round(given)
        again = training.round(given)
    assert plain[0] == plain[1] == again[0] == again[1]
    assert reduced[0] == reduced[1] != plain[0]


def test_hooks_of_the_optimizer_are_called_also_when_they_come_later() -> None:
    called: list[int] = []
    with replicas() as training:
        training.round(batches(0, 2))
        training.optimizer.register_step_post_hook(lambda *args: called.append(1))
        for t in range(2):
            training.round(batches(1 + t, 2))
        assert called == [1, 1]
        assert training.engine == "graph"


FORGOTTEN = """
import gc, torch, bow
from torch import nn
model = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2))
good, wrong = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 1], [2, 4]])
labels = torch.tensor([0, 1])
replicas = bow.Replicas(model, nn.functional.cross_entropy, learners=2, engine="graph", device="cpu")
replicas.round([(good, labels)] * 2)
try:
    replicas.round([(good, labels), (wrong, labels)])
except bow.BowError as error:
    print("out of range" in str(error))
del replicas, wrong
gc.collect()
print("ended")
"""


def test_replicas_that_are_forgotten_after_an_error_do_not_hang() -> None:
    done = subprocess.run([*FORKED, "-c", FORGOTTEN], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.split() == ["True", "ended"]


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_an_lstm_is_eagers_bit_for_bit_and_compiled_to_rounding(compile: bool) -> None:
    def trained(engine: bow.Engine) -> bow.Replicas:
        torch.manual_seed(0)
        model = LSTMLanguageModel(20, 16, 32, layers=2)
        # RMSprop is stepped by torch's own code in both; it makes much of rounding.
        optimizer = functools.partial(torch.optim.SGD, lr=0.5) if compile else functools.partial(torch.optim.RMSprop)
        replicas = bow.Replicas(model, sequence_cross_entropy, optimizer=optimizer, learners=2, engine=engine)
        for _ in range(6):
            replicas.round([(torch.randint(20, (3, 8)), torch.randint(20, (3, 8))) for _ in range(2)])
        return replicas

    own, eager = trained(bow.Engine("graph", compile=compile)), trained(bow.Engine("eager"))
    assert own.engine == ("graph (compiled)" if compile else "graph")
    for one, other in zip(own.central.parameters(), eager.central.parameters(), strict=True):
        if compile:
            torch.testing.assert_close(one, other)
        else:
            assert torch.equal(one, other)
    own.close()


def test_an_lstm_that_the_rule_compiles_is_captured_for_the_strides_of_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(captured, "compiling_pays", lambda graph, rounds: True)
    monkeypatch.setattr(captured, "compile_region", lambda graph: None)
    tokens = torch.randint(20, (3, 4))
    replicas = bow.Replicas(LSTMLanguageModel(20, 16, 32, layers=1), sequence_cross_entropy, learners=2, engine="graph")
    for _ in range(3):
        replicas.round([(tokens[:, :-1], tokens[:, 1:])] * 2)
    assert replicas.engine == "graph"
    replicas.close()


class FunctionalLSTM(nn.Module):
    """An LSTM that is called as a function, with parameters of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(32, 6), torch.randn(32, 8), torch.randn(32), torch.randn(32)])

    def forward(self, inputs: Tensor) -> Tensor:
        state = inputs.new_zeros(1, len(inputs), 8)
        outputs, *_ = torch.lstm(inputs, (state, state), list(self.weights), True, 1, 0.0, self.training, False, True)
        return outputs.mean()


@pytest.mark.parametrize("compile", [False, True])
def test_an_lstm_that_is_called_as_a_function_is_not_compiled(compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "compiling_pays", lambda graph, rounds: True)
    batch = torch.randn(4, 5, 6)
    replicas = bow.Replicas(
        FunctionalLSTM(),
        step=lambda model, batch: model(batch),
        learners=1,
        engine=bow.Engine("graph", compile=compile),
    )
    with pytest.warns(UserWarning, match="does not work for this model" if compile else "is not compiled"):
        losses = [replicas.round([batch]) for _ in range(2)]
    assert all(bool(torch.isfinite(loss).all()) for loss in losses)
    assert replicas.engine == ("eager" if compile else "graph")
    replicas.close()


def test_a_buffer_whose_shape_follows_the_batch_is_left_to_eager() -> None:
    class Last(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            self.last = inputs.detach()
            return super().forward(inputs)

    model = Last(FEATURES, CLASSES).double()
    model.register_buffer("last", batch(0, 8)[0])
    with replicas(model, batch_size=8) as graph, replicas(model, engine="eager") as eager:
        for t in range(10):
            given = [batch(2 * t + j, 5 if t == 6 else 8) for j in range(2)]
            with (
                pytest.warns(UserWarning, match="changes the shape of buffer 'last'; running eager")
                if t == 6
                else (contextlib.nullcontext())
            ):
                graph.round(given)
            eager.round(given)
            assert torch.equal(graph.learner(0).last, eager.learner(0).last)
        assert_alike(graph, eager)
