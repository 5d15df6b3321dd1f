"""bow's synchronisers against `tests/oracle.py`, which computes each of them in NumPy from its formulas alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import bow
import shape_checks
from bow.data import Deal, batch_of, open_stream
from tests import oracle
from tests.grouped import grouped

FEATURES, CLASSES, HIDDEN, BATCH, ROUNDS = 6, 3, 5, 4, 50
LR = 0.1
TOLERANCE = 1e-10

MODELS: dict[str, tuple[Callable[[], torch.nn.Module], oracle.Model]] = {
    "softmax": (
        lambda: torch.nn.Linear(FEATURES, CLASSES, dtype=torch.float64),
        oracle.SoftmaxRegression(FEATURES, CLASSES),
    ),
    "tanh": (
        lambda: torch.nn.Sequential(
            torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, CLASSES)
        ).double(),
        oracle.TanhNetwork(FEATURES, HIDDEN, CLASSES),
    ),
}

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[[], oracle.Optimizer]]] = {
    "sgd": (functools.partial(torch.optim.SGD, lr=LR), oracle.SGD),
    "momentum": (
        functools.partial(torch.optim.SGD, lr=LR, momentum=0.8, weight_decay=1e-2),
        functools.partial(oracle.SGD, momentum=0.8, weight_decay=1e-2),
    ),
    "nesterov": (
        functools.partial(torch.optim.SGD, lr=LR, momentum=0.8, weight_decay=1e-2, nesterov=True),
        functools.partial(oracle.SGD, momentum=0.8, weight_decay=1e-2, nesterov=True),
    ),
    "adamw": (
        functools.partial(torch.optim.AdamW, lr=LR, weight_decay=0.05),
        functools.partial(oracle.AdamW, weight_decay=0.05),
    ),
}

# Factors of the learning rate, one a round, and the rounds whose synchronisation task SMA restarts after.
SCHEDULES: dict[str, list[float]] = {
    "constant": [1.0] * ROUNDS,
    "drops": [1.0] * 19 + [0.25] * 19 + [0.0625] * 12,
    "gradual": [0.7 ** (t // 10) for t in range(ROUNDS)],
    "warm-up": [t / 10 for t in range(10)] + [1.0] * 10 + [0.005] * 5 + [0.0] * 5 + [1.0] * 10 + [0.5] * 10,
    "recovers": [1.0] * 15 + [0.4, 1.0] + [0.6] * 13 + [0.45] * 5 + [0.2] * 15,
}


@dataclass(frozen=True)
class Case:
    """One line of the table: the same synchroniser from bow and from the oracle, and what it trains."""

    sync: str
    settings: dict[str, Any]
    learners: int
    optimizer: str = "sgd"
    schedule: str = "constant"
    model: str = "softmax"

    def __str__(self) -> str:
        settings = ",".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.sync}({settings})-k{self.learners}-{self.optimizer}-{self.schedule}-{self.model}"

    def of_bow(self) -> Any:
        return getattr(bow, self.sync)(**self.settings)

    def of_oracle(self, start: oracle.Vector) -> oracle.Synchroniser:
        model, optimizer = MODELS[self.model][1], OPTIMIZERS[self.optimizer][1]
        return getattr(oracle, self.sync)(model, optimizer, self.learners, start, **self.settings)


def sma_cases() -> list[Case]:
    grid = itertools.product((2, 3, 4, 5), (None, 0.1, 0.3), (0.0, 0.5, 0.9), (1, 3))
    # Cycles of 5 and 7 lines share no factor with the grid, so that every value meets every other.
    optimizers = itertools.cycle(("sgd", "momentum", "adamw", "momentum", "adamw"))
    others = itertools.cycle(
        [("drops", "softmax"), ("drops", "tanh"), ("constant", "tanh")] * 2 + [("constant", "softmax")]
    )
    return [
        Case("SMA", {"alpha": alpha, "mu": mu, "every": every}, k, optimizer, schedule, model)
        for (k, alpha, mu, every), optimizer, (schedule, model) in zip(grid, optimizers, others, strict=False)
    ]


def restart_cases() -> list[Case]:
    return [
        Case("SMA", {"mu": 0.5, "every": every, "restart": restart}, 3, optimizer, schedule)
        for schedule in ("drops", "gradual", "warm-up", "recovers")
        for every, restart, optimizer in ((1, "drop", "momentum"), (3, "drop", "adamw"), (1, None, "sgd"))
    ]


def other_cases() -> list[Case]:
    settings: list[tuple[str, dict[str, Any]]] = [
        ("SSGD", {}),
        ("EASGD", {"alpha": None, "every": 1}),
        ("EASGD", {"alpha": 0.1, "every": 3}),
        ("LocalSGD", {"every": 1}),
        ("LocalSGD", {"every": 8}),
        ("DiLoCo", {"every": 1, "outer_lr": 0.7, "outer_momentum": 0.0}),
        ("DiLoCo", {"every": 3, "outer_lr": 0.7, "outer_momentum": 0.9}),
        ("DiLoCo", {"every": 8, "outer_lr": 1.0, "outer_momentum": 0.5}),
        ("ASGD", {}),
        ("Independent", {}),
    ]
    grid = itertools.product(settings, ((2, "sgd"), (3, "momentum"), (4, "adamw"), (5, "nesterov")))
    models = itertools.cycle(("tanh", "softmax", "softmax"))
    return [
        Case(sync, arguments, k, optimizer, "drops", model)
        for ((sync, arguments), (k, optimizer)), model in zip(grid, models, strict=False)
    ]


def one_learner_cases() -> list[Case]:
    return [
        Case(sync, arguments, 1, "momentum", "drops", "tanh")
        for sync, arguments in (
            ("SMA", {"mu": 0.9}),
            ("SMA", {"alpha": 0.3, "mu": 0.5}),
            ("SMA", {"mu": 0.5, "every": 3}),
            ("EASGD", {}),
            ("SSGD", {}),
            ("LocalSGD", {"every": 3}),
            ("DiLoCo", {"every": 3, "outer_lr": 0.7, "outer_momentum": 0.9}),
            ("ASGD", {}),
            ("Independent", {}),
        )
    ]


TABLE = [*sma_cases(), *restart_cases(), *other_cases(), *one_learner_cases()]


def by_day() -> Iterator[Case]:
    """Every setting of a synchroniser in one case, and of SMA every two; `--nightly` has their whole tables."""
    for number, case in enumerate(sma_cases()):
        pair = number // 2 % 9  # of alpha and mu
        if case.learners == (2, 5)[pair // 2 % 2] and number % 2 == pair % 2:
            yield case
    yield from restart_cases()
    # Of every setting one number of learners with its optimizer, and of the next setting another one.
    yield from (case for number, case in enumerate(other_cases()) if (number + number // 4) % 4 == 0)
    yield from one_learner_cases()


BY_DAY = list(by_day())

# One of each synchroniser, where the whole table would only take longer.
ONE_OF_EACH = [
    Case("SMA", {"mu": 0.5}, 4, "momentum", "drops", "tanh"),
    Case("SMA", {"alpha": 0.1, "mu": 0.9, "every": 3}, 3, "adamw", "drops"),
    Case("SSGD", {}, 3, "momentum", "drops", "tanh"),
    Case("EASGD", {"alpha": 0.2}, 3, "sgd", "drops"),
    Case("LocalSGD", {"every": 4}, 2, "momentum", "drops"),
    Case("DiLoCo", {"every": 4, "outer_lr": 0.7, "outer_momentum": 0.9}, 3, "adamw", "drops"),
    Case("ASGD", {}, 4, "momentum", "drops"),
    Case("Independent", {}, 3, "momentum", "drops"),
]


def as_tensors(batch: oracle.Batch | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    return None if batch is None else (torch.from_numpy(batch[0]), torch.from_numpy(batch[1]))


def as_arrays(deal: Deal, learners: int) -> list[oracle.Batch | None]:
    batches = [batch_of(deal.batches, learner) for learner in range(learners)]
    arrays = [None if batch is None else (batch[0].numpy(), batch[1].numpy()) for batch in batches]
    assert len(arrays) == learners
    return arrays


def flat(model: torch.nn.Module) -> oracle.Vector:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy().copy()


class Pair:
    """The same training in bow and in the oracle, compared after every round."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        torch.manual_seed(seed)
        model = MODELS[case.model][0]()
        self.oracle = case.of_oracle(flat(model))
        self.num_parameters = self.oracle.model.num_parameters
        self.replicas = bow.Replicas(
            model,
            torch.nn.functional.cross_entropy,
            optimizer=OPTIMIZERS[case.optimizer][0],
            learners=case.learners,
            engine="eager",
            sync=case.of_bow(),
            device="cpu",
            seed=seed,
        )
        self.factors = SCHEDULES[case.schedule]
        self.scheduler = LambdaLR(self.replicas.optimizer, lambda t: self.factors[min(t, len(self.factors) - 1)])

    def round(self, batches: Sequence[oracle.Batch | None]) -> None:
        expected = self.oracle.round(batches, LR * self.factors[self.oracle.rounds])
        losses = self.replicas.round([as_tensors(batch) for batch in batches])
        self.scheduler.step()
        np.testing.assert_allclose(losses.numpy(), expected, rtol=0, atol=TOLERANCE)
        self.compare()

    def compare(self) -> None:
        z = self.replicas.z[: self.num_parameters].numpy()
        weights = self.replicas.W[:, : self.num_parameters].numpy()
        np.testing.assert_allclose(z, self.oracle.z, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(weights, self.oracle.weights, rtol=0, atol=TOLERANCE)


def batches_for(case: Case, *, seed: int = 1) -> list[list[oracle.Batch]]:
    return oracle.random_batches(ROUNDS, case.learners, BATCH, FEATURES, CLASSES, seed=seed)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_the_oracle_itself_is_torch_where_there_is_one_learner(model: str, optimizer: str) -> None:
    torch.manual_seed(0)
    module = MODELS[model][0]()
    case = Case("SSGD", {}, 1, optimizer, "drops", model)
    numpy_run = case.of_oracle(flat(module))
    torch_optimizer = OPTIMIZERS[optimizer][0](module.parameters())
    factors = SCHEDULES["drops"]
    scheduler = LambdaLR(torch_optimizer, lambda t: factors[min(t, ROUNDS - 1)])
    for t, batches in enumerate(batches_for(case)):
        inputs, labels = as_tensors(batches[0])
        torch_optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(inputs), labels)
        loss.backward()
        torch_optimizer.step()
        scheduler.step()
        assert numpy_run.round(batches, LR * factors[t])[0] == pytest.approx(loss.item(), abs=1e-12)
        np.testing.assert_allclose(numpy_run.z, flat(module), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "every", "expected"),
    [
        ("constant", 1, []),
        ("drops", 1, [19, 38]),
        ("drops", 3, [20, 38]),
        ("gradual", 1, [20, 40]),
        ("warm-up", 1, [40]),
        ("recovers", 3, [17, 35]),
    ],
)
def test_the_oracle_restarts_in_the_rounds_worked_out_by_hand(schedule: str, every: int, expected: list[int]) -> None:
    case = Case("SMA", {"every": every}, 2, schedule=schedule)
    run = case.of_oracle(np.zeros(MODELS["softmax"][1].num_parameters))
    oracle.train(run, batches_for(case), [LR * factor for factor in SCHEDULES[schedule]])
    assert run.restarts == expected


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_learners_without_a_batch_sit_out_and_are_averaged(case: Case) -> None:
    pair = Pair(case)
    for t, batches in enumerate(batches_for(case)[:20]):
        idle = {t % case.learners, 0} if t % 4 == 3 else set()
        idle -= {case.learners - 1}  # somebody always has a batch
        pair.round([None if j in idle else batch for j, batch in enumerate(batches)])


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_batches_may_differ_in_length(case: Case) -> None:
    pair = Pair(case)
    for batches in batches_for(case)[:10]:
        pair.round([(inputs[: j % BATCH + 1], labels[: j % BATCH + 1]) for j, (inputs, labels) in enumerate(batches)])


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_stacked_tensors_are_the_same_as_a_list_of_batches(case: Case) -> None:
    listed, stacked = Pair(case), Pair(case)
    for batches in batches_for(case)[:10]:
        listed.round(batches)
        inputs = torch.stack([torch.from_numpy(inputs) for inputs, _ in batches])
        labels = torch.stack([torch.from_numpy(labels) for _, labels in batches])
        stacked.replicas.round((inputs, labels))
        stacked.scheduler.step()
        assert torch.equal(listed.replicas.W, stacked.replicas.W)
        assert torch.equal(listed.replicas.z, stacked.replicas.z)


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_learners_come_and_go_between_rounds(case: Case) -> None:
    pair = Pair(case)
    rounds = iter(oracle.random_batches(ROUNDS, 6, BATCH, FEATURES, CLASSES, seed=2))
    for change in ("add", "add", "remove", "add", "remove", "remove", "none"):
        for _ in range(5):
            pair.round(next(rounds)[: pair.oracle.k])
        if change == "add":
            pair.replicas.resize(pair.replicas.learners + 1)
            pair.oracle.add_learner()
        elif change == "remove":
            pair.replicas.resize(pair.replicas.learners - 1)
            pair.oracle.remove_learner()
        pair.compare()


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_settling_brings_the_central_model_up_to_date(case: Case) -> None:
    pair = Pair(case)
    for batches in batches_for(case)[:10]:
        pair.round(batches)
    pair.replicas.settle()
    pair.oracle.settle()
    pair.compare()
    np.testing.assert_allclose(flat(pair.replicas.central), pair.oracle.z, rtol=0, atol=TOLERANCE)


