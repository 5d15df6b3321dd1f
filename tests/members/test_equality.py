"""A member becomes what the same training becomes alone: whoever trains beside it, in whatever order and number."""

import contextlib
import functools
import itertools
import math
import os
import random
import signal
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import gauss
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

import bow
from bow.data import ShiftedAndMirrored
from bow.engines.graph_round import GraphRound
from bow.engines.live_check import LiveCheck
from bow.errors import ModelError, SettingError
from bow.members import Member, cohort
from bow.members.cohort import Cohort
from bow.members.group import is_same
from bow.members.loop import SweepLoop
from bow.models import LeNet, ResNet
from bow.observe import read_records
from tests.training.blueprints import assert_equal_models

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-4)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.003)

STANDING = functools.partial(torch.optim.SGD, lr=0.0)
FLAT = torch.randn(150, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(150, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 3, (150,), generator=torch.Generator().manual_seed(2))
DATA: Any = (FLAT, LABELS)


class Normed(nn.Module):
    """Batch norm, a counter in a buffer, a frozen layer that is drawn with the seed, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fixed = nn.Linear(4 * 36, 3)
        self.fixed.requires_grad_(False)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return self.second(self.first(self.fixed(F.relu(self.norm(self.convolution(x))).flatten(1))))


class Recurrent(nn.Module):
    """An LSTM over the features one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.unsqueeze(2))[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def transformer() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.TransformerEncoderLayer(2, 1, 4, batch_first=True), nn.Flatten(), nn.Linear(6, 3)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (mlp, FLAT),
    "normed": (Normed, IMAGES),
    "lstm": (Recurrent, FLAT),
    "transformer": (transformer, FLAT),
    "lenet": (functools.partial(LeNet, classes=3, channels=1, size=8), IMAGES),
    "resnet-8": (functools.partial(ResNet, 8, classes=3, channels=1, width=4), IMAGES),
}
USUAL = ("mlp", "normed", "lstm", "transformer")


def swept(path: Path, model: Any, data: Any, variants: list[bow.Variant], **settings: Any) -> Any:
    given = {"epochs": 2, "batch_size": 16, "optimizer": SGD, "validation": data, **settings}
    return bow.sweep(model, data, F.cross_entropy, variants=variants, run=bow.Run(path, progress=False), **given)


def alone(
    path: Path, model: Any, data: Any, variant: bow.Variant, engine: str, threads: int | None = 1, **settings: Any
) -> bow.Result:
    given = {"epochs": 2, "batch_size": variant.batch_size or 16, "validation": data, "learners": 1, **settings}
    factory = variant.make_optimizer(given.pop("optimizer", SGD))
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        return bow.train(
            variant.make_model(model),
            data,
            F.cross_entropy,
            seed=variant.seed,
            optimizer=factory,
            engine=engine,
            run=bow.Run(path, progress=False),
            **given,
        )
    finally:
        torch.set_num_threads(before)


def assert_same(member: Member, other: Any) -> None:
    assert member.model is not None
    assert_equal_models(member.model, other.model)
    assert len(member.history) == len(other.history)
    for mine, its in zip(member.history, other.history, strict=True):
        for name in ("epoch", "round", "samples", "train_loss", "loss", "accuracy"):
            assert mine[name] == its[name], name
    assert_best(member, other)


def assert_alike(result: Iterable[Member], expected: Iterable[Member]) -> None:
    """Two sweeps have the same members."""
    for member, other in zip(result, expected, strict=True):
        assert member.stopped == other.stopped
        assert_same(member, other)


def assert_alone(members: Iterable[Member], path: Path, model: Any, engine: str, **settings: Any) -> None:
    """Members on `DATA` are what they become alone."""
    for member in members:
        other = alone(path / f"alone {member.number}", model, DATA, member.variant, engine, **settings)
        assert_same(member, other)


class Listed:
    """A search that proposes what is in a list, and notes what it hears."""

    def __init__(self, *variants: Any) -> None:
        self.left = list(variants)
        self.heard: list[str] = []
        self.told: list[Member] = []

    def ask(self) -> Any:
        self.heard.append("ask")
        return self.left.pop(0) if self.left else None

    def tell(self, member: Member) -> None:
        self.heard.append(f"tell {member.name}")
        self.told.append(member)


@contextlib.contextmanager
def interrupted(*at: int) -> Iterator[None]:
    """Ctrl-C comes in front of these calls by which sweeps run their rounds."""
    before, calls = SweepLoop._round, itertools.count()

    def run(self: Any, cohorts: Any) -> None:
        if next(calls) in at:
            os.kill(os.getpid(), signal.SIGINT)
        before(self, cohorts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SweepLoop, "_round", run)
        yield
    assert next(calls) > max(at)


