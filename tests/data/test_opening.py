from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bow.data import evaluation_batches, open_stream
from bow.data.stream import TensorStream
from bow.errors import DataError, SettingError


class _Doubled(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class _Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(7))


class _Batches:
    """A loader that is none of torch's."""

    def __iter__(self) -> Any:
        return iter(torch.arange(7).split(3))


class _Pipeline(_Stream):
    """As webdataset's loaders are."""

    def __init__(self) -> None:
        self.pipeline = [DataLoader(_Numbers(), batch_size=3)]

    def __iter__(self) -> Any:
        return iter(self.pipeline[0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.array(["a", "b"]), "an array cannot be a tensor"),
        ((np.zeros(3), torch.zeros(4)), "equal first dimensions"),
        ([1, 2, 3], "got list of int"),
        ((), "got tuple of nothing"),
        ("digits", "got str;"),
        (None, "got NoneType"),
        (iter([1]), "got list_iterator"),
        ({1, 2}, "got set"),
    ],
    ids=["array", "arrays", "numbers", "empty", "name", "None", "iterator", "set"],
)
@pytest.mark.parametrize("read", [open_stream, evaluation_batches])
def test_what_is_no_data_is_refused(read: Any, data: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(data)


@pytest.mark.parametrize("setting", ["batch_size", "epochs", "steps"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "4"])
def test_counts_below_one_are_refused(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"{setting} must be a whole number of at least 1, got {value!r}"):
        open_stream(torch.zeros(4), **{setting: value})  # type: ignore[arg-type]


def test_subclasses_of_tensor_dataset_keep_their_transforms() -> None:
    assert isinstance(open_stream(TensorDataset(torch.ones(4))), TensorStream)
    deal = open_stream(_Doubled(torch.ones(4)), batch_size=4).deal(1)
    assert deal.batches[0][0].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "data",
    [torch.arange(7), _Numbers(), DataLoader(_Numbers(), batch_size=3), _Stream()],
    ids=["tensors", "dataset", "loader", "iterable"],
)
def test_evaluation_reads_everything_once_in_order(data: Any) -> None:
    batches = [batch.tolist() for batch in evaluation_batches(data, 3)]
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("make", [_Batches, _Pipeline])
def test_another_librarys_loader_has_the_batches_of_every_pass(make: Any) -> None:
    assert [batch.tolist() for batch in evaluation_batches(make())] == [[0, 1, 2], [3, 4, 5], [6]]
    stream = open_stream(make(), steps=4)
    assert [len(stream.deal(1).batches[0]) for _ in range(4)] == [3, 3, 1, 3]  # type: ignore[union-attr]
    with pytest.raises(SettingError, match="data without a length have no epochs, got steps=None; set steps"):
        open_stream(make())
    with pytest.raises(SettingError, match="batch_size=3 contradicts the DataLoader's own batches; leave batch_size"):
        open_stream(make(), batch_size=3, steps=1)


def test_evaluation_batches_are_256_by_default() -> None:
    sizes = [len(inputs) for inputs, _ in evaluation_batches((torch.zeros(300, 2), torch.zeros(300)))]
    assert sizes == [256, 44]


def test_evaluation_leaves_the_training_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    list(evaluation_batches(DataLoader(_Numbers(), shuffle=True)))
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_batch_size_that_contradicts_the_loader_is_refused() -> None:
    with pytest.raises(SettingError, match=r"validation\.batch_size=5 contradicts the DataLoader's own batch_size=3"):
        evaluation_batches(DataLoader(_Numbers(), batch_size=3), 5)


def test_evaluation_batch_size_below_one_is_refused() -> None:
    with pytest.raises(SettingError, match=r"validation\.batch_size must be"):
        evaluation_batches(torch.zeros(3), 0)


def test_the_default_batch_size_contradicts_a_loader_where_it_is_given() -> None:
    with pytest.raises(SettingError, match="batch_size=16 contradicts the DataLoader's own batch_size=3"):
        open_stream(DataLoader(_Numbers(), batch_size=3), batch_size=16)
    assert open_stream((torch.zeros(40, 2),)).batch_size == 16
