"""Data as other libraries have them, beside the loop that their users write."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, SequentialSampler, TensorDataset, default_collate

import bow
from benchmarks.models import let_torchvision_be_imported
from bow.data import open_stream
from bow.errors import DataError, SettingError
from tests.training.blueprints import dealt

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
FEATURES, LABELS = torch.randn(24, 5, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
PICTURES = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def linear(inputs: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 3))


def trained(model: nn.Module, data: Any, path: Path, **settings: Any) -> bow.Result:
    given = {"optimizer": SGD, "learners": 1, "engine": "eager", "devices": "cpu", "epochs": 2, **settings}
    loss = None if "step" in settings else cross_entropy
    return bow.train(model, data, loss, run=bow.Run(path / "run", progress=False), **given)


def looped(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """The parameters that the plain loop comes to."""
    model = copy.deepcopy(model)
    optimizer = SGD(model.parameters())
    for inputs, targets in batches:
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def assert_same(own: nn.Module, expected: list[Tensor]) -> None:
    for parameter, other in zip(own.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-6, atol=1e-7)


def test_arrays_are_what_tensors_are(tmp_path: Path) -> None:
    model, arrays = linear(), (FEATURES.numpy(), LABELS.numpy())
    result = trained(model, arrays, tmp_path, batch_size=4, validation=arrays)
    assert_same(result.model, looped(model, dealt((FEATURES, LABELS), 4, epochs=2)))
    assert result.metrics["accuracy"] > 0


def test_arrays_share_their_memory_where_they_can_be_written() -> None:
    array = np.zeros((4, 2), dtype=np.float32)
    stream = open_stream(array, batch_size=4)
    array[:] = 3
    assert stream.deal(1).batches.value.sum() == 3 * 8  # type: ignore[union-attr]
    array.setflags(write=False)
    for odd in (array, array[::-1], np.asfortranarray(array)):  # no warning, and no refusal
        assert open_stream(odd, batch_size=4).deal(1).batches.value.sum() == 3 * 8  # type: ignore[union-attr]


def test_labels_that_are_an_array_are_checked_before_the_training(tmp_path: Path) -> None:
    wrong = np.where(np.arange(24) == 20, 7, LABELS.numpy())
    with pytest.raises(DataError, match="labels run from 0 to 7 and the model has 3 outputs"):
        trained(linear(), (FEATURES.numpy(), wrong), tmp_path, batch_size=4)


@pytest.mark.parametrize("format", [None, "torch"])
def test_a_data_set_of_hugging_face(format: str | None, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"features": FEATURES.tolist(), "label": LABELS.tolist()}
    data = datasets.Dataset.from_dict(columns).with_format(format)

    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return cross_entropy(model(batch["features"]), batch["label"])

    model = linear()
    result = trained(model, data, tmp_path, step=step, batch_size=4, validation=data)
    assert_same(result.model, looped(model, dealt((FEATURES, LABELS), 4, epochs=2)))
    assert "loss" in result.metrics


def test_a_frame_through_a_collate_function(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(FEATURES.numpy(), columns=list("abcde")).assign(label=LABELS.numpy())

    def collate(rows: list[dict[str, float]]) -> tuple[Tensor, Tensor]:
        some = pandas.DataFrame(rows)
        return torch.tensor(some[list("abcde")].to_numpy(np.float32)), torch.tensor(some["label"].to_numpy(np.int64))

    loader = DataLoader(frame.to_dict("records"), batch_size=4, collate_fn=collate)
    model = linear()
    result = trained(model, loader, tmp_path)
    assert_same(result.model, looped(model, [*loader, *loader]))
    columns = frame[list("abcde")].to_numpy(np.float32), frame["label"].to_numpy()
    result = trained(model, columns, tmp_path / "columns", batch_size=4)
    assert_same(result.model, looped(model, dealt((FEATURES, LABELS), 4, epochs=2)))
    for given in (frame, (frame, frame["label"])):
        with pytest.raises(DataError, match=r"DataFrame.*; convert a column with \.to_numpy\(\)"):
            trained(model, given, tmp_path)


def test_a_frame_itself_is_refused(tmp_path: Path) -> None:
    class Frame:
        """Like pandas's: it yields columns and has no truth value."""

        iloc = None
        __len__ = FEATURES.__len__
        __getitem__ = FEATURES.__getitem__

        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    with pytest.raises(DataError, match=r"got Frame; convert a column with \.to_numpy\(\)"):
        trained(linear(), Frame(), tmp_path)


def shards(folder: Path) -> Any:
    """The samples as a `WebDataset`."""
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(folder / "samples.tar")) as writer:
        for index, (features, label) in enumerate(zip(FEATURES.numpy(), LABELS.tolist(), strict=True)):
            writer.write({"__key__": f"{index:04}", "npy": features, "cls": label})
    data = webdataset.WebDataset(str(folder / "samples.tar"), shardshuffle=False)
    return data.decode().to_tuple("npy", "cls")


def web_loader(folder: Path, **settings: Any) -> Any:
    data = shards(folder).batched(4)
    return sys.modules["webdataset"].WebLoader(data, batch_size=None, **settings)


def stateful_loader(folder: Path) -> Any:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    return loaders.StatefulDataLoader(TensorDataset(FEATURES, LABELS), batch_size=4)


def nodes(folder: Path) -> Any:
    nodes = pytest.importorskip("torchdata.nodes")
    samples = nodes.MapStyleWrapper(TensorDataset(FEATURES, LABELS), sampler=SequentialSampler(FEATURES))
    return nodes.Loader(nodes.ParallelMapper(nodes.Batcher(samples, 4), default_collate, num_workers=1))


