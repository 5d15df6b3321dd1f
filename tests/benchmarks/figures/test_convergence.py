"""When a training has reached its target, and that plain PyTorch and bow are trained alike."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from benchmarks.figures import convergence, training
from benchmarks.figures.convergence import School, best_batch_size, epoch_of, median_to_target, smoothed
from benchmarks.figures.entries import Entry
from benchmarks.figures.forms import FORMS, Lesson
from bow.errors import DivergenceError
from bow.models import MLP
from tests.benchmarks.figures.made_up import run

CPU = torch.device("cpu")
LESSON = replace(
    FORMS["quick"].lenet_lesson, build=functools.partial(MLP, 64, 10, hidden=(16,)), target=0.99, epochs=2, stops=False
)
AVERAGED = functools.partial(Entry, sync="SMA")


def school(told: list[str] | None = None) -> School:
    return School(CPU, "", ([] if told is None else told).append)


def train(entry: Entry, lesson: Lesson = LESSON, seed: int = 0) -> convergence.Run:
    own = school()
    return own.runs(lesson, [entry], seed + 1)[seed]


def test_accuracy_is_the_median_of_five_epochs_or_of_as_many_as_there_are() -> None:
    assert smoothed([0.1, 0.3, 0.2, 0.9, 0.9, 0.9]) == [0.1, 0.2, 0.2, 0.25, 0.3, 0.9]
    assert smoothed([]) == []


def test_a_lucky_epoch_does_not_reach_the_target() -> None:
    assert epoch_of([0.5, 0.95, 0.6, 0.95, 0.95], 0.9) == 5
    assert epoch_of([0.9], 0.9) == 1
    assert epoch_of([0.5, 0.5], 0.9) is None


def test_time_to_target_is_that_of_its_epoch() -> None:
    row = run(Entry(16), [0.5, 0.9, 0.9, 0.9], epoch_s=2.0).as_dict(0.9)
    assert (row["epochs"], row["time_s"], row["samples_per_s"]) == (3, 6.0, 50.0)
    assert run(Entry(16), [0.5]).as_dict(0.9)["time_s"] is None


def test_a_training_that_never_gets_there_takes_forever() -> None:
    rows = [run(Entry(16), [accuracy]).as_dict(0.9) for accuracy in (0.95, 0.5, 0.5)]
    assert median_to_target(rows, "epochs") == float("inf")
    assert median_to_target(rows[:1], "epochs") == 1


def test_the_best_batch_size_is_the_fastest_and_without_one_the_most_accurate() -> None:
    slow, fast = run(Entry(8), [0.95], epoch_s=3.0), run(Entry(16), [0.5, 0.95, 0.95], epoch_s=0.5)
    never = [run(Entry(32), [0.6]), run(Entry(64), [0.8]), run(Entry(128), [])]
    assert best_batch_size([each.as_dict(0.9) for each in (slow, fast, *never)]) == 16
    assert best_batch_size([each.as_dict(0.9) for each in never]) == 64


def test_bow_with_one_learner_makes_the_same_steps_as_plain_pytorch() -> None:
    plain, alone = train(Entry(16)), train(AVERAGED(16, 1))
    assert plain.accuracies == alone.accuracies
    assert len(plain.accuracies) == len(plain.times_s) == 2
    assert plain.accuracies != train(AVERAGED(16, 2)).accuracies
    assert plain.accuracies != train(Entry(16), seed=1).accuracies
    assert (plain.engine, alone.engine) == (None, "graph")


def test_a_training_is_done_once_whoever_asks_for_it() -> None:
    told: list[str] = []
    own = school(told)
    first = own.runs(LESSON, [Entry(64)], seeds=1)
    assert own.runs(LESSON, [Entry(64)], seeds=2)[0] is first[0]
    assert [line.partition(": ")[0] for line in told] == [
        "logistic regression, plain PyTorch, batch 64, seed 0",
        "logistic regression, plain PyTorch, batch 64, seed 1",
    ]


def test_a_training_that_stops_at_its_target_does() -> None:
    easy = replace(LESSON, target=0.01)
    assert len(train(Entry(64), easy).accuracies) == 2
    assert len(train(Entry(64), replace(easy, stops=True)).accuracies) == 1


def test_the_first_piece_of_work_and_evaluations_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(convergence.time, "perf_counter", lambda: float(next(clock)))
    course = training.Course(LESSON.build, LESSON.load("").train, torch.optim.SGD, CPU, epochs=2)
    timed = convergence.TimedEpochs(training.PlainTraining(course, 64), CPU)
    assert timed.train_epoch()
    assert (timed.seconds, timed.samples) == (1.0, 320 - 64)
    next(clock)
    assert timed.train_epoch()
    assert (timed.seconds, timed.samples) == (2.0, 640 - 64)
    assert not timed.train_epoch()


def test_a_training_that_diverges_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(self: training.PlainTraining) -> None:
        raise DivergenceError("no finite numbers")

    monkeypatch.setattr(convergence, "fastest_threads", lambda course, entry: 1)
    monkeypatch.setattr(training.PlainTraining, "advance", diverge)
    row = train(Entry(64)).as_dict(0.9)
    assert (row["diverged"], row["epochs"], row["samples_per_s"]) == (True, None, None)


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    train(Entry(64))
    assert torch.get_num_threads() == before
