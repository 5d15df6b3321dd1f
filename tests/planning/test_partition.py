"""Strategies survive being written, and those that cannot be carried out are refused in one sentence."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bow.errors import ScheduleError
from bow.planning.problem.partition import Partition, Split
from tests.planning.random_steps import RULES
from tests.planning.small_steps import ALONE, DATA, GRAPH, partition


def with_split(operator: int, split: Split) -> Partition:
    return partition((*DATA[:operator], split, *DATA[operator + 1 :]))


@pytest.mark.parametrize("learners", [1, 2])
def test_what_is_written_is_read_again(learners: int) -> None:
    written = partition(ALONE, learners)
    assert Partition.from_json(written.to_json()) == written


def test_a_legal_strategy_passes() -> None:
    partition().check(GRAPH, 2, RULES)
    partition(ALONE, learners=2).check(GRAPH, 2, RULES)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dataclasses.replace(partition(), graph_hash="0"), "the partition is for graph 0, this model's is"),
        (partition(DATA[:2]), "the partition has 2 splits for 3 operators; give each one"),
        (with_split(0, Split((5, 1), (0,) * 5)), "operator 'first' has a sample of 4, got degree 5"),
        (with_split(1, Split((1, 1), (2,))), "operator 'second' has a tile on device 2, and there are 2"),
        (with_split(2, Split((1,), (0,))), "operator 'loss' has 0 dimensions, got 1 degrees"),
        (partition(DATA, learners=2), "operator 'first' has a tile on device 1, and there are 1"),
        (partition(DATA, learners=3), "2 devices cannot be divided among 3 learners; give learners a divisor of 2"),
        (partition(DATA, learners=0), "learners must be at least 1, got 0"),
    ],
    ids=["graph", "splits", "degree", "device", "dimensions", "group", "learners", "no learner"],
)
def test_what_cannot_be_carried_out_is_refused(wrong: Partition, message: str) -> None:
    with pytest.raises(ScheduleError, match=message) as caught:
        wrong.check(GRAPH, 2, RULES)
    assert "\n" not in str(caught.value)


def without(key: str) -> str:
    read = json.loads(partition().to_json())
    del read[key]
    return json.dumps(read)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the partition is not JSON"),
        ("[" * 100_000, "the partition is not JSON"),
        ("[]", 'the text is not a "bow partition"'),
        ("{}", 'the text is not a "bow partition"'),
        (partition().to_json().replace('"version": 1', '"version": 9'), "version 9, this bow reads 1"),
        (without("splits"), "the partition is damaged"),
        (without("learners"), "the partition is damaged"),
        (partition().to_json().replace("[0, 1]", '[0, "1"]'), "the partition is damaged"),
        (partition().to_json().replace("[0, 1]", "[0, 1.5]"), "the partition is damaged"),
    ],
)
def test_damaged_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Partition.from_json(text)