def assert_best(member: Member, other: Any) -> None:
    assert (member.best is None) == (other.best is None)
    if member.best is None:
        return
    for name in ("metric", "metrics", "round", "epoch"):
        assert getattr(member.best, name) == getattr(other.best, name), name
    assert (member.best.model is member.model) == (other.best.model is other.model)
    assert_equal_models(member.best.model, other.best.model)
    path = member.run_dir / "best.safetensors"
    assert path.exists() == (member.best.model is not member.model)


VARIANTS = [
    bow.Variant(seed=0),
    bow.Variant(seed=1, settings={"lr": 0.02}),
    bow.Variant(seed=0, settings={"lr": 0.01, "weight_decay": 0.1}),
]


def every_model_on_every_engine() -> Iterator[Any]:
    """Two of the engines with one of the optimizers in turn; `--nightly` has all, and larger models."""
    engines, optimizers = ("eager", "graph", "streams"), {"sgd": SGD, "adamw": ADAMW}
    table = itertools.product(enumerate(MODELS), enumerate(engines), enumerate(optimizers))
    for (i, name), (j, engine), (k, kind) in table:
        is_nightly = (i + j + k) % 2 or (i + j) % 3 == 2 or name not in USUAL
        marks = pytest.mark.nightly if is_nightly else ()
        yield pytest.param(name, engine, optimizers[kind], marks=marks, id=f"{name}-{engine}-{kind}")


@pytest.mark.parametrize(("name", "engine", "optimizer"), list(every_model_on_every_engine()))
def test_members_become_what_they_become_alone(name: str, engine: str, optimizer: Any, tmp_path: Path) -> None:
    make, inputs = MODELS[name]
    data = (inputs, LABELS)
    result = swept(tmp_path / "sweep", make, data, VARIANTS, engine=engine, at_once=2, optimizer=optimizer)
    assert result.engine == engine
    for number, member in enumerate(result.members):
        other = alone(tmp_path / str(number), make, data, member.variant, engine, optimizer=optimizer)
        assert other.engine == engine
        assert_same(member, other)


def test_optimizers_of_other_members_do_not_matter(tmp_path: Path) -> None:
    adam = functools.partial(torch.optim.Adam, lr=0.003, weight_decay=0.1)
    rmsprop = functools.partial(torch.optim.RMSprop, lr=0.003)
    variants = [bow.Variant(name=str(n), optimizer=each) for n, each in enumerate((SGD, ADAMW, adam, rmsprop))]
    result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="graph")
    assert_alone(result, tmp_path, mlp, "graph")


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_neither_order_nor_number_at_once_matter(engine: str, tmp_path: Path) -> None:
    variants = bow.grid(seed=range(3), lr=[0.05, 0.01])
    first = swept(tmp_path / "a", mlp, DATA, variants, engine=engine, at_once=6)
    for at_once in (1, 4):
        other = swept(tmp_path / str(at_once), mlp, DATA, variants[::-1], engine=engine, at_once=at_once)
        for member in first.members:
            assert_same(member, other[member.name])


def test_settings_that_change_shapes_and_batches_make_groups(tmp_path: Path) -> None:
    def wide(width: int = 4) -> nn.Module:
        return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))

    variants = [
        bow.Variant(seed=seed, model=model, batch_size=size)
        for seed in range(2)
        for model in ({}, {"width": 7})
        for size in (None, 32)
    ]
    result = swept(tmp_path / "sweep", wide, DATA, variants, engine="graph")
    assert_alone([result.members[number] for number in (0, 3, 5, 6)], tmp_path, wide, "graph")  # of each kind one


FOLDED = [
    pytest.param(model, engine, marks=() if (model, engine) == ("mlp", "graph") else pytest.mark.nightly)
    for model in ("mlp", "resnet-8", "lstm")
    for engine in ("eager", "graph")
]


@pytest.mark.parametrize(("name", "engine"), FOLDED)
def test_folds_see_their_samples_only(name: str, engine: str, tmp_path: Path) -> None:
    make, inputs = MODELS[name]
    result = bow.cross_validate(
        make,
        (inputs, LABELS),
        F.cross_entropy,
        folds=3,
        seeds=(0, 1),
        epochs=2,
        optimizer=SGD,
        engine=engine,
        run=bow.Run(tmp_path / "folds", progress=False),
    )
    assert [member.name for member in result.members][:2] == ["fold=0 seed=0", "fold=0 seed=1"]
    for number, member in enumerate(result.members):
        train, test = (torch.as_tensor(each) for each in (member.variant.train_on, member.variant.validate_on))
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(150))
        held_out = bow.Validation((inputs[test], LABELS[test]))
        data = (inputs[train], LABELS[train])
        other = alone(tmp_path / str(number), make, data, member.variant, engine, validation=held_out)
        assert_same(member, other)


