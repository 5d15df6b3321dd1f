"""The best number of executors is found by timing the step, and operators are measured with it."""

import importlib

import pytest

from bow.devices import available_cores
from bow.schedule import PrioritySchedule, Schedule, Timeline
from bow.schedule.profiler import symmetric
from bow.schedule.profiler.policies import configurations
from tests.schedule.profiler.steps import branches, made_up

MODULE = importlib.import_module("bow.schedule.profiler.compare")


@pytest.mark.skipif(len(available_cores()) < 2, reason="several executors need two cores")
def test_operators_are_measured_in_the_fastest_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, profile = branches(), made_up(branches())
    seconds = {"1 x 2": (3.0, 1.0, 3.0), "2 x 1": (2.0, 2.0, 9.0)}
    measured: list[Schedule] = []

    def measure_schedule(_: object, schedule: Schedule, repeats: int) -> tuple[list[int], Timeline]:
        measured.append(schedule)
        return list(range(subject.num_operators)), Timeline()

    monkeypatch.setattr(MODULE, "time_in_turns", lambda cases, **_: {name: seconds[name] for name in cases})
    monkeypatch.setattr(MODULE, "measure_schedule", measure_schedule)
    found = symmetric(subject, profile, cores=2)
    assert found.best == (2, 1)
    assert found.median_s((1, 2)) == 3.0
    assert found.nanoseconds == tuple(range(subject.num_operators))
    assert [schedule.threads for schedule in measured] == [(1, 1)]
    assert isinstance(measured[0], PrioritySchedule)


def test_the_step_is_timed_with_every_number_of_executors() -> None:
    cores = len(available_cores())
    threads = tuple(range(1, cores + 1))
    found = symmetric(branches(), made_up(branches(), threads), cores, turns=2, window_s=0.0, repeats=1)
    assert list(found.seconds) == configurations(cores)
    assert all(len(own) == 2 and min(own) > 0 for own in found.seconds.values())
    assert min(found.nanoseconds) > 0