LOADERS = {
    "webdataset": shards,
    "webdataset's loader": web_loader,
    "webdataset's loader in a process": functools.partial(web_loader, num_workers=1),
    "torchdata's stateful loader": stateful_loader,
    "torchdata's nodes": nodes,
}


@pytest.mark.filterwarnings("ignore")  # of these libraries
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_data_sets_and_loaders_that_are_iterated_over(make: Any, tmp_path: Path) -> None:
    model, data = linear(), make(tmp_path)
    size = {"batch_size": 4} if make is shards else {}
    result = trained(model, data, tmp_path, steps=12, validation=make(tmp_path), **size)
    native = trained(model, DataLoader(TensorDataset(FEATURES, LABELS), batch_size=4), tmp_path / "native")
    assert_same(result.model, list(native.model.parameters()))
    assert_same(result.model, looped(model, 2 * list(zip(FEATURES.split(4), LABELS.split(4), strict=True))))
    assert "accuracy" in result.metrics


@pytest.mark.filterwarnings("ignore")  # of these libraries
@pytest.mark.parametrize("make", [shards, web_loader, nodes])
def test_passes_over_what_has_no_length_are_not_counted(make: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="have no epochs, got steps=None; set steps to the number of rounds"):
        trained(linear(), make(tmp_path), tmp_path)


class Pass:
    left: Any

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        return next(self.left)


class OnePass:
    """A loader whose passes share one iterator, which each of them restarts, as `torchdata.nodes.Loader` does."""

    def __init__(self) -> None:
        self.under_way = Pass()

    def __iter__(self) -> Any:
        self.under_way.left = iter(dealt((FEATURES, LABELS), 5, epochs=1))
        return self.under_way


class AnyPass:
    def __iter__(self) -> Any:
        return iter(dealt((FEATURES, LABELS), 5, epochs=1))


ONE_PASS = "the loader given as data allows one pass at a time, and .*; use"


def test_recalibration_is_refused_where_it_would_restart_the_pass_of_the_training(tmp_path: Path) -> None:
    policy = bow.Validation((FEATURES, LABELS), buffers="recalibrate")
    given: dict[str, Any] = {"steps": 12, "validation": policy}
    with pytest.raises(DataError, match=ONE_PASS):
        trained(linear(), OnePass(), tmp_path, **(given | {"learners": 2}))
    assert not (tmp_path / "run").exists()
    result = trained(linear(), OnePass(), tmp_path / "one", **given)
    assert_same(result.model, list(trained(linear(), AnyPass(), tmp_path / "any", **given).model.parameters()))
    trained(linear(), AnyPass(), tmp_path / "two", **(given | {"learners": 2}))


def test_members_do_not_share_the_pass_of_a_loader(tmp_path: Path) -> None:
    def swept(data: Any, at_once: Any, name: str) -> bow.members.Sweep:
        return bow.sweep(
            linear, data, cross_entropy, variants=bow.grid(lr=[0.1, 0.2]), steps=7, at_once=at_once, engine="eager",
            run=bow.Run(tmp_path / name, progress=False),
        )  # fmt: skip

    with pytest.raises(DataError, match=ONE_PASS):
        swept(OnePass(), "auto", "refused")
    assert not (tmp_path / "refused").exists()
    expected = swept(AnyPass(), "auto", "any")
    for member, other in zip(swept(OnePass(), 1, "one by one"), expected, strict=True):
        assert member.model is not None
        assert other.model is not None
        assert_same(member.model, list(other.model.parameters()))


class Transformed(Dataset[Any]):
    """What users of transforms write."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return len(PICTURES)

    def __getitem__(self, index: int) -> Any:
        return self.transform(PICTURES[index]), int(LABELS[index])


@pytest.fixture
def v2() -> Any:
    let_torchvision_be_imported()
    pytest.importorskip("torchvision")
    from torchvision.transforms import v2

    return v2


def test_transforms_of_torchvision_are_drawn_from_the_seed(v2: Any, tmp_path: Path) -> None:
    transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(8, padding=2), v2.Normalize([0.5] * 3, [0.5] * 3)])
    data, model = Transformed(transform), linear(192)
    first, again = (trained(model, data, tmp_path / name, batch_size=4, seed=3).model for name in ("a", "b"))
    assert_same(first, list(again.parameters()))
    plain = trained(model, Transformed(v2.Normalize([0.5] * 3, [0.5] * 3)), tmp_path / "c", batch_size=4, seed=3).model
    assert not torch.equal(next(first.parameters()), next(plain.parameters()))


@pytest.mark.parametrize("mix", ["CutMix", "MixUp"])
def test_pictures_are_mixed_batch_by_batch(mix: str, v2: Any, tmp_path: Path) -> None:
    mixed = getattr(v2, mix)(num_classes=3)

    def collate(samples: list[Any]) -> Any:
        return mixed(*default_collate(samples))

    loader = DataLoader(TensorDataset(PICTURES, LABELS[:12]), batch_size=4, collate_fn=collate)
    model, validation = linear(192), (PICTURES, LABELS[:12])
    first, again = (trained(model, loader, tmp_path / name, validation=validation) for name in ("a", "b"))
    assert_same(first.model, list(again.model.parameters()))
    batches = list(dealt(loader, 4, epochs=2))
    assert batches[0][1].shape == (4, 3)
    assert_same(first.model, looped(model, batches))
    assert "accuracy" in first.metrics