@pytest.mark.parametrize("learners", [1, 2])
def test_images_that_are_shifted_for_training_are_held_out_as_they_are(learners: int, tmp_path: Path) -> None:
    data, make = ShiftedAndMirrored(IMAGES, LABELS, padding=2), MODELS["lenet"][0]
    given: dict[str, Any] = {"epochs": 2, "optimizer": SGD, "engine": "eager", "learners": learners}
    run = bow.Run(tmp_path / "folds", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = bow.cross_validate(make, data, F.cross_entropy, folds=2, run=run, **given)
    for number, member in enumerate(result):
        train, test = (torch.as_tensor(each) for each in (member.variant.train_on, member.variant.validate_on))
        given["validation"] = IMAGES[test], LABELS[test]
        part, threads = Subset(data, train.tolist()), 1 if learners == 1 else None
        assert_same(member, alone(tmp_path / str(number), make, part, member.variant, threads=threads, **given))


def test_schedulers_are_a_members_own(tmp_path: Path) -> None:
    step = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.1)
    plateau = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0)
    warm = bow.PerRound(functools.partial(torch.optim.lr_scheduler.LinearLR, total_iters=12))
    often = bow.PerRound(functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.9))
    variants = [bow.Variant(name=str(n), scheduler=each) for n, each in enumerate((None, plateau, warm, often))]
    result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="graph", scheduler=step, epochs=3)
    for number, member in enumerate(result.members):
        own = member.variant.scheduler or step
        path = tmp_path / str(number)
        assert_same(member, alone(path, mlp, DATA, member.variant, "graph", scheduler=own, epochs=3))
    assert len({member.history[-1]["lr"] for member in result.members}) == 4


class Noisy(nn.Module):
    """Draws random numbers in evaluation mode, too."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 3)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden if self.training else hidden + self.draw())


DRAWS = {"torch": lambda: torch.randn(4), "python": lambda: random.random(), "numpy": lambda: np.random.rand()}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_numbers_of_evaluation_are_those_of_a_members_seed(tmp_path: Path, draw: Callable[[], Any]) -> None:
    given = {"validation": DATA, "epochs": 3}
    variants, noisy = bow.grid(seed=[0, 1, 2]), functools.partial(Noisy, draw)
    torch.manual_seed(5)
    result = swept(tmp_path / "sweep", noisy, DATA, variants, engine="graph", **given)
    for number, member in enumerate(result.members):
        other = alone(tmp_path / str(number), noisy, DATA, member.variant, "graph", **given)
        assert [each["loss"] for each in member.history] == [each["loss"] for each in other.history]


class Epochs(TensorDataset):
    """Reads its samples by the epoch that it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return self.tensors[0][index] + self.epoch, self.tensors[1][index]


def drawing_as_it_goes() -> RandomSampler:
    return RandomSampler(LABELS, replacement=True, generator=torch.Generator())


@pytest.mark.parametrize("sampler", [lambda: None, drawing_as_it_goes], ids=["shuffled", "with replacement"])
def test_members_in_different_epochs_of_a_data_set_read_their_own(tmp_path: Path, sampler: Callable) -> None:
    class First:
        def why_over(self, member: Member) -> str | None:
            return "the first" if member.name == "seed=0" else None

    given = {"validation": None, "epochs": 3, "engine": "eager"}
    drawn = sampler()
    loader = DataLoader(Epochs(FLAT, LABELS), batch_size=16, sampler=drawn, shuffle=drawn is None)
    variants = bow.grid(seed=[0, 1, 2])
    result = swept(tmp_path / "sweep", mlp, loader, variants, at_once=2, batch_size=None, stop=First(), **given)
    for member in result.members[1:]:
        path = tmp_path / member.name
        other = alone(path, mlp, loader, member.variant, **given)
        assert [each["train_loss"] for each in member.history] == [each["train_loss"] for each in other.history]


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("is_loader", [False, True])
def test_the_training_loss_of_a_member_is_the_mean_over_samples(tmp_path: Path, is_loader: bool, engine: str) -> None:
    data = DataLoader(TensorDataset(*DATA), batch_size=40) if is_loader else DATA  # the last batch has 30
    given: dict[str, Any] = {"batch_size": None if is_loader else 40, "epochs": 1, "optimizer": STANDING}
    (member,) = swept(
        tmp_path, functools.partial(nn.Linear, 6, 3), data, bow.grid(seed=[0]), engine=engine, validation=DATA, **given
    )
    assert member.history[0]["train_loss"] == pytest.approx(member.history[0]["loss"], rel=1e-6)


