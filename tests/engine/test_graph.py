"""Engine `graph`: what it captures, what it compiles, what it leaves to `eager`, and how its executors behave."""

import contextlib
import functools
import gc
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.engine.graph import COMPILING_PAYS_S, MAX_SHAPES, compiling_pays
from bow.errors import GraphError, RuntimeUnavailableError
from tests.engine.pairs import TOLERANCE, Pair

CLASSES, FEATURES = 3, 6


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def batch(seed: int, samples: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (samples,), generator=generator)


def batches(t: int, learners: int, samples: int = 4) -> list[Any]:
    return [batch(10 * t + j, samples) for j in range(learners)]


@contextlib.contextmanager
def replicas(model: nn.Module | None = None, **settings: Any) -> Iterator[bow.Replicas]:
    torch.manual_seed(0)
    settings = {"learners": 2, "engine": "graph", "device": "cpu", "seed": 3, **settings}
    if "step" not in settings:
        settings["loss"] = cross_entropy
    made = bow.Replicas(model or classifier().double(), **settings)
    try:
        yield made
    finally:
        made.close()


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_round_equals_eager_bit_for_bit_where_the_optimizer_is_torchs_own() -> None:
    with Pair("graph", classifier, optimizer="adamw", learners=3) as pair:
        for t in range(5):
            losses = [training.round(batches(t, 3)) for training in pair.trainings]
            assert torch.equal(*losses)
            assert torch.equal(*(training.W for training in pair.trainings))


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
            torch.testing.assert_close(graph.W, eager.W, rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(graph.z, eager.z, rtol=0, atol=TOLERANCE)


def test_a_row_that_is_longer_than_a_block_is_averaged_whole() -> None:
    wide = nn.Sequential(nn.Linear(FEATURES, 700), nn.Tanh(), nn.Linear(700, CLASSES)).double()
    with replicas(wide) as graph, replicas(wide, engine="eager") as eager:
        for t in range(3):
            for training in (graph, eager):
                training.round(batches(t, 2))
        assert graph.z.numel() > 5 * 1024
        torch.testing.assert_close(graph.W, eager.W, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(graph.z, eager.z, rtol=0, atol=TOLERANCE)


def test_a_model_that_cannot_be_captured_runs_in_eager_and_says_why() -> None:
    class Branching(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            made = super().forward(inputs)
            return made if made.sum() > 0 else -made

    with replicas(Branching(FEATURES, CLASSES).double()) as training:
        with pytest.warns(UserWarning, match="engine graph does not work for this model .* running eager"):
            assert training.round(batches(0, 2)).isfinite().all()
        assert training.engine == "eager"
        assert [event.event for event in training.take_events()] == ["engine changed"]
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
    error = RuntimeUnavailableError("there is no compiler")
    monkeypatch.setattr("bow.runtime.loading._attempt", lambda: error)
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
        engine = pair.trainings[1]._engine
        for t, samples in enumerate([4, 4, 3, 3, 4, 5, 3]):
            pair.round(batches(t, 2, samples))
        captured = {shape[0][0][0] for shape in engine._tasks}  # type: ignore[attr-defined]
        assert captured == {4, 3}
        for t, samples in enumerate(range(6, 6 + 2 * MAX_SHAPES)):
            pair.round(batches(t, 2, samples))
            pair.round(batches(t, 2, samples))
        assert len(engine._tasks) == MAX_SHAPES  # type: ignore[attr-defined]
        assert pair.engine == "graph"


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
            assert graph.last is not None
            assert eager.last is not None
            torch.testing.assert_close(graph.last.metrics, eager.last.metrics)
        graph.round([as_dict(batch(0)), None])
        assert graph.last.metrics["right"].isnan().tolist() == [False, True]
        assert graph.engine == "graph"


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


def test_a_compiled_learning_task_follows_eager_and_says_so() -> None:
    with (
        torch._inductor.config.patch(compile_threads=1),  # no pool of threads that outlives the test
        Pair("graph", classifier, compile=True) as pair,
    ):
        for t in range(5):
            pair.round(batches(t, 3))
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
    deadline = time.monotonic() + 5
    while num_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_threads() == before


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("sync", [bow.SMA(every=4), bow.LocalSGD(every=4), bow.SSGD()])
def test_first_come_takes_every_batch_once_and_trains(sync: Any, optimizer: str) -> None:
    made = {"momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), "adamw": torch.optim.AdamW}
    with replicas(learners=3, sync=sync, dispatch="first_come", optimizer=made[optimizer]) as training:
        training.run(iter([batch(j) for j in range(3)]), rounds=1)  # captures
        start = training.W.clone()
        fixed = [batch(j) for j in range(3)] * 16
        losses = training.run(iter(fixed), rounds=16)
        assert losses.shape == (16, 3)
        assert losses.isfinite().all()
        assert (training.W - start).abs().amax(1).gt(1e-4).all()  # every learner has learned
        assert losses[-4:].mean() < losses[:4].mean()
        assert training.rounds == 17
        assert training.engine == "graph"


def test_first_come_with_one_learner_or_every_round_averaged_is_the_fixed_order() -> None:
    with (
        replicas(dispatch="first_come", sync=bow.SMA()) as free,
        replicas(sync=bow.SMA(), engine="eager") as eager,
    ):
        given = [batch(j) for j in range(12)]
        for training in (free, eager):
            training.run(iter(given), rounds=6)
        torch.testing.assert_close(free.W, eager.W, rtol=0, atol=TOLERANCE)


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
        with pytest.warns(UserWarning, match="starts again from the central model"):
            training.run(iter([infinite, *(batch(j) for j in range(7))]), rounds=4)
        assert training.num_restarts == 1
        assert training.W.isfinite().all()
