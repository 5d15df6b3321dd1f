"""Training by the strategies of a planner."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset

import bow
from bow.cluster import World
from bow.errors import CaptureError, CheckpointError, DivergenceError, OptimizerError, ScheduleError, SettingError
from bow.observe.records import read_records
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology
from bow.planning.problem.partition import Partition, Split, everything_on
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.tiles import capture_operators, link_benchmark, tile_costs
from bow.planning.tiles.link_benchmark import SHAPES
from bow.schedule import Timeline
from bow.training import placed as placed_module
from bow.training import placed_speed
from bow.training.config import TrainConfig
from bow.training.placed import LEFT_OUT, NOT_COMPARED, train_by
from tests.cluster.worlds import in_world
from tests.grouped import grouped
from tests.training.blueprints import Behind, Train

BATCH, STEPS = 4, 6
SGD = functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9)
DROPS = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.2)
COMMON: dict[str, Any] = {"batch_size": BATCH, "steps": STEPS, "optimizer": SGD, "progress": False, "seed": 3}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()


def by(partition: Partition, model: nn.Module, data: Any, loss: Any = None, **settings: Any) -> bow.Result:
    return train_by(partition, model, data, loss=loss, **grouped(**{"check": True, **settings}))


def data(count: int = 16) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 5, generator=torch.Generator().manual_seed(1)).double()
    return inputs, inputs[:, :3].argmax(1)


@functools.cache
def captured() -> Any:
    return capture_operators(model(), tuple(each[:BATCH] for each in data()), cross_entropy).graph


def strategy(num_devices: int, learners: int = 1) -> Partition:
    """Data parallel, but the first layer by its channels, and the second whole on the last device."""
    graph = captured()
    first, *splits = data_parallel(graph, RULES, num_devices)
    linear = next(number for number, each in enumerate(graph.operators[1:]) if each.kind == "linear")
    splits[linear] = dataclasses.replace(everything_on(graph, num_devices - 1)[0])
    return Partition(graph.hash, (Split((1, num_devices), first.devices), *splits), learners)


class Offset(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are read in another way by every process."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return len(data()[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, labels = data()
        return inputs[index] + 100 * self.rank, labels[index]


class Batches(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches, the second of which is smaller in every process but the first."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for turn in range(STEPS):
            size = BATCH - (turn == 1 and self.rank > 0)
            inputs, labels = data(turn + size)
            yield inputs[-size:], labels[-size:]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is kept of a training."""

    losses: list[float]
    state: dict[str, Tensor]

    @classmethod
    def of(cls, result: bow.Result) -> Outcome:
        return cls([record["train_loss"] for record in result.history], result.model.state_dict())


def stop_early(run: Any) -> None:
    if run.round == STEPS // 2:
        run.stop()