def test_steps_end_a_member_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    result = swept(tmp_path / "sweep", mlp, DATA, VARIANTS, engine="graph", steps=13, at_once=2)
    assert_alone(result, tmp_path, mlp, "graph", steps=13)


def test_one_that_diverges_ends_alone(tmp_path: Path) -> None:
    variants = bow.grid(seed=[0, 1], lr=[0.05, 1e30])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="graph")
    assert [member.stopped for member in result.members] == [None, "diverged", None, "diverged"]
    assert_alone(result.members[::2], tmp_path, mlp, "graph")
    assert result.best.stopped is None
    assert len(result.ensemble.models) == 2


def test_members_that_all_diverge_are_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="every member diverged; use a lower learning rate"):
        swept(tmp_path / "sweep", mlp, DATA, bow.grid(seed=[0, 1], lr=[1e30]), engine="eager")


class Counted(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Counts what is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return len(FLAT)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return FLAT[index], LABELS[index]


def doubling(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0].mul_(2)), batch[1])


def doubled(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0] * 2), batch[1])


def test_members_that_share_batches_do_not_see_what_others_do_to_them(tmp_path: Path) -> None:
    made = [
        bow.sweep(mlp, Counted(), step=step, variants=VARIANTS, engine="eager", batches="shared", epochs=2,
                  run=bow.Run(tmp_path / step.__name__, progress=False))
        for step in (doubling, doubled)
    ]  # fmt: skip
    for member, other in zip(*(result.members for result in made), strict=True):
        assert_weights_equal(member, other)


def test_shared_batches_are_read_once(tmp_path: Path) -> None:
    shared, own = Counted(), Counted()
    first = swept(tmp_path / "a", mlp, shared, VARIANTS, engine="eager", batches="shared", validation=None)
    swept(tmp_path / "b", mlp, own, VARIANTS, engine="eager", validation=None)
    assert own.reads - shared.reads == 2 * 2 * len(FLAT)
    tensors = swept(tmp_path / "c", mlp, DATA, VARIANTS, engine="eager", batches="shared", validation=None)
    assert_weights_equal(first.members[0], tensors.members[0])


def assert_weights_equal(member: Member, other: Member) -> None:
    assert member.model is not None
    assert other.model is not None
    assert_equal_models(member.model, other.model)


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_batches_of_odd_sizes_round_as_alone(engine: str, tmp_path: Path) -> None:
    result = swept(tmp_path / "sweep", mlp, DATA, VARIANTS, engine=engine, batch_size=7)
    assert_alone(result, tmp_path, mlp, engine, batch_size=7)


class Late(nn.Module):
    """Has its buffer from the first batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = x.mean(0) if self.seen is None else 0.9 * self.seen + x.mean(0)
        return self.linear(x)


def test_a_buffer_that_is_none_at_first_is_so_for_the_next_member(tmp_path: Path) -> None:
    variants = bow.grid(seed=range(2))
    result = swept(tmp_path / "sweep", Late, DATA, variants, engine="eager", at_once=1)
    assert_alone(result, tmp_path, Late, "eager")


class Projected(nn.Linear):
    """Draws a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.fixed = torch.randn(6, 6)


class Permuted(nn.Linear):
    """Keeps a drawn order in another container."""

    def __init__(self, container: Callable[[list[int]], Any], count: int = 6) -> None:
        super().__init__(6, 3)
        self.order = container(torch.randperm(count).tolist())
        self.sizes = {"in": [6], "out": (3, None)}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, self.order])


def one_of_two() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh() if torch.rand(()) < 0.5 else nn.Sigmoid(), nn.Linear(6, 3))


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    model[int(torch.randint(2, ()))].requires_grad_(False)
    return model


def two_groups(parameters: Any, first: int) -> torch.optim.Optimizer:
    listed = list(parameters)
    groups = [{"params": listed[:2]}, {"params": listed[2:], "lr": 0.01}]
    return torch.optim.SGD(groups if first == 0 else groups[::-1], lr=0.1)


