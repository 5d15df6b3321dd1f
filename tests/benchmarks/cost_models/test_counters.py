"""Performance events: counted where the machine permits it, and a sentence that says so where it does not."""

from __future__ import annotations

import errno
import os
import struct
import time
from pathlib import Path

import pytest

from benchmarks.cost_models import events
from benchmarks.cost_models.events import CPU_TIME, HARDWARE, Event, count, open_counter, source, why_not


def refuse(event: Event, thread: int) -> int:
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def test_a_machine_without_counters_is_named_as_such() -> None:
    assert why_not(opener=refuse) == "cycles: No such file or directory"
    said = source(opener=refuse)
    assert said.count(". ") == 0
    assert "computed" in said
    assert "No such file or directory" in said


def test_counters_are_named_where_there_are_any(tmp_path: Path) -> None:
    def permit(event: Event, thread: int) -> int:
        return os.open(tmp_path, os.O_RDONLY)

    assert why_not(opener=permit) is None
    assert all(event.name in source(opener=permit) for event in HARDWARE)


def test_a_count_is_scaled_to_the_time_in_which_it_was_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads: one counted half of the time, one was never counted."""
    told: list[int] = []
    readings = {}
    for thread, reading in ((7, (300, 100, 50)), (8, (5, 100, 0))):
        readings[thread] = tmp_path / str(thread)
        readings[thread].write_bytes(struct.pack("QQQ", *reading))
    monkeypatch.setattr(events, "_threads", lambda: iter(readings))
    monkeypatch.setattr(events, "_tell", lambda opened, request: told.append(request))
    ran: list[int] = []
    found = count(
        lambda: ran.append(len(told)),
        [Event("cycles", 0, 0), Event("l1_accesses", 0, 1), Event("l1_misses", 0, 2)],
        lambda event, thread: os.open(readings[thread], os.O_RDONLY),
    )
    assert found == {"cycles": 600.0, "l1_accesses": 600.0, "l1_misses": 600.0, "l1_hits": 0.0}
    assert ran == [2]  # reset and switched on before
    assert len(told) == 3  # switched off behind


def test_descriptors_are_closed_even_where_work_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def permit(event: Event, thread: int) -> int:
        opened.append(os.open(tmp_path, os.O_RDONLY))
        return opened[-1]

    monkeypatch.setattr(events, "_tell", lambda opened, request: None)
    with pytest.raises(ZeroDivisionError):
        count(lambda: 1 // 0, [Event("cycles", 0, 0)], permit)
    assert opened
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.skipif(why_not([CPU_TIME]) is not None, reason=f"this machine counts nothing ({why_not([CPU_TIME])})")
def test_processor_time_is_counted_for_real() -> None:
    began = time.process_time_ns()
    found = count(lambda: sum(range(1_000_000)), [CPU_TIME])
    took = time.process_time_ns() - began
    assert 0 < found["cpu_time_ns"] <= took
    assert found["cpu_time_ns"] > count(lambda: None, [CPU_TIME])["cpu_time_ns"]


def test_other_systems_have_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Plan 9")
    with pytest.raises(OSError, match="no perf_event_open on Plan 9"):
        open_counter(CPU_TIME, 0)
