"""Trainings on several devices in which something fails, or that go on from a checkpoint, end as they should."""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import os
import resource
import socket
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import bow
from bow.cluster import ALONE, PendingSum, World
from bow.cluster.shared_sums import SharedSums
from bow.data import batch_of, digits, open_stream
from bow.errors import ClusterError, DivergenceError
from bow.observe import WandbLogger
from bow.observe.records import read_records
from bow.sync import Timing
from tests.cluster.killed import children
from tests.cluster.test_train import CLASSES, FEATURES, SAMPLES, assert_same, data, train
from tests.cluster.worlds import in_world
from tests.grouped import grouped
from tests.synchronisers import SYNCHRONISERS

BATCH, SEED = 4, 5
"""Those of `train`."""

IN_ALL = 4
"""Learners of both devices together, where nothing else is said."""

BAD_ROUND, BAD_LEARNER = 3, 2
"""Where the sample is that makes a learner diverge; of two devices, the second has this learner."""

HUGE = 3e38
"""A gradient that is finite in float32, while the step that is made of it with a learning rate of 2 is not."""


class Look:
    """Sees the learners of a device behind every round.

    Attributes:
        at_z: by round: the numbers of those that stand at z.
        z: by round.
        weights: of the learners, at the end.
        machines: how many train together.
    """

    def __init__(self) -> None:
        self.at_z: list[list[int]] = []
        self.z: list[Tensor] = []
        self.weights = torch.empty(0)
        self.machines = 0

    def on_round_end(self, run: Any) -> None:
        replicas = run.replicas
        rows = zip(replicas.group.own, replicas.W, strict=True)
        self.at_z.append([learner for learner, row in rows if torch.equal(row, replicas.z)])
        self.z.append(replicas.z.clone())
        self.weights = replicas.W.clone()
        self.machines = replicas.world.nodes


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bow.observe.report.write_report", lambda run_dir: None)
        yield


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Any, Any]]:
    """What two processes come to in all of these trainings, by name; a process takes much longer to start than one."""
    jobs = (restarts, uneven, in_buckets, interrupted, grown, digits_by_two)
    folders = {job.__name__: tmp_path_factory.mktemp(job.__name__) for job in jobs}

    def work(world: World) -> dict[str, Any]:
        return {job.__name__: job(world, folders[job.__name__]) for job in jobs}

    first, second = in_world(2, work)
    return {name: (first[name], second[name]) for name in folders}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bow.Result:
    """What a training comes to in which nothing is out of the ordinary, on one device."""
    return train(tmp_path_factory.mktemp("expected") / "run", devices=1, learners=IN_ALL)


def same(first: Tensor, second: Tensor, tolerance: float = 1e-10) -> bool:
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance)


def records(folder: Path) -> list[dict[str, Any]]:
    return read_records(folder / "metrics.jsonl")


# A learner diverges.


@dataclass(frozen=True)
class Diverging:
    """A training in which one learner diverges.

    Args:
        sync: what keeps learners together.
        engine: what runs them.
        how: `"nan"`: there is one in a batch; `"overflow"`: a step makes weights infinite; `"all"`: there is a NaN in
            every batch.
        on_nan: as in `bow.train`.
    """

    sync: Any
    engine: str = "eager"
    how: str = "nan"
    on_nan: str = "restart"

    def train(self, folder: Path, **settings: Any) -> bow.Result:
        inputs, targets = data()
        marks = torch.zeros(SAMPLES, dtype=torch.float64)
        if self.how == "nan":
            inputs[bad_sample()] = torch.nan
        elif self.how == "all":
            inputs[:] = torch.nan
        else:
            inputs, marks = inputs.float(), marks.float()
            marks[bad_sample()] = 1.0
        torch.manual_seed(1)
        return bow.train(
            nn.Linear(FEATURES, CLASSES).to(inputs.dtype),
            (inputs, targets, marks),
            **grouped(
                step=cross_entropy_and_marks,
                optimizer=functools.partial(torch.optim.SGD, lr=2.0 if self.how == "overflow" else 0.1),
                batch_size=BATCH,
                sync=self.sync,
                engine=self.engine,
                on_nan=self.on_nan,
                seed=SEED,
                run_dir=folder,
                progress=False,
                **settings,
            ),
        )

    @property
    def message(self) -> str:
        """What is said of the learner."""
        quantity = "gradient or weights were not finite" if self.how == "overflow" else "loss was nan"
        what = "is excluded from the mean" if self.sync.kind == "SSGD" else "restarts from the central model"
        return f"device 1: learner {BAD_LEARNER}'s {quantity} in round {BAD_ROUND}: it {what}"

    @property
    def at_z(self) -> list[int]:
        """Who stands at z behind the round."""
        all_of_them = self.sync.timing in (Timing.BEFORE_STEP, Timing.AFTER_STEP) and self.sync.due(BAD_ROUND, IN_ALL)
        return list(range(IN_ALL)) if all_of_them else [BAD_LEARNER]

    @property
    def like_one_device(self) -> float | None:
        """How close z is to that of one device; None: one device has no two levels."""
        tolerance = 1e-4 if self.how == "overflow" else 1e-10
        return None if getattr(self.sync, "levels", 1) == 2 else tolerance