@pytest.mark.parametrize(
    ("model", "variants", "said"),
    [
        (Projected, bow.grid(seed=range(2)), "differ in attribute 'fixed'"),
        (functools.partial(Permuted, list), bow.grid(seed=range(2)), "differ in attribute 'order'"),
        (functools.partial(Permuted, np.array), bow.grid(seed=range(2)), "differ in attribute 'order'"),
        (one_of_two, bow.grid(seed=range(8)), "differ in the type of module '1'"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(torch.rand(()).item())), bow.grid(seed=range(2)), "'p' of"),
        (half_frozen, bow.grid(seed=range(8)), "frozen"),
        (
            lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)),
            [bow.Variant(name=str(n), optimizer=functools.partial(two_groups, first=n)) for n in range(2)],
            "equal parameter groups",
        ),
    ],
    ids=["tensor", "list", "array", "type", "number", "frozen", "groups"],
)
def test_what_members_would_take_from_each_other_is_refused(
    model: Any, variants: list[bow.Variant], said: str, tmp_path: Path
) -> None:
    with pytest.raises(bow.BowError, match=said):
        swept(tmp_path / "sweep", model, DATA, variants, engine="eager", at_once=8)
    assert not (tmp_path / "sweep").exists()


def test_one_batch_that_is_not_finite_ends_a_member_among_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step is taken by it, so that those behind it would be finite again."""
    inputs, labels, ended = FLAT.repeat(10, 1), LABELS.repeat(10), []
    inputs[77] = torch.nan
    before = GraphRound.collect_turns

    def collected(self: Any) -> Any:
        turns = before(self)
        ended.extend([len(turns.losses)] if not turns.finite else [])
        assert turns.losses[:-1].isfinite().all()
        return turns

    monkeypatch.setattr(GraphRound, "collect_turns", collected)
    given = {"variants": [bow.Variant(seed=n) for n in range(4)], "optimizer": SGD, "validation": DATA}
    with pytest.warns(UserWarning, match="every member diverged"):
        result = swept(tmp_path / "turns", mlp, (inputs, labels), engine="graph", **given)
    assert max(ended) > 1
    assert [member.stopped for member in result.members] == ["diverged"] * 4


@pytest.mark.sample(3)
@pytest.mark.parametrize("batches", ["own", "shared"])
@pytest.mark.parametrize("model", ["mlp", "normed"])
def test_members_that_take_turns_equal_those_that_keep_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, batches: Any
) -> None:
    """Dropout, batch norm, Adam's count of steps, folds, and one that diverges among its turns."""
    function, inputs = MODELS[model]
    some = torch.arange(140)
    variants = [
        bow.Variant(seed=0),
        bow.Variant(seed=1, settings={"lr": 0.02}, train_on=some),
        bow.Variant(seed=2, settings={"lr": 1e38}),
        bow.Variant(seed=3),  # which may share its batches with the first
    ]
    given = {"variants": variants, "optimizer": ADAMW, "epochs": 6, "engine": "graph", "batches": batches}
    taken: list[int] = []
    before = GraphRound.collect_turns

    def collected(self: Any) -> Any:
        turns = before(self)
        taken.append(len(turns.losses))
        return turns

    monkeypatch.setattr(GraphRound, "collect_turns", collected)
    some_at_once = swept(tmp_path / "turns", function, (inputs, LABELS), **given)
    assert sum(taken) > 60
    assert max(taken) > 4
    monkeypatch.setattr("bow.members.loop.MOST_ROUNDS", 1)
    num_taken = len(taken)
    one_by_one = swept(tmp_path / "rounds", function, (inputs, LABELS), **given)
    assert len(taken) == num_taken
    assert [member.stopped for member in some_at_once.members] == [None, None, "diverged", None]
    for number in (0, 1, 3):
        assert_same(some_at_once.members[number], one_by_one.members[number])
    diverged, other = some_at_once.members[2], one_by_one.members[2]
    assert diverged.history == other.history == []


