"""Which number of threads an entry is shown with, and what happens to what bow refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.figures import devices, throughput
from benchmarks.figures.entries import Entry
from benchmarks.figures.forms import FORMS
from benchmarks.figures.throughput import measure_throughput
from benchmarks.figures.training import Course
from benchmarks.measure import Contestant
from bow.errors import SettingError

CPU = torch.device("cpu")
QUICK = FORMS["quick"]
REFUSAL = "devices must be 1, got 2; this version trains on one device"


def test_the_number_of_threads_comes_from_a_race_whose_rates_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    races: list[list[int]] = []

    def race(contestants: list[Contestant], repeats: int, stint_s: float) -> list[list[float]]:
        races.append([contestant.threads for contestant in contestants])
        return [[10.0 * contestant.threads + len(races)] * repeats for contestant in contestants]

    monkeypatch.setattr(throughput, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(throughput, "race", race)
    (measured,) = measure_throughput(QUICK.logistic, [Entry(16)], QUICK, CPU)
    assert races == [[1, 2], *[[2]] * QUICK.runs]
    assert (measured.threads, measured.rates) == (2, tuple(20.0 + turn for turn in range(2, 2 + QUICK.runs)))


def test_every_run_is_a_new_training_with_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int | None]] = []
    closed: list[int] = []

    def make(course: Course, entry: Entry) -> Any:
        training = MAKE(course, entry)
        made.append((course.seed, entry.learners))
        monkeypatch.setattr(training, "close", lambda: closed.append(course.seed))
        return training

    monkeypatch.setattr(throughput, "available_cores", lambda: (0,))
    monkeypatch.setattr(throughput, "make_training", make)
    other = Entry(16)
    measure_throughput(QUICK.logistic, [other, replace(other, learners=1, sync="SMA")], QUICK, CPU)
    assert made == [(1, None), (1, 1), (2, 1), (2, None)]
    assert closed == [1, 1, 2, 2]


MAKE = throughput.make_training


def test_more_threads_are_for_what_would_leave_cores_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "available_cores", lambda: (0, 1, 2))
    for learners, counts in ((None, (1, 3)), (1, (1, 3)), (2, (1, 3)), (3, (1,))):
        assert throughput.thread_counts(Entry(16, learners), CPU) == counts
    assert throughput.thread_counts(Entry(16), torch.device("cuda")) == (1,)


def test_all_entries_are_measured_in_turns() -> None:
    entries = [Entry(16), Entry(16, 2, "independent"), Entry(32), Entry(32, 2, "SMA")]
    before = torch.get_num_threads()
    measured = measure_throughput(QUICK.logistic, entries, QUICK, CPU)
    assert [each.entry for each in measured] == entries
    assert all(len(each.rates) == QUICK.runs and min(each.rates) > 0 for each in measured)
    assert [each.engine for each in measured] == [None, "graph", None, "graph"]
    assert torch.get_num_threads() == before


def refuse_two(entry: Entry, course: Course, rounds: int) -> Any:
    if entry.devices > 1:
        raise SettingError(REFUSAL)
    return TRAIN_ON(entry, course, rounds)


TRAIN_ON = devices.train_on


def test_what_bow_refuses_says_why_and_what_runs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "train_on", refuse_two)
    entries = [Entry(16), Entry(16, 1, "SMA"), Entry(16, 1, "SMA", devices=2)]
    plain, one, two = devices.measure_devices(QUICK.logistic, entries, QUICK, CPU)
    assert len(plain.rates) == len(one.rates) == QUICK.runs
    assert (two.rates, two.refused, two.threads) == ((), REFUSAL, None)
    assert two.as_dict()["refused"] == REFUSAL
    assert "refused" not in one.as_dict()


def test_training_is_asked_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(devices, "train", lambda *args, **settings: asked.append(settings["devices"]))
    course = Course(QUICK.logistic.build, QUICK.logistic.make_data(16), throughput.SGD, CPU)
    devices.train_on(Entry(16, 1, "SMA", devices=4), course, rounds=1)
    assert asked == [4]