def bad_sample() -> int:
    """The one that the bad learner gets in the bad round."""
    stream = open_stream(torch.arange(SAMPLES), batch_size=BATCH, seed=SEED)
    *_, deal = [stream.deal(IN_ALL) for _ in range(BAD_ROUND + 1)]
    assert deal is not None
    return int(batch_of(deal.batches, BAD_LEARNER)[0])


def cross_entropy_and_marks(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Samples that are marked have a huge gradient by the first weight."""
    inputs, targets, marks = batch
    return nn.functional.cross_entropy(model(inputs), targets) + HUGE * marks.sum() * next(model.parameters())[0, 0]


RESTARTS = [
    Diverging(bow.SMA()),
    Diverging(bow.SMA(), "graph"),
    Diverging(bow.SMA(), "streams"),
    Diverging(bow.SMA(levels=2)),
    Diverging(bow.LocalSGD(every=3)),
    Diverging(bow.SSGD()),
    Diverging(bow.SMA(), how="overflow"),
    Diverging(bow.SMA(), "graph", how="overflow"),
    Diverging(bow.LocalSGD(every=2), how="overflow"),
]


def restarts(world: World, folder: Path) -> list[tuple[bow.Result, Look, list[str]]]:
    """What becomes of each, and what was said."""
    found = []
    for number, case in enumerate(RESTARTS):
        look = Look()
        where, own = folder / f"{world.size}_{number}", IN_ALL // world.size
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = case.train(where, devices="cpu", learners=own, callbacks=[look])
        found.append((result, look, [str(warning.message) for warning in told]))
    return found


def test_a_learner_that_diverges_starts_again_and_the_others_go_on(pair: Any, tmp_path: Path) -> None:
    of_all = zip(RESTARTS, *pair["restarts"], restarts(ALONE, tmp_path), strict=True)
    for case, (result, ours, told), (other, theirs, _), (expected, one, _) in of_all:
        assert result.num_restarts == other.num_restarts == expected.num_restarts == 1, case
        assert result.history[-1]["samples"] == SAMPLES
        assert ours.z[-1].isfinite().all()
        assert all(torch.equal(a, b) for a, b in zip(ours.z, theirs.z, strict=True)), case
        assert ours.at_z[BAD_ROUND] + theirs.at_z[BAD_ROUND] == case.at_z, case
        if (close := case.like_one_device) is not None:
            assert all(same(a, b, close) for a, b in zip(ours.z, one.z, strict=True)), case
        assert told == [case.message]
        (event,) = [record for record in records(result.run_dir) if record["kind"] == "event"]
        assert (event["event"], event["round"], event["message"]) == ("learner restarted", BAD_ROUND, case.message)


@pytest.mark.usefixtures("pair")  # which has started the server of forked processes
def test_a_learner_that_diverges_can_end_all_with_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = children(os.getpid())  # multiprocessing's own, which stays
    with pytest.raises(ClusterError) as raised:
        Diverging(bow.SMA(), on_nan="error").train(tmp_path / "run", devices=2, learners=2)
    assert str(raised.value) == (
        f"rank 1: learner {BAD_LEARNER}'s loss was nan in round {BAD_ROUND}; "
        'lower the learning rate, or use on_nan="restart"'
    )
    assert capfd.readouterr() == ("", "")
    assert children(os.getpid()) == before


@pytest.mark.nightly
def test_a_training_in_which_every_learner_of_every_device_diverges_ends(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="restarts"),
        pytest.raises(DivergenceError, match=r"every learner of every device|steps were discarded"),
    ):
        Diverging(bow.SMA(), how="all").train(tmp_path / "run", devices=2, learners=2, epochs=60)


# A logger or a disk fails.


class Recorder:
    """Takes everything; its lock cannot be sent to another process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: list[Mapping[str, Any]] = []

    def log(self, record: Mapping[str, Any]) -> None:
        with self.lock:
            self.records.append(record)

    def close(self) -> None: ...


class LostRun:
    """A run of W&B's whose network goes after the first epoch."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {}
        self.calls: list[str] = []

    def log(self, values: Mapping[str, Any], step: int) -> None:
        self.calls.append("log")
        if self.calls.count("log") > 1:
            raise ConnectionError("the network is unreachable")

    def finish(self) -> None:
        self.calls.append("finish")
        raise ConnectionError("the network is unreachable")


class TakeDirectory:
    """Behind the second round nothing can be written below the run directory any more, not even by root."""

    def on_round_end(self, run: Any) -> None:
        if run.replicas.world.leads and run.round == 2:
            run.run_dir.rename(run.run_dir.with_name("moved"))
            run.run_dir.touch()


class FillDisk:
    """From the first round on, files of the first process cannot grow, as on a disk that is full."""

    def on_train_start(self, run: Any) -> None:
        if run.replicas.world.leads:
            resource.setrlimit(resource.RLIMIT_FSIZE, (256, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_lost_network_and_a_lost_directory_do_not_end_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: bow.Result
) -> None:
    lost, recorder = LostRun(), Recorder()
    wandb = types.ModuleType("wandb")
    wandb.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    vars(wandb).update(Settings=dict, init=lambda **settings: lost)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings: dict[str, Any] = {"loggers": [WandbLogger(), recorder], "callbacks": [TakeDirectory()]}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = train(tmp_path / "run", devices=2, learners=2, checkpoint_every=8, **settings)
    assert_same(result, expected)
    assert result.model_path == tmp_path / "here" / "run.safetensors"
    assert sorted(said(told)) == [
        "WandbLogger failed",
        "the best model",
        "the checkpoint",
        "the model",
    ]
    assert lost.calls == ["log", "log", "finish"]
    kinds = [record.get("event", record["kind"]) for record in recorder.records]
    assert kinds == [record.get("event", record["kind"]) for record in records(tmp_path / "moved")]
    assert kinds.count("not written") == 4
    assert "end" in kinds


class Checkpoints:
    """The rounds of the checkpoints that rank 0 has seen."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def on_round_end(self, run: Any) -> None:
        if run.replicas.world.leads:
            self.seen |= {int(path.stem.removeprefix("round_")) for path in run.run_dir.glob("checkpoints/*.pt")}


def test_several_devices_write_checkpoints_by_themselves_when_rank_0_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: bow.Result
) -> None:
    monkeypatch.setattr("bow.training.checkpoint.CheckpointTimer.is_due", lambda timer, now_s: True)
    looks = Checkpoints()
    result = train(tmp_path / "run", devices=2, learners=2, checkpoint_every="auto", callbacks=[looks])
    assert_same(result, expected)
    assert looks.seen
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.nightly
def test_a_full_disk_does_not_end_a_training(tmp_path: Path, expected: bow.Result) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = train(tmp_path / "run", devices=2, learners=2, checkpoint_every=8, callbacks=[FillDisk()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_same(result, expected)
    assert sorted(said(told)) == ["JsonLinesLogger failed", "the best model", "the checkpoint", "the model"]
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def said(told: Sequence[warnings.WarningMessage]) -> list[str]:
    """The beginnings of warnings of things that fail and of files that cannot be written."""
    texts = [str(warning.message) for warning in told]
    assert all(" failed and was disabled" in text or " cannot be written" in text for text in texts), texts
    return [text.split(" and was disabled")[0].split(" cannot be")[0] for text in texts]


# Numbers of learners, and sums in buckets.


UNEVEN = [(by_device, sync) for by_device in ([1, 3], [3, 1]) for sync in ("sma", "ssgd", "diloco")]


def uneven(world: World, folder: Path) -> list[bow.Result]:
    return [
        train(
            folder / f"{world.size}_{number}",
            devices="cpu",
            learners=sum(by_device) if world.is_one else by_device[world.rank],
            sync=SYNCHRONISERS[sync](),
        )
        for number, (by_device, sync) in enumerate(UNEVEN)
    ]


def test_devices_with_different_numbers_of_learners_train_what_one_would(pair: Any, tmp_path: Path) -> None:
    alone = uneven(ALONE, tmp_path)
    for rank, own in enumerate(pair["uneven"]):
        for (by_device, _), result, expected in zip(UNEVEN, own, alone, strict=True):
            assert result.learners == by_device[rank]
            assert_same(result, expected)


@contextlib.contextmanager
def sums() -> Iterator[list[int]]:
    """The lengths of what is summed over all devices meanwhile."""
    lengths = []
    all_reduce, begin = dist.all_reduce, SharedSums.begin

    def noted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        if options.get("async_op"):
            lengths.append(tensor.numel())
        return all_reduce(tensor, *args, **options)

    def begun(shared: SharedSums, tensor: Tensor) -> PendingSum:
        lengths.append(tensor.numel())
        return begin(shared, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", noted)
        patch.setattr(SharedSums, "begin", begun)
        yield lengths


BUCKETS: list[tuple[Any, Any, list[int]]] = [
    (None, bow.SMA(), [96]),
    (100 / 2**20, bow.SMA(), [12] * 8),
    (100 / 2**20, bow.SSGD(), [12] * 8 + [1]),
    ("variable", bow.SMA(), [48, 8, 24, 16]),
    ("variable", bow.SSGD(), [48, 8, 24, 16 + 1]),
]
"""A row has 83 numbers and 13 of padding; with `SSGD`, one more says how many learners have contributed."""


def in_buckets(world: World, folder: Path) -> list[tuple[bow.Result, list[int]]]:
    found = []
    for number, (bucket_mb, sync, _) in enumerate(BUCKETS):
        settings: dict[str, Any] = {"devices": "cpu", "learners": IN_ALL // world.size, "sync": sync}
        with sums() as lengths:
            found.append((train(folder / str(number), bucket_mb=bucket_mb, **settings), lengths))
    return found


def test_sums_in_buckets_train_what_one_sum_would(pair: Any, tmp_path: Path) -> None:
    for (_, _, lengths), (result, summed), (expected, _) in zip(
        BUCKETS, pair["in_buckets"][0], in_buckets(ALONE, tmp_path), strict=True
    ):
        assert summed == lengths * result.history[-1]["round"]
        assert_same(result, expected)


@pytest.mark.nightly
def test_processes_that_bow_starts_sum_in_buckets_too(tmp_path: Path, expected: bow.Result) -> None:
    with sums() as lengths:
        result = train(tmp_path / "run", devices=2, learners=2, bucket_mb="variable")
    assert lengths == [48, 8, 24, 16] * result.history[-1]["round"]
    assert_same(result, expected)


# Going on from a checkpoint.


STEPS, INTERRUPTED = 20, 8


@dataclass(frozen=True)
class InLevels:
    """A training that is interrupted, of two devices, each of which may be a machine of its own."""

    sync: Any
    by_device: tuple[int, int] = (2, 2)
    machines: int = 1


LEVELS = [
    InLevels(bow.SMA(levels=2)),
    InLevels(bow.SMA(levels=2), (1, 2)),
    InLevels(bow.TwoLevel(bow.SMA(), bow.DiLoCo(every=3))),
    InLevels(bow.TwoLevel(bow.SMA(), bow.DiLoCo(every=3)), (2, 2), machines=2),
    InLevels(bow.TwoLevel(bow.SMA(), bow.DiLoCo(every=3)), (1, 2), machines=2),
]


def interrupted(world: World, folder: Path) -> list[tuple[Look, Look]]:
    """Trainings that nothing happens to, and what becomes of a checkpoint of each."""
    found = []
    for number, case in enumerate(LEVELS):
        whole, rest = Look(), Look()
        settings: dict[str, Any] = {
            "devices": "cpu",
            "learners": case.by_device[world.rank],
            "sync": case.sync,
            "steps": STEPS,
        }
        runs = [folder / f"{number}_{name}" for name in ("whole", "rest")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda case=case: f"machine {world.rank % case.machines}")
            train(runs[0], checkpoint_every=INTERRUPTED, callbacks=[whole], **settings)
            checkpoint = runs[0] / "checkpoints" / f"round_{INTERRUPTED:08d}.pt"
            train(runs[1], resume=checkpoint, callbacks=[rest], **settings)
        found.append((whole, rest))
    return found


def test_averaging_in_two_levels_goes_on_as_if_it_had_not_been_interrupted(pair: Any) -> None:
    for own in pair["interrupted"]:
        for case, (whole, rest) in zip(LEVELS, own, strict=True):
            assert whole.machines == rest.machines == case.machines
            assert len(rest.z) == STEPS - INTERRUPTED, case
            assert not same(rest.z[0], rest.z[-1])
            assert all(same(a, b) for a, b in zip(rest.z, whole.z[INTERRUPTED:], strict=True)), case
            assert same(rest.weights, whole.weights), case


OPTIMIZERS = [
    functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    functools.partial(torch.optim.AdamW, lr=0.01),
]


def grown(world: World, folder: Path) -> list[Look]:
    """Two learners average gradients, and six go on."""
    found = []
    for number, optimizer in enumerate(OPTIMIZERS):
        settings: dict[str, Any] = {"devices": "cpu", "sync": bow.SSGD(), "optimizer": optimizer}
        run, look = folder / f"{world.size}_{number}", Look()
        train(run, learners=2 // world.size, steps=INTERRUPTED, checkpoint_every=INTERRUPTED, **settings)
        train(run, learners=6 // world.size, steps=STEPS, resume="auto", callbacks=[look], **settings)
        found.append(look)
    return found


def test_learners_that_average_gradients_stay_equal_when_more_of_them_go_on(pair: Any, tmp_path: Path) -> None:
    for ours, theirs, one in zip(*pair["grown"], grown(ALONE, tmp_path), strict=True):
        assert ours.at_z == [[0, 1, 2]] * (STEPS - INTERRUPTED)
        assert theirs.at_z == [[3, 4, 5]] * (STEPS - INTERRUPTED)
        assert all(torch.equal(a, b) for a, b in zip(ours.z, theirs.z, strict=True))
        assert all(same(a, b) for a, b in zip(ours.z, one.z, strict=True))
        assert not same(ours.z[0], ours.z[-1])


# Accuracy.


EPOCHS = 3

SEEDS = range(5)


def learn_digits(folder: Path, seed: int = 0, epochs: int = EPOCHS, **settings: Any) -> list[float]:
    """The accuracy on samples that are held out, by epoch."""
    splits = digits()
    result = bow.train(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)),
        splits.train,
        nn.functional.cross_entropy,
        **grouped(
            optimizer=functools.partial(torch.optim.SGD, lr=0.02, momentum=0.9),
            batch_size=8,
            epochs=epochs,
            checkpoint_every=20,
            engine="eager",
            validation=splits.validation,
            seed=seed,
            run_dir=folder,
            progress=False,
            **settings,
        ),
    )
    return [record["accuracy"] for record in result.history]


@pytest.fixture(scope="module")
def floor(tmp_path_factory: pytest.TempPathFactory) -> float:
    """An accuracy that a training which was interrupted must not be below.

    Five trainings with four learners that nothing happens to differ in their seeds only. Their accuracies at the end
    lie within some range; what is below the lowest by more than this range is none of their kind.
    """
    folder = tmp_path_factory.mktemp("digits")
    ends = [learn_digits(folder / str(seed), seed, devices=1, learners=IN_ALL)[-1] for seed in SEEDS]
    assert max(ends) - min(ends) < 0.03, "or the floor says nothing"
    return min(ends) - (max(ends) - min(ends))


def assert_as_good(accuracies: Sequence[float], floor: float) -> None:
    """One epoch would not do: the last one has built on those before."""
    assert len(accuracies) == EPOCHS
    assert accuracies[0] < floor <= accuracies[-1]


def digits_by_two(world: World, folder: Path) -> tuple[Path, list[float]]:
    """Two devices begin with four learners, go on with two, and then with six: where they began, and the accuracy."""
    begun, rest = folder / "begun", folder / "rest"
    learn_digits(begun, epochs=1, devices="cpu", learners=4 // world.size)
    learn_digits(rest, epochs=2, devices="cpu", learners=2 // world.size, resume=begun)
    return begun, learn_digits(rest, epochs=3, devices="cpu", learners=6 // world.size, resume="auto")


def test_accuracy_is_as_good_when_learners_come_and_go(pair: Any, floor: float) -> None:
    (_, ours), (_, theirs) = pair["digits_by_two"]
    assert ours == theirs
    assert_as_good(ours, floor)


@pytest.mark.nightly
def test_accuracy_is_as_good_when_devices_come_and_go(pair: Any, tmp_path: Path, floor: float) -> None:
    begun, _ = pair["digits_by_two"][0]
    learn_digits(tmp_path / "run", epochs=2, devices=3, learners=2, resume=begun)
    assert_as_good(learn_digits(tmp_path / "run", epochs=3, devices=1, learners=4, resume="auto"), floor)
