"""Which number of threads an entry is shown with, and what happens to what bow refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bow.bench.figures import devices, throughput
from bow.bench.figures.entries import Entry
from bow.bench.figures.forms import FORMS
from bow.bench.figures.throughput import Lane, fastest, measure_throughput
from bow.bench.figures.training import Course, PlainTraining
from bow.bench.measure import Contestant
from bow.errors import SettingError

CPU = torch.device("cpu")
QUICK = FORMS["quick"]
REFUSAL = "devices must be 1, got 2; this version trains on one device"


def lane(entry: Entry, threads: int) -> Lane:
    course = Course(QUICK.lenet.build, QUICK.lenet.make_data(16), throughput.SGD, CPU)
    return Lane(entry, PlainTraining(course, entry.batch_size), Contestant(lambda: 1, threads))


def test_of_several_numbers_of_threads_the_fastest_is_shown() -> None:
    plain, other = Entry(16), Entry(32)
    lanes = [lane(plain, 1), lane(plain, 2), lane(other, 1)]
    rates = [[1.0, 9.0, 1.0], [2.0, 2.0, 2.0], [5.0, 5.0, 5.0]]
    first, second = fastest(each.measured(own) for each, own in zip(lanes, rates, strict=True))
    assert (first.entry, first.threads, first.rates) == (plain, 2, (2.0, 2.0, 2.0))
    assert (second.entry, second.threads) == (other, 1)


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
    assert all(len(each.rates) == QUICK.repeats and min(each.rates) > 0 for each in measured)
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
    assert len(plain.rates) == len(one.rates) == QUICK.repeats
    assert (two.rates, two.refused, two.threads) == ((), REFUSAL, None)
    assert two.as_dict()["refused"] == REFUSAL
    assert "refused" not in one.as_dict()


def test_training_is_asked_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(devices, "train", lambda *args, **settings: asked.append(settings["devices"]))
    course = Course(QUICK.logistic.build, QUICK.logistic.make_data(16), throughput.SGD, CPU)
    devices.train_on(Entry(16, 1, "SMA", devices=4), course, rounds=1)
    assert asked == [4]
