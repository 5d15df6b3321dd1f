"""What bow doctor says is to be done."""

import math
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bow.cli import diagnosis
from bow.doctor import inspect_machine

MACHINE = replace(inspect_machine(), cores=2, gpus=(), compiler="g++")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    def tell(
        machine: Any = MACHINE,
        others: float = 0.0,
        built: bool = True,
        seconds: Any = (),
        loss: str = "2 1 1 1",
        halved: tuple[float, ...] = (1.0,),
    ) -> list[str]:
        monkeypatch.setattr(diagnosis, "busy_cores", lambda: others)
        monkeypatch.setattr(diagnosis, "SLOW_S", math.inf)  # the disk may be busy
        done = types.SimpleNamespace(returncode=0, stdout=loss)
        monkeypatch.setattr(diagnosis, "subprocess", types.SimpleNamespace(run=lambda *_, **__: done))
        monkeypatch.setattr(diagnosis.loading, "is_built", lambda: built)
        if seconds:
            timed = iter([seconds, {"one": (1.0,), "other": halved}])
            monkeypatch.setattr(diagnosis, "time_in_turns", lambda cases, **_: next(timed))
        return list(diagnosis.advice(machine))

    return tell


def test_a_compiler_and_the_runtime_are_asked_for(told: Callable[..., list[str]]) -> None:
    (line,) = told(replace(MACHINE, compiler=None))
    assert line.startswith("install g++")
    (line,) = told(built=False)
    assert line.startswith("run python -m bow.runtime")


def test_a_busy_machine_is_told_and_not_measured(told: Callable[..., list[str]]) -> None:
    busy, not_measured = told(others=1.6, loss="2 300 427 500")
    assert "other processes use 1.6 of 2 cores" in busy
    assert "not measured" in not_measured


def test_what_threads_that_spin_lose_is_told_with_its_spread(told: Callable[..., list[str]]) -> None:
    (line,) = told(built=False, loss="2 20.1 31.4 48.0")[1:]
    assert line.startswith("outside of the bow command, torch's 2 spinning threads take 31 times as long as one ")


def test_the_gain_of_an_engine_is_measured_with_its_spread(told: Callable[..., list[str]]) -> None:
    (line,) = told(seconds={"one": (2.0, 3.0, 2.0), "other": (2.0, 2.0, 2.5)})
    assert "engine=graph learners=2: 2.00 times" in line
    assert "(1.60 to 3.00 in" in line
    (line,) = told(seconds={"one": (2.0, 3.0), "other": (4.0, 8.0)})
    assert "within noise or slower" in line


def test_half_precision_is_advised_where_it_pays(told: Callable[..., list[str]]) -> None:
    seconds = {"one": (2.0,), "other": (2.0,)}
    line = told(seconds=seconds, halved=(0.5,))[-1]
    assert line.startswith("engine.precision=bfloat16: 2.00 times the samples per second of float32 (2.00 to 2.00")
    assert not any("bfloat16" in line for line in told(seconds=seconds, halved=(0.95,)))


def test_little_room_on_the_disk_is_told(told: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 2**20})
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda folder: usage)
    assert told(built=False)[-1].startswith("only 1.0 MiB are free in")


def test_engines_are_really_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    if not diagnosis.loading.is_built():
        pytest.skip("needs the native runtime")
    for name, value in {"WINDOW_S": 0.0, "TURNS": 2, "BATCH_SIZE": 4}.items():
        monkeypatch.setattr(diagnosis, name, value)
    assert "times the samples per second" in diagnosis._engines(1)
    time_in_turns = diagnosis.time_in_turns

    def twice_as_fast(cases: Any, **settings: Any) -> dict[str, tuple[float, ...]]:
        assert all(map(all, time_in_turns(cases, **settings).values()))
        return {"one": (2.0,), "other": (1.0,)}

    monkeypatch.setattr(diagnosis, "time_in_turns", twice_as_fast)
    assert "2.00 times" in next(diagnosis._bfloat16(1))