class Drifting(nn.Linear):
    """Puts another tensor in the place of its buffer."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x) + self.shift
        if self.training:
            self.shift = 0.9 * self.shift + 0.1 * outputs.detach().mean(0)
        return outputs


def test_turns_behind_a_round_in_eager_go_on_with_its_buffers(tmp_path: Path) -> None:
    variants = bow.grid(seed=range(3))
    result = swept(tmp_path / "sweep", Drifting, DATA, variants, engine="graph", at_once=1)
    assert_alone(result, tmp_path, Drifting, "graph")


def test_members_that_take_turns_are_checked_as_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.engines.live_check.SHARE", 1e-9)  # nothing by the clock
    monkeypatch.setattr("bow.engines.live_check.FREE_CHECKS_S", 1e9)
    cohorts: list[Cohort] = []
    checked: list[tuple[int, int]] = []
    begin, verdict = Cohort.begin, LiveCheck.compare

    def seen(self: Any, *given: Any) -> Any:
        checked.append((given[-1] + 1, cohorts[-1].num_rounds))
        return verdict(self, *given)

    monkeypatch.setattr(Cohort, "begin", lambda self, turns: cohorts.append(self) or begin(self, turns))
    monkeypatch.setattr(LiveCheck, "compare", seen)
    swept(tmp_path / "sweep", mlp, DATA, VARIANTS, engine="graph", epochs=8)
    assert len(cohorts) < 60  # of 75 rounds
    assert checked == [*((count, count) for count in (1, 2, 4, 8, 16, 32, 64)), (76, 75)]  # and behind the last


class Hidden(threading.local):
    """A value where nobody can watch it."""

    beta = 1.0


HIDDEN = Hidden()


def hidden(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1]) * HIDDEN.beta


@pytest.mark.parametrize("learners", [1, 2])
def test_a_change_behind_the_last_check_is_told_at_the_end(
    learners: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_due = LiveCheck.is_due

    def not_again(self: LiveCheck, index: int) -> bool:
        due = is_due(self, index)
        HIDDEN.beta = 1.0 if index < 3 else 2.0
        return due and index < 2

    monkeypatch.setattr(LiveCheck, "is_due", not_again)
    monkeypatch.setattr(LiveCheck, "rounds_before", lambda self, index: 1)
    HIDDEN.beta = 1.0
    run = bow.Run(tmp_path, progress=False)
    with pytest.warns(UserWarning, match="the loss is .* it last matched in round 1,"):
        bow.sweep(
            mlp, DATA, step=hidden, variants=[bow.Variant(seed=0)], engine="graph", epochs=2,
            learners=learners, batch_size=16, optimizer=SGD, run=run,
        )  # fmt: skip


@pytest.mark.parametrize("container", [list, np.array])
def test_containers_with_equal_elements_are_no_difference(container: Any, tmp_path: Path) -> None:
    model = functools.partial(Permuted, lambda order: container(sorted(order)))
    result = swept(tmp_path / "sweep", model, DATA, bow.grid(seed=range(2)), engine="eager", epochs=1)
    assert len(result.members) == 2


def test_members_share_no_tensor_of_their_optimizers(tmp_path: Path) -> None:
    """Schedulers write into a learning rate that is a tensor."""

    def sgd() -> Any:
        return functools.partial(torch.optim.SGD, lr=torch.tensor(0.5))

    given = {"scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5), "epochs": 3}
    variants = bow.grid(seed=range(3))
    result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="eager", optimizer=sgd(), **given)
    for member in result:
        assert [record["lr"] for record in member.history] == [0.5, 0.25, 0.125]
        path = tmp_path / member.name
        assert_same(member, alone(path, mlp, DATA, member.variant, "eager", optimizer=sgd(), **given))


INITIAL = {"python": lambda: [random.gauss(0, 1) for _ in range(3)], "numpy": lambda: np.random.randn(3)}


@pytest.mark.parametrize("draw", INITIAL.values(), ids=INITIAL)
def test_initial_weights_of_other_generators_are_those_of_a_members_seed(
    draw: Callable[[], Any], tmp_path: Path
) -> None:
    def made() -> nn.Module:
        model = nn.Linear(6, 3)
        model.bias.data.copy_(torch.as_tensor(draw()))
        return model

    before = random.getstate(), np.random.get_state()[2]
    result = swept(tmp_path / "sweep", made, DATA, bow.grid(seed=range(2)), engine="eager")
    assert before == (random.getstate(), np.random.get_state()[2])
    assert_alone(result, tmp_path, made, "eager")
    first, second = (member.model.bias for member in result)
    assert not torch.equal(first, second)


class Scaled(nn.Linear):
    """Draws random numbers in training that are not torch's."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__(6, 3)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.draw() if self.training else 1.0)


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_members_do_not_draw_from_generators_that_all_share(name: str, tmp_path: Path) -> None:
    model, said = functools.partial(Scaled, DRAWS[name]), "the state of (Python's random|numpy.random) during training"
    for at_once in (1, 2):
        with pytest.raises(ModelError, match=f"{said}, which all members share; draw random numbers from torch"):
            swept(tmp_path / "s", model, DATA, bow.grid(seed=[0, 1]), engine="eager", at_once=at_once)
        assert not (tmp_path / "s").exists()
    with pytest.warns(UserWarning, match="draws from (Python|NumPy)'s random, which neither the seed nor"):
        swept(tmp_path / "one", model, DATA, [bow.Variant()], engine="eager")  # nobody else draws
    with pytest.warns(UserWarning, match="draws from (Python|NumPy)'s random, which neither the seed nor"):
        swept(tmp_path / "rung", model, DATA, [bow.Variant()], engine="eager", stop=bow.Halving(first=1))