def trainings(world: World, folder: Path) -> dict[str, Any]:
    """Everything that two processes are needed for, in one go: they take longer to start than to train."""

    def train(name: str, placed: Partition, given: Any = None, **settings: Any) -> bow.Result:
        options = {"check": False, "run_dir": folder / name, **COMMON, **settings}
        return by(placed, model(), data() if given is None else given, cross_entropy, **options)

    def refused(train: Callable[[], object]) -> str:
        with pytest.raises((SettingError, CheckpointError)) as caught:
            train()
        return str(caught.value)

    capture, kept = placed_module.capture_operators, {}

    def capture_once(model: nn.Module, batch: Any, *, step: Any) -> Any:
        shapes = tuple((each.shape, each.dtype) for each in batch)
        if shapes not in kept:
            kept[shapes] = capture(model, batch, step=step)
        return kept[shapes]

    placed_module.capture_operators = capture_once  # the step is always the same; other tests capture each time
    one, two = strategy(2), strategy(1, learners=2)
    found: dict[str, Any] = {"one": Outcome.of(train("one", one)), "two": Outcome.of(train("two", two))}
    found["read"] = Outcome.of(train("read", one, Offset(world.rank)))
    for name, rank in (("even", 0), ("uneven", world.rank)):
        batches = DataLoader(Batches(rank), batch_size=None)
        found[name] = Outcome.of(train(name, one, batches, batch_size=None))
    drops = {"scheduler": DROPS, "per_round": True}
    for name, placed in (("one", one), ("two", two)):
        train(f"{name} cut", placed, checkpoint_every=1, callbacks=[Behind(stop_early)], **drops)
        found[f"{name} resumed"] = Outcome.of(train(f"{name} cut", placed, resume="auto", **drops))
    found["other"] = refused(lambda: train("other", strategy(2, 1), resume=folder / "two cut", **drops))
    placed_speed.MARGIN, margin = math.inf, placed_speed.MARGIN
    link_benchmark.cache_folder = lambda: folder
    tile_costs.cached_busy_links = functools.partial(link_benchmark.cached_busy_links, shapes=SHAPES[:2], turns=1)
    train("checked", one, check=True)
    placed_speed.MARGIN, placed_speed._take_turns = margin, lambda *_: (0.03, 0.02, 0.04)
    found["slow"] = refused(lambda: train("slow", one, check=True))
    placed_speed._take_turns = lambda *_: (0.03, 0.04, 0.02)
    found["slower than one"] = refused(lambda: train("slow", one, check=True))
    by_samples = Partition(one.graph_hash, data_parallel(captured(), RULES, 2))
    placed_speed._take_turns = lambda *_: (0.03, 0.02)
    found["slow data parallelism"] = refused(lambda: train("slow", by_samples, check=True))
    placed_speed._take_turns = lambda *_: (0.03, 0.02, 0.02)
    found["slow for two"] = Outcome.of(train("slow for two", two, check=True))
    placed_speed._take_turns, placed_speed.free_bytes = lambda *_: (0.03, 0.02, 0.02), lambda device: 0
    found["no memory"] = Outcome.of(train("no memory", one, check=True))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiles")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bow.observe.report.write_report", lambda run_dir: None)
        for module, name in (
            (placed_module, "capture_operators"),
            (placed_speed, "_take_turns"),
            (placed_speed, "free_bytes"),
            (link_benchmark, "cache_folder"),
            (tile_costs, "cached_busy_links"),
        ):
            patch.setattr(module, name, getattr(module, name))  # put back behind the trainings
        return in_world(2, functools.partial(trainings, folder=folder))[0]


def by_replicas(folder: Path, learners: int, **settings: Any) -> Outcome:
    """The same training by learners on one device."""
    options = {**COMMON, "engine": "eager", "devices": "cpu", "learners": learners, **settings}
    return Outcome.of(bow.train(model(), data(), cross_entropy, **grouped(run_dir=folder, **options)))


def assert_alike(one: Outcome, other: Outcome) -> None:
    assert one.losses == pytest.approx(other.losses, rel=1e-6)  # means that one device takes in float32
    assert one.state.keys() == other.state.keys()
    for name, value in one.state.items():
        torch.testing.assert_close(value, other.state[name], rtol=1e-10, atol=1e-12, msg=name)


def test_a_strategy_trains_what_one_device_trains(found: dict[str, Any], tmp_path: Path) -> None:
    assert_alike(found["one"], by_replicas(tmp_path, learners=1))


def test_learners_of_a_strategy_are_those_of_one_device(found: dict[str, Any], tmp_path: Path) -> None:
    assert_alike(found["two"], by_replicas(tmp_path, learners=2))


def test_all_devices_train_on_the_batches_that_the_first_one_reads(found: dict[str, Any]) -> None:
    assert_alike(found["read"], found["one"])


def test_the_first_device_says_whether_a_batch_is_of_the_right_size(found: dict[str, Any]) -> None:
    assert_alike(found["uneven"], found["even"])


@pytest.mark.parametrize(("name", "learners"), [("one", 1), ("two", 2)])
def test_a_training_goes_on_from_its_checkpoint(
    found: dict[str, Any], tmp_path: Path, name: str, learners: int
) -> None:
    """Learning rates fall meanwhile, so that learners start again from the central model."""
    whole = by_replicas(tmp_path, learners, scheduler=DROPS, per_round=True)
    assert_alike(found[f"{name} resumed"], dataclasses.replace(whole, losses=found[f"{name} resumed"].losses))


def test_a_checkpoint_of_another_strategy_is_refused(found: dict[str, Any]) -> None:
    assert "made with another partition" in found["other"]


def test_a_strategy_slower_than_data_parallelism_is_refused(found: dict[str, Any], folder: Path) -> None:
    expected = "slower than data parallelism here: 30.0 ms a batch, data parallelism 20.0 ms, one device 40.0 ms"
    assert expected in found["slow"]
    assert "check=False" in found["slow"]
    assert not (folder / "slow").exists()


