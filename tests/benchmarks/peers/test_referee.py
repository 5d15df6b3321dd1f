"""The clock and the evaluator, and the shuffled batches."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from benchmarks.peers.referee import Referee
from benchmarks.peers.training import DIVERGED, EPOCHS, REACHED, TIME
from benchmarks.peers.trainings import BowWatch
from benchmarks.trainings import Feed

LABELS = torch.arange(10)
IMAGES = torch.eye(10)


class Clock:
    """A clock that stands still unless it is told to go on."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def referee(clock: Clock, target: float = 0.9, most_samples: float = 1000.0, limit_s: float = 50.0) -> Referee:
    made = Referee((IMAGES, LABELS), 100.0, target, most_samples, limit_s, clock)
    made.start()
    return made


def right(share: float) -> torch.nn.Module:
    """A model that is right about the first samples."""
    weights = torch.roll(torch.eye(10), 1, dims=1)
    weights[: round(10 * share)] = torch.eye(10)[: round(10 * share)]
    model = torch.nn.Linear(10, 10, bias=False)
    model.weight.data = weights.T
    return model


def test_evaluations_come_when_they_are_due_and_their_time_does_not_count() -> None:
    clock = Clock()
    judge = referee(clock)

    def predict(images: Tensor) -> Tensor:
        clock.now += 1000
        return right(0.5)(images)  # type: ignore[no-any-return]

    for samples, due in ((96, False), (112, True), (192, False), (208, True), (480, True), (496, False)):
        clock.now += 5
        before = len(judge.looks)
        assert not judge.ends(predict, samples)
        assert (len(judge.looks) > before) is due
    assert [look.samples for look in judge.looks] == [112, 208, 480]
    assert [look.seconds for look in judge.looks] == [10.0, 20.0, 25.0]
    assert [look.accuracy for look in judge.looks] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("share", "samples", "seconds", "ending"),
    [(0.9, 100, 1, REACHED), (0.8, 1000, 1, EPOCHS), (0.8, 100, 50, TIME), (0.9, 1000, 50, REACHED)],
)
def test_a_training_ends(share: float, samples: int, seconds: float, ending: str) -> None:
    clock = Clock()
    judge = referee(clock)
    clock.now += seconds
    assert judge.ends(right(share), samples)
    assert judge.ending == ending


def test_a_module_is_evaluated_in_evaluation_mode_and_goes_on_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.999), right(1.0), torch.nn.BatchNorm1d(10).eval())
    modes = [module.training for module in model.modules()]
    judge = referee(Clock(), target=2.0)
    judge.ends(model, 100)
    assert judge.looks[0].accuracy == 1.0
    assert [module.training for module in model.modules()] == modes


def test_outputs_that_are_not_finite_are_a_divergence() -> None:
    judge = referee(Clock())
    assert judge.ends(lambda images: images / 0, 100)
    assert judge.ending == DIVERGED


def test_bow_is_evaluated_with_the_clock_stopped_and_told_to_end() -> None:
    clock = Clock()
    judge = referee(clock)
    watch = BowWatch(judge)

    class Run:
        samples = 112
        stopped = False

        def stop(self) -> None:
            self.stopped = True

    watch.reset()  # before the training, as whoever tries a metric out does
    run = Run()
    watch.on_train_start(run)  # type: ignore[arg-type]
    for share in (0.5, 0.9):
        assert not run.stopped
        clock.now += 3
        watch.reset()
        clock.now += 1000
        watch.update(right(share)(IMAGES), LABELS)
        assert watch.compute() == pytest.approx(share)
    assert run.stopped
    assert judge.ending == REACHED
    assert [look.seconds for look in judge.looks] == [3.0, 6.0]


def test_every_sample_is_seen_once_an_epoch_in_an_order_of_its_own() -> None:
    data = torch.arange(20.0).unsqueeze(1), torch.arange(20)
    batches = list(itertools.islice(Feed(data, 5, seed=1), 8))
    first, second = (torch.cat([targets for _, targets in part]) for part in (batches[:4], batches[4:]))
    assert first.sort().values.equal(data[1])
    assert second.sort().values.equal(data[1])
    assert not first.equal(second)
    assert all(inputs.squeeze(1).equal(targets.float()) for inputs, targets in batches)
    again = list(itertools.islice(Feed(data, 5, seed=1), 1))
    assert again[0][1].equal(batches[0][1])


def test_what_is_left_of_an_epoch_is_left_out() -> None:
    data = torch.zeros(20, 1), torch.arange(20)
    assert {len(targets) for _, targets in itertools.islice(Feed(data, 16, seed=1), 4)} == {16}
    assert {len(targets) for _, targets in itertools.islice(Feed(data, 64, seed=1), 4)} == {20}
