"""Measuring operators: what is measured, what is known from before, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bow.devices import available_cores
from bow.errors import SettingError
from bow.runtime.local import operators_of
from bow.schedule import FirstComeSchedule, Schedule, Span, Timeline
from bow.schedule.profiler import BoundStep, OperatorTime, measuring, profile
from bow.schedule.profiler.measuring import (
    ProfileCache,
    hardware,
    measure,
    measure_schedule,
    numbers_of_threads,
    signature,
)
from tests.schedule.profiler.steps import branches

CORES = len(available_cores())


def measured(**settings: Any) -> list[str]:
    """What had to be measured."""
    told: list[str] = []
    measure(branches(), **{"progress": told.append, "threads": [1], "repeats": 2, **settings})
    return told


def test_every_operator_is_measured_with_every_number_of_threads() -> None:
    found = measure(branches(), repeats=3)
    assert found.threads == tuple(numbers_of_threads(CORES))
    assert found.names == tuple(operator.kind for operator in operators_of(branches().graph))
    assert "layers.2" in found.modules
    assert all(time.median_s > 0 and time.repeats == 3 for times in found.times.values() for time in times)


def test_a_model_is_profiled_and_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = profile(model, (torch.randn(5, 3), torch.randn(5, 4)), nn.functional.mse_loss, threads=[1], repeats=1)
    assert any("batch_norm" in name for name in found.names)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_compiled_model_is_profiled_as_the_one_that_it_wraps() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    batch = torch.randn(5, 3), torch.randn(5, 4)
    found = [
        profile(each, batch, nn.functional.mse_loss, threads=[1], repeats=1) for each in (model, torch.compile(model))
    ]
    assert found[1].names == found[0].names


def test_what_is_known_is_not_measured_again() -> None:
    count = branches().num_operators
    assert measured() == [f"{count} operators with 1 thread"]
    assert measured() == []
    assert measured(repeats=1) == []


def test_few_repeats_are_not_good_enough_where_more_are_wanted() -> None:
    measured(repeats=20)  # three equal operators make no 60 of them
    assert len(measured(repeats=50)) == 1
    assert measured(repeats=50) == []


def test_another_number_of_threads_is_measured_by_itself() -> None:
    measured()
    assert len(measured(threads=numbers_of_threads(CORES))) == len(numbers_of_threads(CORES)) - 1


def test_fresh_times_are_measured_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    measured()
    count = branches().num_operators
    slow = tuple(OperatorTime(1.0, 0.0, 2) for _ in range(count))
    monkeypatch.setattr(measuring, "_measured", lambda *_: slow)
    assert len(measured(cache=False)) == 1
    assert measure(branches(), threads=[1], repeats=2).step_s == {1: float(count)}


def test_a_damaged_cache_is_measured_anew(cache: Path) -> None:
    measured()
    (file,) = cache.rglob("*.json")
    file.write_text("{")
    assert len(measured()) == 1
    assert measured() == []


def test_operators_of_one_signature_share_a_time() -> None:
    measured(repeats=3)
    again = measure(branches(), threads=[1], repeats=3)
    forward = [time for name, time in zip(again.names, again.times[1], strict=True) if name == "aten.addmm.default"]
    assert len(forward) == 3
    assert len(set(forward)) == 1
    assert forward[0].repeats == 3
    known = ProfileCache(hardware(again.hardware.rpartition(", ")[2])).read()
    graph = branches().graph
    assert {name for name, _ in known} == {signature(op, graph) for op in operators_of(graph)}


@pytest.mark.parametrize("executors", range(1, min(CORES, 2) + 1))
def test_operators_are_measured_while_a_schedule_runs_them(executors: int) -> None:
    subject = branches()
    schedule = FirstComeSchedule((1,) * executors)
    nanoseconds, timeline = measure_schedule(subject, schedule, repeats=2)
    assert len(nanoseconds) == subject.num_operators
    assert all(time > 0 for time in nanoseconds)
    assert sorted(int(span.details["operator"]) for span in timeline.spans) == list(range(subject.num_operators))
    assert len(timeline.places) <= executors


def test_the_timeline_is_of_the_step_that_took_the_median_time(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = branches()
    nanoseconds, timeline = measure_schedule(subject, Schedule.sequential(subject.num_operators), repeats=1)
    assert nanoseconds == [span.duration_ns for span in timeline.spans]
    made: list[Timeline] = []
    monkeypatch.setattr(BoundStep, "run", lambda _, runtime, record=False: made.append(_made_up(runtime, len(made))))
    _, timeline = measure_schedule(subject, Schedule.sequential(subject.num_operators), repeats=3)
    assert timeline.makespan == sorted(each.makespan for each in made[-3:])[1]


def _made_up(runtime: Any, number: int) -> Timeline:
    end = (7 * number) % 5 + 1
    operators = range(branches().num_operators)
    runtime.timeline = Timeline([Span("", "executor 0", 0, end, details={"operator": index}) for index in operators])
    return runtime.timeline


def test_threads_are_added_until_no_operator_becomes_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most operators are fastest with 2 threads, one with 6."""
    monkeypatch.setattr(measuring, "available_cores", lambda: tuple(range(16)))
    count = branches().num_operators
    asked: list[int] = []

    def made_up(step: BoundStep, schedule: Schedule, repeats: int) -> tuple[OperatorTime, ...]:
        (threads,) = schedule.threads
        asked.append(threads)
        best = [2] * (count - 1) + [6]
        return tuple(OperatorTime(1.0 + abs(threads - fastest), 0.0, repeats) for fastest in best)

    monkeypatch.setattr(measuring, "_measured", made_up)
    found = measure(branches(), interval=2, repeats=3, cache=False)
    assert asked == [1, 3, 5, 7, 9]
    assert found.threads == (1, 3, 5, 7, 9)
    assert [min(curve, key=curve.__getitem__) for curve in found.curves()] == [1] * (count - 1) + [5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repeats": 0}, "repeats must be a whole number of at least 1, got 0"),
        ({"repeats": 1.5}, "repeats must be a whole number of at least 1, got 1.5"),
        ({"repeats": "3"}, "repeats must be a whole number of at least 1, got '3'"),
        ({"threads": [0]}, f"whole numbers between 1 and the {CORES} cores of this machine, got 0"),
        ({"threads": [1.5]}, f"whole numbers between 1 and the {CORES} cores of this machine, got 1.5"),
        ({"threads": ["1"]}, f"whole numbers between 1 and the {CORES} cores of this machine, got '1'"),
        ({"threads": 1}, r"threads must be a list of numbers, such as \[1, 2\], got 1"),
        ({"threads": "12"}, r"threads must be a list of numbers, such as \[1, 2\], got '12'"),
        ({"threads": [1, CORES + 1]}, f"got {CORES + 1}"),
        ({"threads": []}, "threads must have at least one number, got none"),
        ({"interval": 0}, "interval must be a whole number"),
        ({"interval": CORES + 1}, "interval must be a whole number"),
        ({"interval": 1, "threads": [1]}, "threads and interval both say"),
        ({"progress": "all"}, "progress must be a function of a text, got 'all'"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        measured(**settings)


def test_threads_are_powers_of_two_and_all_cores() -> None:
    assert [numbers_of_threads(cores) for cores in (1, 2, 3, 68)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8, 16, 32, 64, 68],
    ]
