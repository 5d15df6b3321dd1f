"""Rounds that engine `graph` runs without Python between them: as if each had been run by itself."""

import functools
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bow
from bow.engines.graph import Graph
from bow.engines.outcome import Outcome
from bow.errors import DataError, DeviceMemoryError, DivergenceError
from tests.grouped import grouped
from tests.training.blueprints import linear

Train = Callable[..., bow.Result]
SAMPLES, BATCH = 164, 4  # the last round is short
ADAM = functools.partial(torch.optim.AdamW, lr=0.01)
SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rounds that have run at once; the live checks alone limit them."""
    found: list[int] = []
    rounds = Graph.rounds

    def counting(self: Graph, *given: Any) -> list[Outcome]:
        outcomes = rounds(self, *given)
        found.append(len(outcomes))
        return outcomes

    monkeypatch.setattr(Graph, "rounds", counting)
    monkeypatch.setattr("bow.engines.loop.GROUP_S", 1e9)
    return found


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    monkeypatch.setattr("bow.observe.report.write_report", lambda run_dir: None)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 5, generator=generator)
    plain = inputs, inputs[:, :3].argmax(1)

    def run(name: str, model: nn.Module, data: Any = plain, loss: Any = cross_entropy, **settings: Any) -> bow.Result:
        defaults = {"learners": 2, "engine": "graph", "optimizer": SGD, "epochs": 3, "batch_size": BATCH}
        if "steps" in settings:
            del defaults["epochs"]
        settings = {**defaults, "progress": False, "run_dir": tmp_path / name, **settings}
        return bow.train(model, data, loss, **grouped(**settings))

    return run


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.engines.loop.GROUP_S", 0.0)


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def records(result: bow.Result) -> list[dict[str, Any]]:
    lines = map(json.loads, (result.run_dir / "metrics.jsonl").read_text().splitlines())
    timed = {"samples_per_s", "time_s", "time", "parallel learning tasks"}
    return [
        {name: value for name, value in line.items() if name not in timed}
        for line in lines
        if line["kind"] in ("epoch", "evaluation") or line.get("event") not in (None, *timed)
    ]


def assert_same(a: bow.Result, b: bow.Result) -> None:
    assert all(map(torch.equal, a.model.state_dict().values(), b.model.state_dict().values()))
    assert records(a) == records(b)


def with_accuracy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    outputs = model(batch[0])
    return cross_entropy(outputs, batch[1]), {"accuracy": (outputs.argmax(1) == batch[1]).float().mean()}


SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "one learner": {"learners": 1},
    "more learners than cores": {"learners": 5},
    "adamw": {"optimizer": ADAM, "learners": 3},
    "dropout and batch norm": {"model": deep},
    "every third round": {"sync": bow.SMA(every=3)},
    "independent": {"sync": bow.Independent()},
    "local sgd": {"sync": bow.LocalSGD(every=4)},
    "values of the step": {"step": with_accuracy, "loss": None},
    # At times 10.000000000000004 samples are left, five rounds.
    "evaluations within an epoch": {"evaluate_every": 0.1, "batch_size": 1, "data": (100, torch.float32)},
    "a falling learning rate": {
        "scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.1)
    },
    "steps": {"steps": 37},
    "double precision": {"model": lambda: linear().double(), "data": (SAMPLES, torch.float64)},
    "clipped": {"clip_norm": 0.1},
    "averaged gradients": {"sync": bow.SSGD()},
    "a scheduler of rounds": {"scheduler": bow.WarmupCosine(warmup=5)},
    "an average of the weights": {"ema": 0.9},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_at_once_equal_rounds_one_by_one(
    name: str, train: Train, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS[name]}
    if "data" in settings:
        samples, dtype = settings["data"]
        inputs = torch.randn(samples, 5, generator=torch.Generator().manual_seed(1), dtype=dtype)
        settings["data"] = inputs, torch.arange(samples) % 3
    model = settings.pop("model", linear)
    if "evaluate_every" in settings:
        generator = torch.Generator().manual_seed(2)
        settings["validation"] = torch.randn(20, 5, generator=generator), torch.randint(3, (20,), generator=generator)
    together = train("together", model(), **settings)
    apart_by_itself = "clipped", "averaged gradients", "a scheduler of rounds", "an average of the weights"
    assert not groups if name in apart_by_itself else max(groups) > 2
    groups.clear()
    one_by_one(monkeypatch)
    apart = train("apart", model(), **settings)
    assert not groups
    assert_same(together, apart)


@pytest.mark.parametrize(("learners", "value"), [(2, torch.nan), (1, torch.nan), (1, 1e30), (2, 1e30)])
def test_a_group_ends_with_the_round_in_which_a_learner_diverges(
    learners: int, value: float, train: Train, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
    inputs[70] = value
    data, found = (inputs, torch.arange(SAMPLES) % 3), []
    for name in ("together", "apart"):
        with pytest.warns(UserWarning, match=r"learner \d+'s .* in round \d+"):
            found.append(train(name, linear(), data, learners=learners, epochs=8, seed=5, evaluate_every=0.1))
        one_by_one(monkeypatch)
    assert max(groups) > 2
    assert found[0].num_restarts == found[1].num_restarts > 5
    assert_same(*found)


@pytest.mark.parametrize("learners", [1, 2])
def test_a_training_in_which_all_learners_diverge_ends_in_the_same_round(
    learners: int, train: Train, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
    inputs[:100] = torch.nan
    errors = []
    for name in ("together", "apart"):
        with pytest.warns(UserWarning, match="loss was nan"), pytest.raises(DivergenceError) as raised:
            train(name, linear(), (inputs, torch.arange(SAMPLES) % 3), learners=learners, batch_size=1, epochs=5)
        errors.append(str(raised.value))
        one_by_one(monkeypatch)
    assert max(groups) > 1
    assert errors[0] == errors[1]


def test_a_diverged_learner_is_an_error_of_its_round_where_the_user_asks_for_that(
    train: Train, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
    inputs[70] = torch.nan
    data, errors = (inputs, torch.arange(SAMPLES) % 3), []
    for name in ("together", "apart"):
        with pytest.raises(DivergenceError) as raised:
            train(name, linear(), data, on_nan="error", seed=4)
        errors.append(str(raised.value))
        one_by_one(monkeypatch)
    assert max(groups) > 2
    assert errors[0] == errors[1]


@pytest.mark.parametrize("at", [30, 110])
def test_a_round_that_fails_within_a_group_raises_its_error_and_can_be_resumed(
    at: int, train: Train, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3))

    tokens = torch.randint(10, (SAMPLES, 2), generator=torch.Generator().manual_seed(1))
    good, targets = tokens.clone(), torch.arange(SAMPLES) % 3
    tokens[at] = 99
    checkpoints, errors = {}, []
    for name in ("together", "apart"):
        with pytest.raises(DataError, match="index is out of range") as raised:
            train(name, model(), (tokens, targets), checkpoint_every=1000)
        (path,) = (tmp_path / name / "checkpoints").glob("*.pt")
        checkpoints[path.name] = path
        errors.append(str(raised.value))
        one_by_one(monkeypatch)
    assert len(checkpoints) == 1
    assert errors[0] == errors[1]
    if at == 110:  # behind the rounds 4 and 8, after which a live check is due
        first, second, none = groups
        assert (first, none) == (3, 0)
        assert 0 < second < 7
    mended = [
        train(f"{name} mended", model(), (good, targets), resume=tmp_path / name / "checkpoints" / min(checkpoints))
        for name in ("together", "apart")
    ]
    whole = train("whole", model(), (good, targets))
    for each in mended:
        assert all(map(torch.equal, each.model.state_dict().values(), whole.model.state_dict().values()))
        assert each.history[-1]["train_loss"] == whole.history[-1]["train_loss"]


def test_checkpoints_within_groups_resume_byte_by_byte(
    train: Train, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.training.checkpoint.KEEP", 100)
    whole = train("whole", deep(), checkpoint_every=7)
    assert max(groups) > 2
    paths = sorted((tmp_path / "whole" / "checkpoints").glob("*.pt"))
    assert len(paths) > 5
    for number, path in enumerate(paths[::3]):
        resumed = train(f"resumed {number}", deep(), resume=path)
        assert all(map(torch.equal, whole.model.state_dict().values(), resumed.model.state_dict().values()))


def test_ctrl_c_ends_after_the_group(
    train: Train, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Graph.rounds

    def interrupted(self: Graph, *given: Any) -> list[Outcome]:
        if len(groups) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return rounds(self, *given)

    monkeypatch.setattr(Graph, "rounds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train("run", deep())
    assert len(groups) == 3
    assert groups[2] > 2
    resumed = train("run", deep(), resume="auto")
    whole = train("whole", deep())
    assert all(map(torch.equal, whole.model.state_dict().values(), resumed.model.state_dict().values()))


def test_groups_come_back_behind_a_drop_of_the_learning_rate(train: Train, groups: list[int]) -> None:
    falling = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.1)
    for sync in (bow.SMA(), bow.SMA(restart=None), bow.LocalSGD(every=4)):
        ends: list[int] = []  # numbers of groups

        class Marking:
            def on_epoch_end(self, run: Any, record: Any, ends: list[int] = ends) -> None:
                ends.append(len(groups))

        train(f"{sync!r}", linear(), scheduler=falling, sync=sync, epochs=4, callbacks=[Marking()])
        assert max(groups[ends[2] : ends[3]]) > 2


def test_a_failing_allocation_within_a_group_keeps_the_rounds_before_it(
    train: Train, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Graph.learn_and_step

    def failing(self: Graph, *given: Any) -> Outcome:
        if self.context.round_index == 30:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes.")
        return learn(self, *given)

    monkeypatch.setattr(Graph, "rounds", lambda self, batches, due, original=Graph.rounds: original(
        self, batches[: max(0, 30 - self.context.round_index)], due[: max(0, 30 - self.context.round_index)]
    ))  # fmt: skip
    with monkeypatch.context() as once:
        once.setattr(Graph, "learn_and_step", failing)
        with pytest.raises(DeviceMemoryError):
            train("run", deep(), checkpoint_every=1000)
    assert max(groups) > 2
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("*.pt")] == ["round_00000030.pt"]


def test_other_data_are_taken_round_by_round(train: Train, groups: list[int]) -> None:
    samples = TensorDataset(torch.randn(SAMPLES, 5), torch.arange(SAMPLES) % 3)
    train("loader", linear(), DataLoader(samples, batch_size=BATCH), batch_size=None)
    assert not groups


def test_a_loop_of_ones_own_is_asked_for_batches_round_by_round(groups: list[int]) -> None:
    replicas = bow.Replicas(linear(), cross_entropy, learners=2, engine="graph", optimizer=SGD)
    seen = []

    def batches() -> Iterator[Any]:
        while True:
            seen.append(replicas.rounds)
            yield torch.ones(4, 5), torch.zeros(4, dtype=torch.long)

    replicas.run(batches(), rounds=40)
    assert seen == [index // 2 for index in range(80)]
    assert not groups


def test_callbacks_of_rounds_see_each_round(train: Train, groups: list[int]) -> None:
    seen: list[int] = []

    class Watching:
        def on_round_end(self, run: bow.Run) -> None:
            assert run.replicas.rounds == run.round  # type: ignore[attr-defined]
            seen.append(run.round)  # type: ignore[attr-defined]

    train("run", linear(), callbacks=[Watching()])
    assert seen == list(range(1, len(seen) + 1))
    assert not groups
