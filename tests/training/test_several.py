"""What the processes of a training decide together."""

from __future__ import annotations

import functools
import signal
from typing import Any

import pytest
from torch import nn

import bow
from bow.cluster import TrialWorld, World
from bow.training.dealing import Agreement
from bow.training.tuning import Watch
from bow.tuner import Tuner
from tests.cluster.worlds import in_world


class Two(TrialWorld):
    """Two processes, of which the other one says what it is told to."""

    size = 2

    def __init__(self, others: list[float]) -> None:
        super().__init__()
        self.others = others

    def sum_numbers(self, values: Any) -> list[float]:
        return [own + other for own, other in zip(values, self.others, strict=True)]


def test_one_that_wants_to_stop_is_enough() -> None:
    agreement = Agreement(Two([1.0, 10.0, 0.0, 0.0, 0.0]))
    agreement.begin(0.0, 40)
    assert agreement.next_round == 40
    assert agreement.exchange(0.025, 41, stop=False) == (True, 0.025, False, False)


@pytest.mark.parametrize(
    ("own", "other", "by"),
    [(None, None, None), (signal.SIGINT, None, signal.SIGINT), (signal.SIGINT, signal.SIGTERM, signal.SIGTERM)],
)
def test_all_hear_of_a_signal(own: int | None, other: int | None, by: int | None) -> None:
    world = Two([])
    world.all_gather = lambda value: [value, other]  # type: ignore[method-assign]
    assert Agreement(world).signal_of(own) == by


def test_exchanges_come_four_times_a_second_by_the_mean_of_what_rounds_take() -> None:
    agreement = Agreement(Two([0.0, 20.0, 0.0, 1.0, 0.0]))
    agreement.begin(1.0, 0)
    assert agreement.exchange(1.025, 1, stop=False) == (False, 1.025, False, False)
    assert agreement.exchange(1.05, 2, stop=False, hopeless=True).hopeless
    assert agreement.exchange(1.075, 3, stop=False, checkpoint=True).checkpoint
    agreement.begin(1.0, 0)
    agreement.exchange(1.025, 1, stop=False)
    assert agreement.next_round == 1 + 15  # here 10 rounds of 25 ms, there 20


def watched(world: World, begin: list[int], most: list[int], windows: int) -> tuple[list[int], list[str]]:
    """A learner takes the first device 1 s and the second 3 s; the numbers at the end, and what was said."""
    replicas = bow.Replicas(
        nn.Linear(2, 2),
        nn.functional.mse_loss,
        learners=begin[world.rank],
        engine="eager",
        device="cpu",
        world=world,
    )
    watch = Watch(replicas, Tuner(window_s=1.0), most)
    seconds, samples, said = 0.0, 0, []
    for _ in range(windows):
        seconds += max(1.0 * replicas.group.by_device[0], 3.0 * replicas.group.by_device[1])
        samples += 16 * sum(replicas.group.by_device)
        said.append(watch.round_ended(seconds, samples))
    return list(replicas.group.by_device), [text for text in said if text is not None]


def test_devices_that_differ_settle_on_different_numbers() -> None:
    first, second = in_world(2, functools.partial(watched, begin=[3, 1], most=[8, 8], windows=400))
    assert first == second, "every process comes to the same decisions"
    learners, said = first
    assert learners == [3, 1]
    assert said, "neighbours are tried now and then"


def test_a_device_has_no_more_learners_than_it_may() -> None:
    first, second = in_world(2, functools.partial(watched, begin=[2, 1], most=[2, 1], windows=200))
    assert first == second
    assert first[0] == [2, 1]
    assert not any("to 3" in text for text in first[1])
