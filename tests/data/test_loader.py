"""Streams over datasets and loaders."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
)

from bow.data import BatchStream, evaluation_batches, open_stream
from bow.data.opening import PrivateRandom
from bow.errors import DataError, SettingError


def _draw(random: PrivateRandom, count: int) -> list[float]:
    with random.active():
        return torch.rand(count).tolist()


def test_goes_on_where_it_stopped() -> None:
    pieces, whole = PrivateRandom(1), PrivateRandom(1)
    assert _draw(pieces, 3) + _draw(pieces, 3) == _draw(whole, 3) + _draw(whole, 3)
    assert _draw(pieces, 3) != _draw(PrivateRandom(1), 3)


def test_leaves_the_global_random_numbers_untouched() -> None:
    before = torch.get_rng_state()
    _draw(PrivateRandom(1), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_error_leaves_the_global_random_numbers_untouched() -> None:
    before = torch.get_rng_state()
    with pytest.raises(TypeError), PrivateRandom(1).active():
        torch.rand("three")  # type: ignore[call-overload]
    assert torch.equal(torch.get_rng_state(), before)


def test_ignores_the_global_random_numbers() -> None:
    torch.manual_seed(1)
    first = _draw(PrivateRandom(5), 3)
    torch.manual_seed(2)
    assert _draw(PrivateRandom(5), 3) == first


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
    assert isinstance(deal.batches, list)
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
    assert sorted(torch.cat([batch["value"] for batch in deal.batches]).tolist()) == [0, 1, 2, 3, 4, 5]


def test_subsets_are_data() -> None:
    deal = open_stream(Subset(TensorDataset(torch.arange(9)), [1, 3, 5]), batch_size=3).deal(1)
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


class _Noisy(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(index), torch.rand(())


class _Counting(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def _numbers(count: int = 10) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def _loader(count: int = 10, **settings: Any) -> DataLoader[Any]:
    return DataLoader(_numbers(count), **{"batch_size": 4, "shuffle": True, **settings})


def _batches(stream: BatchStream, learners: int = 1) -> list[list[int]]:
    found = []
    while (deal := stream.deal(learners)) is not None:
        found += [batch[0].tolist() for batch in deal.batches if batch is not None]
    return found


def test_loader_keeps_its_batches_and_rounds_cross_epochs() -> None:
    stream = open_stream(_loader(), epochs=2)
    sizes, epochs = [], []
    while (deal := stream.deal(2)) is not None:
        assert isinstance(deal.batches, list)
        assert deal.num_samples == sum(len(batch[0]) for batch in deal.batches)
        sizes.append([len(batch[0]) for batch in deal.batches])
        epochs.append(deal.epochs)
    assert sizes == [[4, 4], [2, 4], [4, 2]]
    assert epochs == [0, 1, 2]


def test_last_round_may_be_short() -> None:
    deal = open_stream(_loader(), epochs=1).deal(5)
    assert [batch is None for batch in deal.batches] == [False, False, False, True, True]


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 12),
    batch_size=st.integers(1, 5),
    epochs=st.integers(1, 3),
    learners=st.integers(1, 4),
    stop_after=st.integers(0, 6),
)
def test_loader_streams_are_exact(count: int, batch_size: int, epochs: int, learners: int, stop_after: int) -> None:
    def opened() -> BatchStream:
        return open_stream(_loader(count, batch_size=batch_size), epochs=epochs, seed=7)

    whole = _batches(opened())
    samples = [sample for batch in whole for sample in batch]
    for epoch in range(epochs):
        assert sorted(samples[epoch * count : (epoch + 1) * count]) == list(range(count))
    stream, resumed = opened(), opened()
    for _ in range(stop_after):
        stream.deal(learners)
    resumed.load_state_dict(stream.state_dict())
    left = resumed.rounds_left(2)
    assert left == stream.rounds_left(2)
    rest = _batches(stream, 2)
    assert left == -(-len(rest) // 2)
    assert _batches(resumed, 2) == rest == whole[stop_after * learners :]


LOADERS = {
    "random sampler": lambda: _loader(),
    "own generator": lambda: _loader(generator=torch.Generator()),
    "sampler's generator": lambda: _loader(
        shuffle=False, sampler=RandomSampler(_numbers(), generator=torch.Generator())
    ),
    "worker": lambda: _loader(num_workers=1),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS.keys())
def test_shuffling_depends_on_seed_and_epoch_only(make: Any) -> None:
    loader = make()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = _batches(open_stream(loader, epochs=2, seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert _batches(open_stream(loader, epochs=2, seed=5)) == first
    assert _batches(open_stream(loader, epochs=2, seed=6)) != first
    assert first[:3] != first[3:]


class _DrawnElsewhere(Dataset[tuple[Tensor, Tensor]]):
    """Draws as augmentations of other libraries do."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(index), torch.tensor([random.random(), np.random.rand()])


