from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bow.data import Deal, Stacked
from bow.errors import DataError
from bow.training.batches import DataSource, batches_of, redistribute
from tests.training.blueprints import Iterated, opened

NUMBERS = torch.arange(22)


class Samples(Dataset[Any]):
    """Numbers that are reached by their number."""

    def __len__(self) -> int:
        return len(NUMBERS)

    def __getitem__(self, index: int) -> Tensor:
        return NUMBERS[index]


def numbers(kind: str) -> DataSource:
    if kind == "tensors":
        return opened((NUMBERS,))
    if kind == "data set":
        return opened(Samples())
    if kind == "loader":
        return opened(DataLoader(TensorDataset(NUMBERS), batch_size=4, shuffle=True), batch_size=4)
    return opened(Iterated(iter(NUMBERS[:, None])), steps=100)  # can be read once


def leaves(batches: Any) -> list[Tensor]:
    """The tensors of all batches, those that sit out left out."""
    return [leaf for leaf in tree_leaves(getattr(batches, "value", batches)) if leaf is not None]


def seen(deal: Deal) -> list[int]:
    return [int(number) for batch in batches_of(deal) for leaf in leaves(batch) for number in leaf.flatten()]


@pytest.mark.parametrize(
    ("kind", "learners"),
    [(kind, n) for kind in ("tensors", "data set", "loader") for n in (1, 3, 9)] + [("read once", 1), ("read once", 3)],
)
def test_the_batch_that_was_looked_at_is_dealt_once_and_first(kind: str, learners: int) -> None:
    data = numbers(kind)
    example = tree_leaves(data.example)[0].flatten().tolist()
    feed = data.feed()
    for _ in range(5):
        feed.deal(2)
    deals = []
    for _ in range(-(-6 // learners)):
        deal = data.stream.deal(learners)
        assert deal.num_samples == len(seen(deal))
        deals.append(deal)
    dealt = [number for deal in deals for number in seen(deal)]
    assert dealt[:4] == example
    assert Counter(dealt) == Counter(range(22))


@pytest.mark.parametrize("kind", ["tensors", "data set", "loader"])
@pytest.mark.parametrize("learners", [1, 4, 7])
def test_rounds_that_are_left_count_the_batch_that_was_looked_at(kind: str, learners: int) -> None:
    stream = numbers(kind).stream
    left = stream.rounds_left(learners)
    rounds = 0
    while stream.deal(learners) is not None:
        rounds += 1
        assert stream.rounds_left(learners) == left - rounds
    assert rounds == left


@pytest.mark.parametrize("kind", ["tensors", "data set", "loader"])
def test_a_state_from_before_the_first_round_begins_anew(kind: str) -> None:
    first = numbers(kind).stream
    state = first.state_dict()
    other = numbers(kind).stream
    other.load_state_dict(state)
    for _ in range(3):
        mine, others = first.deal(2), other.deal(2)
        assert mine is not None
        assert others is not None
        assert seen(mine) == seen(others)


@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_a_step_that_changes_its_batch_in_place_changes_no_other(kind: str) -> None:
    data = numbers(kind)
    feed = data.feed()
    example = tree_leaves(data.example)[0].clone()
    batches, samples = feed.deal(2)
    assert samples == 8
    for leaf in leaves(batches):
        leaf.zero_()
    again, _ = feed.deal(2)
    assert sum(int(leaf.sum()) for leaf in leaves(again)) > 0
    deal = data.stream.deal(1)
    assert deal is not None
    assert seen(deal) == example.tolist()


def test_data_without_a_batch_are_refused() -> None:
    with pytest.raises(DataError, match=r"gave no batch|no batches"):
        opened(Iterated([]), steps=1)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_batches_are_dealt_again_in_order_to_fewer_learners(stacked: bool, learners: int) -> None:
    def deal(start: int, epochs: int) -> Deal:
        batches: Any = torch.arange(start, start + 8).view(4, 2)
        sizes = [2, 2, 2, 2 if stacked else 0]
        return Deal(Stacked(batches) if stacked else [*batches[:3], None], sizes, sum(sizes), epochs)

    deals = [deal(0, 0), deal(8, 1)]
    again = redistribute(deals, learners)
    assert [number for each in again for number in seen(each)] == [number for each in deals for number in seen(each)]
    assert sum(each.num_samples for each in again) == sum(each.num_samples for each in deals)
    assert all(len(each.batches) == learners for each in again)
    assert all(len(batches_of(each)) == learners for each in again[:-1])
    assert [each.epochs for each in again] == [0] * (len(again) - 1) + [1]
