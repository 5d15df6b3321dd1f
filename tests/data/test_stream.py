"""Streams and their order."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset

from bow.data import BatchStream, Deal, open_stream
from bow.data.stream import SampleOrder
from bow.errors import DataError, SettingError
from bow.training.batches import batches_of


def test_any_position_can_be_reached_directly() -> None:
    ahead, straight = SampleOrder(7, seed=1), SampleOrder(7, seed=1)
    whole = straight.indices(0, 70)
    for start in (63, 14, 0, 6, 69):
        count = min(9, 70 - start)
        assert torch.equal(ahead.indices(start, count), whole[start : start + count])


def test_indices_may_span_many_epochs() -> None:
    indices = SampleOrder(3, seed=0).indices(2, 11)
    assert len(indices) == 11
    for start in (1, 4, 7):
        assert sorted(indices[start : start + 3].tolist()) == [0, 1, 2]


def test_order_is_the_same_in_every_version() -> None:
    # Checkpoints hold a position in this order: changing it would break resuming.
    assert SampleOrder(8, seed=0).indices(0, 16).tolist() == [2, 4, 3, 5, 1, 0, 6, 7, 0, 6, 4, 3, 1, 5, 7, 2]


class _Numbers(Dataset[Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


SOURCES: dict[str, Callable[[int], object]] = {"tensors": torch.arange, "dataset": _Numbers}

sources = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
counts = st.integers(1, 25)
learner_counts = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def _deals(stream: BatchStream, learners: list[int]) -> Iterator[tuple[int, Deal]]:
    """Deal to changing numbers of learners until the stream ends."""
    turn = 0
    while (deal := stream.deal(learners[turn % len(learners)])) is not None:
        yield learners[turn % len(learners)], deal
        turn += 1


def _batches(deal: Deal) -> list[list[int]]:
    return [batch.tolist() for batch in batches_of(deal)]


def _samples(stream: BatchStream, learners: list[int]) -> list[int]:
    return [sample for _, deal in _deals(stream, learners) for batch in _batches(deal) for sample in batch]


@sources
@given(num_samples=counts, batch_size=counts, epochs=st.integers(1, 4), learners=learner_counts)
def test_every_sample_is_seen_once_an_epoch(
    source: Callable[[int], object], num_samples: int, batch_size: int, epochs: int, learners: list[int]
) -> None:
    stream = open_stream(source(num_samples), batch_size=batch_size, epochs=epochs)
    samples = _samples(stream, learners)
    assert len(samples) == epochs * num_samples
    for start in range(0, len(samples), num_samples):
        assert sorted(samples[start : start + num_samples]) == list(range(num_samples))


@sources
@given(num_samples=counts, batch_size=counts, epochs=st.integers(1, 4), learners=learner_counts)
def test_only_the_last_round_is_short(
    source: Callable[[int], object], num_samples: int, batch_size: int, epochs: int, learners: list[int]
) -> None:
    stream = open_stream(source(num_samples), batch_size=batch_size, epochs=epochs)
    position = 0
    for count, deal in _deals(stream, learners):
        sizes = [len(batch) for batch in _batches(deal)]
        position += sum(sizes)
        assert len(deal.sizes) == count
        assert deal.num_samples == sum(sizes)
        assert deal.epochs == position // num_samples
        if position < epochs * num_samples:
            assert sizes == [batch_size] * count
        else:
            assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
            assert 1 <= sizes[-1] <= batch_size
    assert position == epochs * num_samples


@given(num_samples=counts, batch_size=counts, learners=learner_counts, seed=st.integers(-(2**40), 2**70))
def test_order_depends_on_neither_learners_nor_batch_size_nor_source(
    num_samples: int, batch_size: int, learners: list[int], seed: int
) -> None:
    one_by_one = _samples(open_stream(torch.arange(num_samples), batch_size=1, epochs=3, seed=seed), [1])
    for source in SOURCES.values():
        stream = open_stream(source(num_samples), batch_size=batch_size, epochs=3, seed=seed)
        assert _samples(stream, learners) == one_by_one


@sources
@given(num_samples=counts, batch_size=counts, learners=learner_counts, stop_after=st.integers(0, 12))
def test_going_on_from_a_saved_position_equals_never_having_stopped(
    source: Callable[[int], object], num_samples: int, batch_size: int, learners: list[int], stop_after: int
) -> None:
    def opened() -> BatchStream:
        return open_stream(source(num_samples), batch_size=batch_size, epochs=4, seed=3)

    stream, resumed = opened(), opened()
    for _ in range(stop_after):
        stream.deal(2)
    resumed.load_state_dict(stream.state_dict())
    assert resumed.rounds_left(2) == stream.rounds_left(2)
    assert _samples(resumed, learners) == _samples(stream, learners)


@settings(deadline=None)
@given(num_samples=counts, batch_size=counts, epochs=st.integers(1, 4), learners=st.integers(1, 5))
def test_rounds_left_counts_down_to_the_end(num_samples: int, batch_size: int, epochs: int, learners: int) -> None:
    stream = open_stream(torch.arange(num_samples), batch_size=batch_size, epochs=epochs)
    announced = stream.rounds_left(learners)
    assert len(list(_deals(stream, [learners]))) == announced
    assert stream.rounds_left(learners) == 0


def test_epochs_are_shuffled_differently() -> None:
    samples = _samples(open_stream(torch.arange(50), epochs=2), [1])
    assert samples[:50] != samples[50:]


def test_seeds_shuffle_differently() -> None:
    first, second = (_samples(open_stream(torch.arange(50), seed=seed), [1]) for seed in (0, 1))
    assert first != second


def test_order_ignores_the_global_random_numbers() -> None:
    torch.manual_seed(1)
    first = _samples(open_stream(torch.arange(50)), [1])
    torch.manual_seed(2)
    assert _samples(open_stream(torch.arange(50)), [1]) == first


def test_steps_make_the_stream_endless() -> None:
    stream = open_stream(torch.arange(5), batch_size=4, epochs=1, steps=3)
    deals = [stream.deal(2) for _ in range(30)]
    assert all(deal is not None and deal.num_samples == 8 for deal in deals)
    assert stream.rounds_left(2) is None


def test_position_in_other_data_is_refused() -> None:
    state = open_stream(torch.arange(5)).state_dict()
    with pytest.raises(DataError, match="5 training samples and the data have 6"):
        open_stream(torch.arange(6)).load_state_dict(state)


def test_position_in_the_order_of_another_seed_is_refused() -> None:
    state = open_stream(torch.arange(5), seed=1).state_dict()
    with pytest.raises(SettingError, match="resume with seed=1"):
        open_stream(torch.arange(5), seed=2).load_state_dict(state)