def test_a_restart_moves_the_learners_to_z_and_keeps_their_momenta() -> None:
    restarting = Pair(Case("SMA", {"mu": 0.5, "restart": "drop"}, 3, "momentum", "drops"))
    never = Pair(Case("SMA", {"mu": 0.5, "restart": None}, 3, "momentum", "drops"))
    for batches in batches_for(Case("SMA", {}, 3))[:20]:
        restarting.round(batches)
        never.round(batches)
    assert torch.equal(restarting.replicas.z, never.replicas.z)
    assert torch.equal(restarting.replicas.W, restarting.replicas.z.expand_as(restarting.replicas.W))
    assert not torch.allclose(never.replicas.W, never.replicas.z.expand_as(never.replicas.W))
    momenta, untouched = (
        [state["momentum_buffer"] for state in pair.replicas.optimizer.state.values()] for pair in (restarting, never)
    )
    assert len(momenta) == 3
    for momentum, expected in zip(momenta, untouched, strict=True):
        assert torch.equal(momentum, expected)
        assert momentum.abs().max() > 0


@pytest.mark.parametrize(
    ("optimizer", "learners"),
    [
        pytest.param(optimizer, learners, marks=pytest.mark.nightly if (number + learners // 2) % 2 else ())
        for number, optimizer in enumerate(OPTIMIZERS)
        for learners in (2, 4)
    ],
)
def test_ssgd_is_one_learner_with_a_batch_k_times_as_large(optimizer: str, learners: int) -> None:
    pair = Pair(Case("SSGD", {}, learners, optimizer, "constant", "tanh"))
    torch.manual_seed(0)
    plain = MODELS["tanh"][0]()
    plain_optimizer = OPTIMIZERS[optimizer][0](plain.parameters())
    for batches in batches_for(Case("SSGD", {}, learners)):
        pair.round(batches)
        inputs, labels = as_tensors(tuple(np.concatenate(part) for part in zip(*batches, strict=True)))
        plain_optimizer.zero_grad()
        torch.nn.functional.cross_entropy(plain(inputs), labels).backward()
        plain_optimizer.step()
        np.testing.assert_allclose(flat(pair.replicas.central), flat(plain), rtol=0, atol=TOLERANCE)


# The same through bow.train: batches dealt by bow.data, the scheduler stepped by the loop, epochs that end in rounds.

SAMPLES, EPOCHS = 151, 6


@dataclass
class Recorder:
    """A callback that keeps what the oracle is to reproduce."""

    z: list[torch.Tensor] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)

    def on_round_end(self, run: Any) -> None:
        self.z.append(run.replicas.z.clone())
        self.weights.append(run.replicas.W.clone())


class TrainingPair:
    """A training by `bow.train`, and the oracle that follows the record of it."""

    def __init__(self, case: Case, interval: str, run_dir: Path, **settings: Any) -> None:
        self.case = case
        self.samples = oracle.random_batches(1, 1, SAMPLES, FEATURES, CLASSES, seed=3)[0][0]
        self.factors = SCHEDULES[case.schedule][:: 1 if interval == "round" else 10]
        torch.manual_seed(0)
        model = MODELS[case.model][0]()
        self.oracle = case.of_oracle(flat(model))
        self.epoch = 0
        self.recorder = Recorder()
        self.result = bow.train(
            model,
            as_tensors(self.samples),
            torch.nn.functional.cross_entropy,
            **grouped(
                optimizer=OPTIMIZERS[case.optimizer][0],
                scheduler=lambda optimizer: LambdaLR(optimizer, self.factor),
                per_round=interval == "round",
                batch_size=BATCH,
                learners=case.learners,
                engine="eager",
                sync=case.of_bow(),
                devices="cpu",
                callbacks=[self.recorder],
                run_dir=run_dir,
                seed=5,
                progress=False,
                **settings,
            ),
        )

    def factor(self, step: int) -> float:
        return self.factors[min(step, len(self.factors) - 1)]

    def follow(self, round_index: int, deal: Deal, factor: float) -> None:
        self.oracle.round(as_arrays(deal, self.case.learners), LR * factor)
        size = self.oracle.model.num_parameters
        z, weights = self.recorder.z[round_index][:size], self.recorder.weights[round_index][:, :size]
        np.testing.assert_allclose(z, self.oracle.z, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(weights, self.oracle.weights, rtol=0, atol=TOLERANCE)
        if deal.epochs > self.epoch:
            self.epoch = deal.epochs
            self.oracle.settle()

    def end(self) -> None:
        self.oracle.settle()
        np.testing.assert_allclose(flat(self.result.model), self.oracle.z, rtol=0, atol=TOLERANCE)


@pytest.fixture
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the pictures of the report, which take three quarters of so short a training."""
    monkeypatch.setattr("bow.observe.report.write_report", lambda run_dir: None)


@pytest.mark.quick(4)
@pytest.mark.usefixtures("_no_report")
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in BY_DAY else pytest.mark.nightly, id=str(case)) for case in TABLE]
)
def test_fifty_rounds_of_training_follow_the_formulas(case: Case, tmp_path: Path) -> None:
    with shape_checks.during(False):  # those below check the same shapes
        pair = TrainingPair(case, "round", tmp_path / "run", steps=ROUNDS)
    stream = open_stream(as_tensors(pair.samples), batch_size=BATCH, steps=ROUNDS, seed=5)
    assert len(pair.recorder.z) == ROUNDS
    for t in range(ROUNDS):
        pair.follow(t, stream.deal(case.learners), pair.factor(t))
    pair.end()


@pytest.mark.sample(3)
@pytest.mark.usefixtures("_no_report")
@pytest.mark.parametrize("interval", ["round", "epoch"])
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_training_follows_the_formulas_to_the_last_short_round(case: Case, interval: str, tmp_path: Path) -> None:
    samples = oracle.random_batches(1, 1, SAMPLES, FEATURES, CLASSES, seed=3)[0][0]
    pair = TrainingPair(case, interval, tmp_path / "run", epochs=EPOCHS, validation=as_tensors(samples))
    stream = open_stream(as_tensors(samples), batch_size=BATCH, epochs=EPOCHS, seed=5)
    for t in range(len(pair.recorder.z)):
        deal = stream.deal(case.learners)
        epoch = pair.epoch
        pair.follow(t, deal, pair.factor(t if interval == "round" else epoch))
        if pair.epoch > epoch:
            mean_loss, _ = pair.oracle.model.loss_and_gradient(pair.oracle.z, samples)
            assert pair.result.history[epoch]["loss"] == pytest.approx(mean_loss, abs=TOLERANCE)
    assert stream.deal(case.learners) is None
    assert deal.batches[-1] is None
    assert pair.epoch == EPOCHS
    pair.end()
