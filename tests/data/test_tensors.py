from typing import NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_structure
from torch.utils.data import TensorDataset

from bow.data import Stacked, batch_of, open_stream
from bow.data.stream import TensorSamples, TensorStream
from bow.errors import DataError


def _data() -> dict[str, object]:
    numbers = torch.arange(24)
    return {"pixels": numbers.float().view(24, 1, 1).expand(24, 2, 3), "extra": (numbers, -numbers)}


def test_full_rounds_are_stacked() -> None:
    deal = open_stream(_data(), batch_size=4, epochs=1).deal(3)
    assert isinstance(deal.batches, Stacked)
    assert deal.batches.value["pixels"].shape == (3, 4, 2, 3)
    assert deal.batches.value["extra"][1].shape == (3, 4)


def test_short_rounds_are_a_list() -> None:
    stream = open_stream(_data(), batch_size=5, epochs=1)
    stream.deal(3)
    deal = stream.deal(3)
    assert isinstance(deal.batches, list)
    assert [batch["pixels"].shape[0] if batch else None for batch in deal.batches] == [5, 4, None]


def test_leaves_stay_in_step() -> None:
    deal = open_stream(_data(), batch_size=6, epochs=1).deal(2)
    numbers, negated = deal.batches.value["extra"]
    assert torch.equal(numbers, -negated)
    assert torch.equal(numbers.float(), deal.batches.value["pixels"][..., 0, 0])


def test_stacked_rounds_hold_the_batches_that_learners_get_one_by_one() -> None:
    together = open_stream(_data(), batch_size=4).deal(3)
    alone = open_stream(_data(), batch_size=4)
    for learner in range(3):
        deal = alone.deal(1)
        assert torch.equal(batch_of(together.batches, learner)["pixels"], batch_of(deal.batches, 0)["pixels"])


def test_tensor_dataset_gives_a_tuple_and_stacks() -> None:
    inputs, targets = torch.randn(10, 2), torch.arange(10)
    deal = open_stream(TensorDataset(inputs, targets), batch_size=2).deal(2)
    assert isinstance(deal.batches, Stacked)
    assert isinstance(deal.batches.value, tuple)
    assert torch.equal(deal.batches.value[0], inputs[deal.batches.value[1]])


def test_layouts_in_memory_do_not_matter() -> None:
    images = torch.randn(12, 3, 4, 4)
    plain, last = (open_stream(x, batch_size=3).deal(2) for x in (images, images.to(memory_format=torch.channels_last)))
    assert torch.equal(plain.batches.value, last.batches.value)


def test_batches_carry_no_gradient() -> None:
    deal = open_stream(torch.randn(8, 2, requires_grad=True), batch_size=2).deal(2)
    assert not deal.batches.value.requires_grad


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((torch.zeros(3, 2), torch.zeros(4)), r"equal first dimensions, got \[3, 4\]"),
        (torch.zeros(0, 2), "0 samples"),
        (torch.eye(3).to_sparse(), r"dense, got one of layout torch\.sparse_coo; convert it with \.to_dense\(\)"),
        ((torch.zeros(3), torch.tensor(1.0)), r"shape \[\]"),
        ((torch.zeros(3), torch.zeros(3, device="meta")), "one device, got cpu, meta"),
    ],
    ids=["lengths", "empty", "sparse", "scalar", "devices"],
)
def test_tensors_that_do_not_fit_together_are_refused(data: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TensorSamples(data)


@pytest.mark.gpu
def test_data_on_a_gpu_stay_there() -> None:
    deal = open_stream(torch.arange(32, device="cuda"), batch_size=4, epochs=2).deal(4)
    assert deal.batches.value.is_cuda
    expected = open_stream(torch.arange(32), batch_size=4).deal(4)
    assert torch.equal(deal.batches.value.cpu(), expected.batches.value)


def test_samples_that_reside_on_a_device_are_dealt_by_their_numbers() -> None:
    plain, resident = (open_stream(_data(), batch_size=5, epochs=2) for _ in range(2))
    assert resident.reside(torch.device("cpu"), room_bytes=0)  # they are there already
    while (deal := plain.deal(3)) is not None:
        other = resident.deal(3)
        assert other[1:] == deal[1:]
        both = [[each.batches.value] if isinstance(each.batches, Stacked) else each.batches for each in (deal, other)]
        for expected, indexed in zip(*both, strict=True):
            if expected is None:
                assert indexed is None
                continue
            (numbers,) = tree_leaves(indexed)
            assert numbers.dtype == torch.int64
            made = indexed.gather(lambda source, indices, out: torch.index_select(source, 0, indices, out=out))
            assert tree_structure(made) == tree_structure(expected)
            assert all(map(torch.equal, tree_leaves(made), tree_leaves(expected)))


def test_a_part_of_the_samples_stays_a_part_on_a_device() -> None:
    stream = open_stream(_data(), batch_size=4)
    assert isinstance(stream, TensorStream)
    part = torch.tensor([3, 7, 11, 19, 23])
    some = stream.among(part, None)
    assert some.reside(torch.device("meta"), room_bytes=10**6)
    assert torch.equal(some.order.on(torch.device("cpu")).indices(0, 5).sort().values, part)


def test_samples_stay_where_they_are_if_there_is_no_room() -> None:
    stream = open_stream(_data(), batch_size=4)
    size = 24 * (6 * 4 + 2 * 8)
    assert not stream.reside(torch.device("meta"), room_bytes=size - 1)
    deal = stream.deal(2)
    assert isinstance(deal.batches.value, dict)
    assert stream.reside(torch.device("meta"), room_bytes=size)


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


@pytest.mark.parametrize(
    "data",
    [
        (torch.arange(4), torch.arange(4) + 9),
        ((torch.arange(4),), torch.arange(4) + 9),
        (torch.arange(4), {"extra": (torch.arange(4) + 9,)}),
        Pair(torch.arange(4), torch.arange(4) + 9),
        (torch.arange(4),),
    ],
)
def test_what_is_gathered_is_made_up_as_the_data_are(data: object) -> None:
    gathered = TensorSamples(data).gather(torch.tensor([2, 0]))
    assert type(gathered) is type(data)
    assert tree_structure(gathered) == tree_structure(data)
    for found, whole in zip(tree_leaves(gathered), tree_leaves(data), strict=True):
        assert torch.equal(found, whole[[2, 0]])


def test_samples_are_told_apart_in_words_that_every_process_has() -> None:
    data = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    assert repr(TensorSamples(data)) == "TensorSamples(torch.float32 [4, 2], torch.int64 [4])"