def test_a_partition_slower_than_one_device_is_refused(found: dict[str, Any]) -> None:
    """Data parallelism is no exception."""
    assert "slower than one device here: 30.0 ms a batch, data parallelism 40.0 ms" in found["slower than one"]
    assert "train without a partition" in found["slower than one"]
    assert "slower than one device here: 30.0 ms a batch, one device 20.0 ms" in found["slow data parallelism"]


def test_what_no_device_has_the_memory_for_is_not_run_for_comparison(found: dict[str, Any], folder: Path) -> None:
    assert_alike(found["no memory"], found["one"])
    records = read_records(folder / "no memory" / "metrics.jsonl")
    assert [record["message"] for record in records if record.get("event") == "partition"] == [NOT_COMPARED]


def test_a_step_of_two_learners_is_two_batches(found: dict[str, Any]) -> None:
    assert_alike(found["slow for two"], found["two"])


def test_what_was_predicted_and_what_was_measured_are_in_one_file(found: dict[str, Any], folder: Path) -> None:
    events = json.loads((folder / "checked" / placed_speed.FILE).read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == ["predicted", "measured"]
    for pid in names:
        ran = [event for event in events if event["pid"] == pid and event["ph"] == "X"]
        assert {event["cat"] for event in ran} >= {"forward", "backward", "update"}
    records = read_records(folder / "checked" / "metrics.jsonl")
    (event,) = [record for record in records if record.get("event") == "partition"]
    assert re.fullmatch(
        r"partition: [\d.]+ ms a batch, data parallelism [\d.]+ ms, one device [\d.]+ ms", event["message"]
    )


@pytest.mark.usefixtures("found")
def test_what_messages_take_between_two_processes_is_measured_and_kept(folder: Path) -> None:
    (file,) = (folder / "links").iterdir()
    kept = link_benchmark._read_links(json.loads(file.read_text())["value"], 2)
    assert kept is not None
    lines, sum_us = kept
    assert list(lines) == [(0, 1)]
    latency_ns, ns_per_byte = lines[0, 1]
    assert 0 <= latency_ns < 1e10
    assert 0 < ns_per_byte < 1e6
    assert 0 <= sum_us < 1e7


@pytest.fixture
def train(tmp_path: Path, _no_report: None) -> Train:
    """A training on one device, by a strategy of one."""

    def run(given: Any = None, samples: Any = 16, **settings: Any) -> bow.Result:
        options = {"devices": "cpu", "run_dir": tmp_path / "run", **COMMON, **settings}
        samples = data(samples) if isinstance(samples, int) else samples
        if isinstance(given, bow.Found):
            return given.train(samples, cross_entropy, model=model(), **grouped(**options))
        return by(given or strategy(1), model(), samples, cross_entropy, **options)

    return run


def test_a_strategy_is_read_from_a_file(train: Train, tmp_path: Path) -> None:
    file = tmp_path / "strategy.json"
    file.write_text(strategy(1).to_json())
    result = train(bow.Found.load(file))
    assert (result.engine, result.learners) == ("tiles", 1)
    assert_alike(Outcome.of(result), by_replicas(tmp_path / "other", learners=1))


def test_a_strategy_is_what_plan_returns(train: Train, tmp_path: Path) -> None:
    batch = tuple(each[:BATCH] for each in data())
    alone = DeviceTopology("alone", (Device("core", DeviceKind("core", memory_gib=1, tflops=0.1, gb_per_s=1)),))
    settings: dict[str, Any] = {"budget_s": None, "proposals": 1, "starts": ("single",), "descend": False}
    result = train(bow.plan(model(), batch, cross_entropy, topology=alone, **settings))
    assert result.engine == "tiles"
    assert "Chain" not in (tmp_path / "run" / "config.yaml").read_text()


def test_modules_in_evaluation_mode_stay_so(train: Train, tmp_path: Path) -> None:
    frozen, batch = model(), tuple(each[:BATCH] for each in data())
    frozen[1].eval()
    given: dict[str, Any] = {
        "learners": 1,
        "engine": "eager",
        "devices": "cpu",
        "run_dir": tmp_path / "other",
        **COMMON,
    }
    expected = bow.train(frozen, data(), cross_entropy, **grouped(**given)).model.state_dict()
    settings: dict[str, Any] = {"budget_s": None, "proposals": 1, "starts": ("single",), "progress": False}
    for planned in (frozen, copy.deepcopy(frozen).eval()):  # a model all in evaluation mode is trained all the same
        found = bow.plan(planned, batch, cross_entropy, topology="two_cores", **settings)
        kinds = [operator.kind for operator in found.problem.graph.operators]  # type: ignore[union-attr]
        assert ("frozen_batch_norm" in kinds) is (planned is frozen)
        options = grouped(**{"devices": 1, "run_dir": tmp_path / kinds[1], **COMMON})
        result = found.train(data(), check=False, **options)
        assert (int(result.model[1].num_batches_tracked) == 0) is (planned is frozen)  # type: ignore[index]
        if planned is frozen:
            for name, value in result.model.state_dict().items():
                torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("on_nan", ["restart", "error"])
def test_a_loss_that_is_not_finite_ends_the_training(train: Train, on_nan: str) -> None:
    inputs, labels = data()
    inputs[::3] = torch.nan
    with pytest.raises(DivergenceError, match=r"training diverged: the loss was nan in round \d; lower"):
        train(samples=(inputs, labels), on_nan=on_nan)


@pytest.mark.parametrize("samples", [5, 6])  # a single one, which batch norm could not take, too
def test_a_batch_of_another_size_is_left_out_with_an_event(train: Train, tmp_path: Path, samples: int) -> None:
    results = [train(samples=count, steps=None, run_dir=tmp_path / str(count)) for count in (samples, 4)]
    records = read_records(tmp_path / str(samples) / "metrics.jsonl")
    assert [record["round"] for record in records if record.get("event") == LEFT_OUT] == [1]
    assert int(results[0].model.get_buffer("1.num_batches_tracked")) == 1


class Changes(bow.Callback):
    """Changes a value in Python behind the second round."""

    def __init__(self, values: dict[str, float], name: str) -> None:
        self.values, self.name = values, name

    def on_round_end(self, run: Any) -> None:
        if run.round == 2:
            self.values[self.name] *= 2


@pytest.mark.parametrize("name", ["beta", "unread"])
def test_a_strategy_goes_on_only_with_the_values_that_it_has_captured(name: str, tmp_path: Path) -> None:
    values = {"beta": 1.5, "unread": 1.0}

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1]) * values["beta"]

    graph = capture_operators(model(), tuple(each[:BATCH] for each in data()), step=step).graph
    train = functools.partial(
        by,
        Partition(graph.hash, everything_on(graph)),
        *(model(), data()),
        step=step,
        callbacks=[Changes(values, name)],
        **{"devices": "cpu", "run_dir": tmp_path / "run", **COMMON},
    )
    if name == "unread":
        assert len(train().history) == 2
    else:
        with pytest.raises(CaptureError, match=r"reads .values., which has changed in Python, in round 2 .* keeps"):
            train()