class Counting(nn.Linear):
    """Counts its steps in Python."""

    steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        return super().forward(x) / self.steps if self.training else super().forward(x)


def test_a_row_is_not_passed_on_with_what_a_model_keeps_in_python(tmp_path: Path) -> None:
    model, variants = functools.partial(Counting, 6, 3), bow.grid(seed=range(2))
    said = "changes attribute 'steps' of the model .*keep it in a buffer, or use at_once=2"
    with pytest.raises(ModelError, match=said):
        swept(tmp_path / "sweep", model, DATA, variants, engine="eager", at_once=1)
    with pytest.warns(UserWarning, match="the step changes attribute 'steps' of the model in Python, which the"):
        result = swept(tmp_path / "both", model, DATA, variants, engine="eager", at_once=2)
    for member in result:
        with pytest.warns(UserWarning, match="the step changes attribute"):
            other = alone(tmp_path / member.name, model, DATA, member.variant, "eager")
        assert_same(member, other)


class Caching(nn.Linear):
    """Keeps in Python what its first step has found."""

    found = 0

    def forward(self, x: Tensor) -> Tensor:
        self.found = self.found or len(x)
        return super().forward(x)


def test_what_a_step_changes_that_is_not_saved_is_told_as_by_a_training(tmp_path: Path) -> None:
    caching, counting = (functools.partial(kind, 6, 3) for kind in (Caching, Counting))
    variants = bow.grid(seed=range(2))
    swept(tmp_path / "caching", caching, DATA, variants, engine="eager")
    alone(tmp_path / "alone", caching, DATA, variants[0], "eager")
    with pytest.warns(UserWarning, match="the step changes attribute 'steps'"):
        result = swept(tmp_path / "sweep", counting, DATA, variants, engine="eager")
    for folder, whose in ((result.run_dir, "seed=0, seed=1: "), *((member.run_dir, "") for member in result)):
        told = [each for each in read_records(folder / "metrics.jsonl") if each.get("event") == "not saved"]
        assert [each["message"][: len(whose) + 16] for each in told] == [f"{whose}the step changes"]


class Rows:
    """A sequence of samples that is no torch data set."""

    def __len__(self) -> int:
        return len(FLAT)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return FLAT[index], LABELS[index]


def test_folds_of_any_sequence_of_samples_are_those_of_tensors(tmp_path: Path) -> None:
    given: dict[str, Any] = {"folds": 3, "stratify": False, "engine": "eager", "optimizer": SGD}
    first, second = (
        bow.cross_validate(mlp, data, F.cross_entropy, run=bow.Run(tmp_path / name, progress=False), **given)
        for name, data in (("rows", Rows()), ("tensors", DATA))
    )
    assert_alike(first, second)


def test_batches_of_a_loader_have_no_parts_to_evaluate_on(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(FLAT, LABELS), batch_size=16)
    for part in ({"validate_on": range(50)}, {"train_on": range(50)}):
        with pytest.raises(SettingError, match=r"train_on and validate_on need tensors .* got DataLoader"):
            swept(tmp_path / "s", mlp, loader, [bow.Variant(**part)], batch_size=None, validation=None)


def test_whether_members_are_compiled_does_not_depend_on_who_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    make = cohort.LearningConfig
    monkeypatch.setattr(cohort, "LearningConfig", lambda *a, **kw: rounds.append(kw["rounds"]) or make(*a, **kw))
    variants = [bow.Variant(name=str(n), train_on=range(n)) for n in (150, 64, 96)]
    for number, some in enumerate((variants, variants[::-1])):
        swept(tmp_path / str(number), mlp, DATA, some, engine="eager", epochs=1, at_once=1, validation=None)
    assert set(rounds) == {3 * 10}


