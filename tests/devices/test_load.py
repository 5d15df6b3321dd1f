"""How busy others keep the cores."""

import os
from pathlib import Path

import pytest

from bow.devices import cores
from bow.devices.cores import busy_cores, warn_if_busy


def test_others_are_as_busy_as_the_cores_that_they_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ticks = iter((1000.0, 1000.0 + 3 * cores.LOOK_S * os.sysconf("SC_CLK_TCK")))
    monkeypatch.setattr(cores, "_busy_ticks", lambda: next(ticks))
    monkeypatch.setattr(cores, "available_cores", lambda: range(3))
    monkeypatch.setattr(cores.os, "cpu_count", lambda: 4)
    assert busy_cores() == pytest.approx(2.0, abs=0.9)  # of four cores three are busy, of which one is not ours
    monkeypatch.undo()
    monkeypatch.setattr(cores, "STAT", tmp_path / "stat")
    assert busy_cores() == 0
    cores.STAT.write_text("cpu 1 2 3 4\n")
    assert cores._busy_ticks() == 6


def test_what_is_measured_on_a_busy_machine_comes_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    warn_if_busy()
    monkeypatch.setattr(cores, "busy_cores", lambda: 9.0)
    monkeypatch.setattr(cores, "available_cores", lambda: range(2))
    with pytest.warns(
        UserWarning, match=r"other processes use 2\.0 of 2 cores.* run the planner again when those processes"
    ):
        warn_if_busy()