def test_a_strategy_refuses_a_step_that_changes_values() -> None:
    counts = [0]

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        counts[0] += 1
        return cross_entropy(model(batch[0]), batch[1]) * counts[0]

    with pytest.raises(CaptureError, match=r"changes .*counts.* in Python.*, or train without a partition"):
        by(strategy(1), model(), data(), step=step, devices="cpu", **COMMON)


def test_a_checkpoint_says_whether_it_needs_a_strategy(train: Train, tmp_path: Path) -> None:
    plain = {**COMMON, "learners": 1, "engine": "eager", "devices": "cpu"}
    train(checkpoint_every=STEPS)
    with pytest.raises(CheckpointError, match=r"of a training by a partition of bow.plan; resume with that partition"):
        bow.train(model(), data(), cross_entropy, **grouped(resume=tmp_path / "run", **plain))
    bow.train(model(), data(), cross_entropy, **grouped(run_dir=tmp_path / "plain", checkpoint_every=STEPS, **plain))
    with pytest.raises(CheckpointError, match=r"of a training without this partition; resume with bow.train"):
        train(resume=tmp_path / "plain", run_dir=None)


def test_what_runs_when_can_be_recorded(train: Train, tmp_path: Path) -> None:
    train(callbacks=[bow.TraceRounds(first=1, rounds=2)])
    spans = Timeline.load(tmp_path / "run" / bow.TraceRounds.FILE).spans
    assert sum(span.category == "update" for span in spans) == 2