class Vague(nn.Linear):
    """Has no finite outputs in evaluation mode where its seed makes the first bias negative."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else super().forward(x) * torch.where(self.bias[0] > 0, 1, math.nan)


def test_validation_values_that_are_not_finite_are_told(tmp_path: Path) -> None:
    inputs = FLAT.clone()
    inputs[140, 0] = math.nan
    variants, given = bow.grid(seed=range(2)), {"engine": "eager", "epochs": 2}
    with pytest.warns(UserWarning, match="^loss is nan in batch 0 of the validation data: 1 values of the batch are"):
        result = swept(tmp_path / "data", mlp, DATA, variants, validation=(inputs, LABELS), **given)
    for member in result:
        records = read_records(member.run_dir / "metrics.jsonl")
        assert [(each["event"], each["round"]) for each in records if each["kind"] == "event"] == [
            ("not finite", 10), ("not finite", 19)
        ]  # fmt: skip
    variants, vague = bow.grid(seed=range(8)), functools.partial(Vague, 6, 3)
    with pytest.warns(UserWarning, match=r"^seed=[0-9]: loss is nan .* the model may be diverging"):
        result = swept(tmp_path / "model", vague, DATA, variants, **given)
    assert {bool(member.events) for member in result} == {True, False}


class OwnDict(dict[str, int]):
    """A dictionary of a class that torch does not know."""


def test_values_of_any_kind_are_compared() -> None:
    for make in (torch.Size, OwnDict, np.array, torch.tensor, list):
        first, again, other = ([("a", n)] if make is OwnDict else [n, 2] for n in (1, 1, 3))
        assert is_same(make(first), make(again))
        assert not is_same(make(first), make(other))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.tensor([n, 0.0]).to_sparse(),
        lambda n: [torch.tensor([[n, 0.0]]).to_sparse_csr()],
        lambda n: deque([torch.tensor([n, 2.0])]),
        lambda n: defaultdict(lambda: 0.0, {"a": n}),
        lambda n: np.array([n + 0.5, None, f"name {n}"], dtype=object),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_values_that_python_cannot_compare_are_compared(make: Callable[[float], Any]) -> None:
    assert is_same(make(1.0), make(1.0))
    assert not is_same(make(1.0), make(3.0))


class Noised(Counted):
    """Draws from a generator of its own, or from the one that is seeded."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.generator: Any = np.random.default_rng(0) if own else None

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, label = super().__getitem__(index)
        return inputs + float(np.random.randn() if self.generator is None else self.generator.normal()), label


def test_data_sets_with_a_generator_of_their_own_are_told(tmp_path: Path) -> None:
    given: dict[str, Any] = {"engine": "eager", "epochs": 1, "validation": None}
    data, seeded, variants = Noised(own=True), Noised(own=False), bow.grid(seed=range(2))
    half = Subset(data, range(80))
    for part, size in ((data, 16), (half, 8), (DataLoader(half, batch_size=16), None)):
        state = data.generator.bit_generator.state
        with pytest.warns(UserWarning, match="^the data set draws from a random generator of its own, which members"):
            swept(tmp_path / str(size), mlp, part, variants, batch_size=size, steps=1, **given)
        data.generator.bit_generator.state = state
    swept(tmp_path / "one", mlp, data, variants[:1], **given)
    results = [swept(tmp_path / str(n), mlp, seeded, variants, at_once=n, **given) for n in (1, 2)]
    for member, other in zip(*results, strict=True):
        assert_weights_equal(member, other)


class Reseeded(Counted):
    """Every sample seeds the generator it is drawn from, or draws from the one of Python."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.generator: Any = torch.Generator() if own else None

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, label = super().__getitem__(index)
        if self.generator is None:
            return inputs + gauss(0, 1), label
        return inputs + torch.randn(6, generator=self.generator.manual_seed(index)), label


@pytest.mark.parametrize("own", [True, False])
def test_data_sets_whose_samples_are_seeded_are_no_mistake(own: bool, tmp_path: Path) -> None:
    variants: list[bow.Variant] = bow.grid(seed=range(2))
    given: dict[str, Any] = {"engine": "eager", "steps": 1, "validation": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swept(tmp_path / "sweep", mlp, Reseeded(own), variants, **given)


def test_validation_data_are_read_once_beforehand(tmp_path: Path) -> None:
    given: dict[str, Any] = {"engine": "eager", "steps": 1}
    for number, variants in enumerate([bow.grid(batch_size=[8, 16]), Listed(*bow.grid(seed=range(3)))]):
        held_out = Counted()
        result = swept(tmp_path / str(number), mlp, DATA, variants, validation=held_out, **given)
        assert held_out.reads == len(FLAT) * (1 + len(result.members))