@pytest.mark.parametrize("workers", [None, 0, 1], ids=["data set", "loader", "worker"])
def test_what_python_and_numpy_draw_for_data_depends_on_seed_and_epoch_only(workers: int | None) -> None:
    def opened() -> BatchStream:
        data = _DrawnElsewhere()
        return open_stream(
            data if workers is None else DataLoader(data, batch_size=2, num_workers=workers),
            epochs=2,
            **({"batch_size": 2} if workers is None else {}),
        )

    stream, resumed = opened(), opened()
    for _ in range(7):
        stream.deal(1)
    resumed.load_state_dict(stream.state_dict())
    before = random.getstate(), np.random.get_state()[1].tolist()
    expected = stream.deal(1)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())
    random.random()
    np.random.rand()
    found = resumed.deal(1)
    assert torch.equal(expected.batches[0][1], found.batches[0][1])


def test_what_persistent_workers_draw_depends_on_seed_and_epoch_only() -> None:
    def drawn(stream: BatchStream) -> list[Tensor]:
        deals = iter(lambda: stream.deal(1), None)
        return [deal.batches[0][1] for deal in deals]

    loaders = [DataLoader(_Noisy(), batch_size=5, num_workers=1, persistent_workers=True) for _ in range(2)]
    whole, resumed = (open_stream(loader, epochs=3) for loader in loaders)
    expected = drawn(whole)
    resumed.load_state_dict({"epoch": 1, "batches_of_epoch": 1, "seed": 0})
    assert all(torch.equal(a, b) for a, b in zip(drawn(resumed), expected[3:], strict=True))


@pytest.mark.parametrize("settings", [{"replacement": True, "num_samples": 70}, {"num_samples": 15}], ids=str)
def test_passes_side_by_side_draw_from_a_sampler_s_generator_as_alone(settings: dict[str, Any]) -> None:
    data, generator = _numbers(), torch.Generator()
    loader = _loader(shuffle=False, sampler=RandomSampler(data, generator=generator, **settings), generator=generator)
    before, expected = generator.get_state(), [_batches(open_stream(loader, epochs=2, seed=seed)) for seed in (0, 1)]
    streams = [open_stream(loader, epochs=2, seed=seed) for seed in (0, 1)]
    found: list[list[Any]] = [[], []]
    while all(dealt := [stream.deal(1) for stream in streams]):
        for batches, deal in zip(found, dealt, strict=True):
            batches += [] if deal is None else [deal.batches[0][0].tolist()]
        list(evaluation_batches(loader))
    assert found == expected
    assert torch.equal(generator.get_state(), before)


class _Redrawn(TensorDataset):
    """Draws as it goes, from the beginning whenever it is told the epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.random = random.Random(epoch)

    def __getitem__(self, index: int) -> Any:
        return (torch.tensor(self.random.random()),)


def test_data_that_nobody_else_has_read_are_not_told_the_epoch_again() -> None:
    loader = DataLoader(_Redrawn(torch.zeros(10)), batch_size=4)
    expected, stream, found = _batches(open_stream(loader, epochs=2)), open_stream(loader, epochs=2), []
    while deal := stream.deal(1):
        found.append(deal.batches[0][0].tolist())
        stream.go_on()  # type: ignore[attr-defined]
    assert found == expected


class _Wrapped(Dataset[Any]):
    """Passes on what it is told to a data set that others read, too."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self.set_epoch = wrapped.set_epoch

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getitem__(self, index: int) -> Any:
        return self.wrapped[index]


class _ByEpoch(TensorDataset):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return (torch.tensor(self.epoch),)


def test_data_that_others_have_read_through_a_wrapper_are_told_the_epoch_again() -> None:
    data, found = _ByEpoch(torch.zeros(8)), []
    stream = open_stream(DataLoader(data, batch_size=2), epochs=2)
    while deal := stream.deal(1):
        found.append(deal.batches[0][0].unique().item())
        list(evaluation_batches(DataLoader(_Wrapped(data), batch_size=4)))
        stream.go_on()  # type: ignore[attr-defined]
    assert found == [0] * 4 + [1] * 4


def test_data_that_another_pass_has_read_are_told_the_epoch_again_whatever_other_data_were_told() -> None:
    data, found = _ByEpoch(torch.zeros(8)), []
    stream, other = (open_stream(DataLoader(data, batch_size=2), epochs=2) for _ in range(2))
    for _ in range(5):
        other.deal(1)  # into the second epoch
    for _ in range(4):
        stream.go_on()  # type: ignore[attr-defined]
        if deal := stream.deal(1):
            found.append(deal.batches[0][0].unique().item())
        other.go_on()  # type: ignore[attr-defined]
        list(evaluation_batches(DataLoader(_ByEpoch(torch.zeros(8)), batch_size=4)))
    assert found == [0] * 4


def test_samplers_are_told_the_epoch() -> None:
    loader = _loader(shuffle=False, sampler=DistributedSampler(_numbers(), num_replicas=1, rank=0))
    batches = _batches(open_stream(loader, epochs=2))
    assert batches[:3] != batches[3:]