def test_a_training_that_diverges_has_no_hope() -> None:
    from bow.training.placed import PartitionRounds

    class Rounds(PartitionRounds):
        def __init__(self) -> None:
            self.last = None

    rounds = Rounds()
    assert not rounds.is_hopeless
    for value, hopeless in ((1.0, False), (torch.inf, True)):
        losses = torch.tensor([value])
        rounds.last = bow.training.placed.Outcome(losses, losses.isfinite(), [True])
        assert rounds.is_hopeless is hopeless


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"engine": "eager"}, SettingError, "engine=Engine.name='eager'.* does not work with a partition"),
        ({"dispatch": "first_come"}, SettingError, "engine=.*dispatch='first_come'.* does not work with a partition"),
        ({"precision": "bfloat16"}, SettingError, "precision='bfloat16' does not work with a partition"),
        ({"clip_norm": 1.0}, SettingError, "clip_norm=1.0 does not work .*no device sees a whole gradient"),
        ({"compile": True}, SettingError, "engine=.*compile=True.* does not work with a partition"),
        ({"buffers": "first"}, SettingError, "buffers='first' does not work with a partition"),
        ({"tuner": bow.Tuner()}, SettingError, "learners=Tuner.* does not work with a partition"),
        ({"learners": 2}, SettingError, "learners=2 contradicts the partition, which has 1"),
        ({"batch_size": 8}, ScheduleError, "the partition is for graph .*, this model's is .*; plan again"),
        (
            {"optimizer": torch.optim.Adafactor},
            OptimizerError,
            "does not treat every element of a weight independently",
        ),
        ({"given": strategy(2), "devices": 1}, ScheduleError, "has a tile on device 1, and there are 1"),
        (
            {"given": strategy(1, learners=2), "sync": bow.SSGD()},
            SettingError,
            r"only synchronisers that average with every step, got SSGD\(every=1\)",
        ),
        (
            {"given": strategy(1, learners=2), "sync": bow.TwoLevel(bow.SMA(), bow.DiLoCo(every=2))},
            SettingError,
            r"only synchronisers that average with every step, got TwoLevel\(",
        ),
        ({"given": strategy(1, learners=2), "devices": 3}, ScheduleError, "3 devices cannot be divided among 2"),
    ],
)
def test_what_a_strategy_cannot_carry_out_is_refused(
    train: Train, settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        train(**settings)
    assert not (tmp_path / "run").exists()


def test_a_file_of_another_version_is_refused(train: Train, tmp_path: Path) -> None:
    file = tmp_path / "strategy.json"
    file.write_text(strategy(1).to_json().replace('"version": 1', '"version": 7'))
    with pytest.raises(ScheduleError, match="has version 7"):
        train(bow.Found.load(file))


def test_other_processes_get_the_rules_that_were_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("bow.training.train")
    taken: list[object] = []
    monkeypatch.setattr("bow.planning.tiles.registered_rules", lambda: "rules")
    monkeypatch.setattr("bow.planning.tiles.import_rules", taken.append)
    monkeypatch.setattr(module, "run_training", lambda config: taken.append(config.seed))
    monkeypatch.setattr(module, "WorkerJob", lambda job: job)
    config = TrainConfig(model=model(), data=data(), loss=cross_entropy, partition=strategy(1), seed=5)
    job: Any = module._worker_job(config, 2)
    job()
    assert taken == ["rules", 5]


class Hidden(threading.local):
    """A value where nobody can watch it."""

    beta = 1.0


def test_a_strategy_tells_at_the_end_of_a_change_that_nobody_could_see(tmp_path: Path) -> None:
    hidden = Hidden()

    def change(run: Any) -> None:
        hidden.beta = 2.0 if run.round >= 2 else 1.0

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1]) * hidden.beta

    graph = capture_operators(model(), tuple(each[:BATCH] for each in data()), step=step).graph
    strategy = Partition(graph.hash, everything_on(graph))
    settings = {"devices": "cpu", "run_dir": tmp_path / "run", **COMMON}
    with pytest.warns(UserWarning, match=r"reads something, which has changed in Python, in round 6 .*same in round 0"):
        by(strategy, model(), data(), step=step, callbacks=[Behind(change)], **settings)
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [record["event"] for record in records if record["kind"] == "event"] == ["not equal"]
