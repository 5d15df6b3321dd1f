import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from bow.data import evaluation_batches, open_stream
from bow.errors import DataError


class _Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Samples that draw from torch's global random numbers, as augmentations do."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return index + torch.rand(2), torch.tensor(index)


class _ReadsManyAtOnce(Dataset[Tensor]):
    def __init__(self) -> None:
        self.reads: list[int] = []

    def __len__(self) -> int:
        return 12

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        self.reads.append(len(indices))
        return [torch.tensor(index) for index in indices]


class _Sequence:
    """No torch Dataset, yet with its methods, as the data sets of other libraries are."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, float]:
        return {"value": float(index)}


def _augmented_batches(rounds: int, skip: int = 0) -> list[Tensor]:
    stream = open_stream(_Augmented(), batch_size=3, epochs=3)
    if skip:
        state = stream.state_dict()
        stream.load_state_dict({**state, "position": 3 * skip})
    deals = [stream.deal(1) for _ in range(rounds)]
    return [deal.batches[0][0] for deal in deals if deal is not None]


def test_samples_are_collated_for_each_learner() -> None:
    deal = open_stream(_Augmented(), batch_size=4).deal(2)
    assert deal is not None
    assert not deal.stacked
    for inputs, labels in deal.batches:
        assert inputs.shape == (4, 2)
        assert torch.equal(inputs.floor().long(), labels[:, None].expand(4, 2))


def test_augmentation_depends_on_seed_and_place_only() -> None:
    torch.manual_seed(1)
    first = _augmented_batches(4)
    torch.manual_seed(2)
    for one, other in zip(first, _augmented_batches(4), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(_augmented_batches(1, skip=2)[0], first[2])


def test_augmentation_differs_between_batches() -> None:
    stream = open_stream(_Augmented(), batch_size=10, epochs=2)
    noise = []
    while (deal := stream.deal(1)) is not None:
        inputs, labels = deal.batches[0]
        noise.append(inputs - labels[:, None])
    assert not torch.allclose(noise[0], noise[1])


def test_training_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    open_stream(_Augmented(), batch_size=4).deal(2)
    list(evaluation_batches(_Augmented(), 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_datasets_that_read_many_at_once_are_asked_to() -> None:
    dataset = _ReadsManyAtOnce()
    open_stream(dataset, batch_size=3).deal(2)
    assert dataset.reads == [3, 3]


def test_classes_with_a_dataset_s_methods_are_data() -> None:
    deal = open_stream(_Sequence(), batch_size=2).deal(3)
    assert deal is not None
    assert sorted(torch.cat([batch["value"] for batch in deal.batches]).tolist()) == [0, 1, 2, 3, 4, 5]


def test_subsets_are_data() -> None:
    deal = open_stream(Subset(TensorDataset(torch.arange(9)), [1, 3, 5]), batch_size=3).deal(1)
    assert deal is not None
    assert sorted(deal.batches[0][0].tolist()) == [1, 3, 5]


def test_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="Subset has 0 samples"):
        open_stream(Subset(_Augmented(), []))


def test_dataset_without_length_is_refused() -> None:
    class Endless(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(DataError, match="Endless has no length"):
        open_stream(Endless())