def test_a_used_stream_can_go_back() -> None:
    stream = open_stream(_loader(), epochs=2)
    stream.deal(1)
    state = stream.state_dict()
    rest = _batches(stream)
    stream.load_state_dict(state)
    stream.deal(1)
    stream.load_state_dict(state)
    assert _batches(stream) == rest


def test_augmentation_goes_on_exactly_after_resuming() -> None:
    def opened() -> BatchStream:
        return open_stream(DataLoader(_Noisy(), batch_size=3, shuffle=True), epochs=3)

    stream, resumed = opened(), opened()
    for _ in range(6):
        stream.deal(1)
    torch.rand(5)
    resumed.load_state_dict(stream.state_dict())
    expected, found = stream.deal(2), resumed.deal(2)
    for one, other in zip(expected.batches, found.batches, strict=True):
        assert torch.equal(one[1], other[1])


@pytest.mark.parametrize(
    ("loader", "samples"),
    [
        (_loader(), 10),
        (_loader(drop_last=True), 8),
        (DataLoader(_numbers(), batch_sampler=[[0, 1], [2]]), None),
        (DataLoader(_Counting(5), batch_size=2), None),
    ],
    ids=["plain", "drop_last", "batch_sampler", "iterable"],
)
def test_samples_per_epoch_is_what_the_loader_yields(loader: DataLoader[Any], samples: int | None) -> None:
    assert open_stream(loader, steps=1).samples_per_epoch == samples


def test_sampler_without_length_leaves_the_counts_unknown() -> None:
    class Three(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([0, 1, 2])

    stream = open_stream(_loader(shuffle=False, sampler=Three()))
    assert stream.samples_per_epoch is None
    assert stream.rounds_left(1) is None
    assert _batches(stream) == [[0, 1, 2]]


def test_iterable_data_start_again_when_exhausted() -> None:
    stream = open_stream(_Counting(5), batch_size=2, steps=4)
    deals = [stream.deal(2) for _ in range(3)]
    assert [[batch.tolist() for batch in deal.batches] for deal in deals if deal] == [
        [[0, 1], [2, 3]],
        [[4], [0, 1]],
        [[2, 3], [4]],
    ]
    assert [deal.epochs for deal in deals if deal] == [0, 1, 2]


@pytest.mark.parametrize("data", [_Counting(5), DataLoader(_Counting(5))], ids=["dataset", "loader"])
def test_iterable_data_need_steps(data: Any) -> None:
    with pytest.raises(SettingError, match="set steps"):
        open_stream(data)


@pytest.mark.parametrize("batch_size", [4, None], ids=["its own", "none"])
def test_agreeing_batch_size_is_accepted(batch_size: int | None) -> None:
    assert open_stream(_loader(), batch_size=batch_size).batch_size == 4


def test_loader_without_batches_is_refused() -> None:
    with pytest.raises(DataError, match="yields no batches"):
        open_stream(_loader(3, drop_last=True)).deal(1)


def test_batches_without_tensors_are_refused() -> None:
    with pytest.raises(DataError, match="yields list without tensors"):
        open_stream(DataLoader(_numbers(), collate_fn=lambda samples: ["a"])).deal(1)


def test_position_beyond_a_shorter_epoch_is_refused() -> None:
    stream = open_stream(_loader(20), epochs=2)
    for _ in range(4):
        stream.deal(1)
    with pytest.raises(DataError, match="after 4 batches"):
        open_stream(_loader(10), epochs=2).load_state_dict(stream.state_dict())


def test_position_in_the_order_of_another_seed_is_refused() -> None:
    with pytest.raises(SettingError, match="resume with seed=1"):
        open_stream(_loader(), seed=2).load_state_dict(open_stream(_loader(), seed=1).state_dict())


class Lying(Dataset[Tensor]):
    """Says what it is told to of its length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.ones(2)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (-5, r"Lying has a length that is none \(__len__\(\) should return >= 0\); correct its __len__"),
        (2**70, "Lying has a length that is none .*; correct its __len__"),
        (
            2**40,
            r"says that it has 1099511627776 samples, whose order alone takes .* GiB of .* GiB; correct its __len__",
        ),
        (2**62, "says that it has 4611686018427387904 samples, whose order alone takes"),
    ],
)
@pytest.mark.parametrize("kind", ["data set", "loader", "shuffled"])
def test_a_length_that_cannot_be_is_refused(length: int, message: str, kind: str) -> None:
    data = Lying(length)
    if kind == "shuffled" and not 0 < length < 2**63:
        return  # torch refuses it
    given = data if kind == "data set" else DataLoader(data, batch_size=2, shuffle=kind == "shuffled")
    if kind == "loader" and 0 < length < 2**63:
        assert open_stream(given, steps=1).deal(1) is not None
        return
    with pytest.raises(DataError, match=message):
        open_stream(given, steps=1)
