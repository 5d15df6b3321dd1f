"""`python -m tests.gpu`: tests that hang or end their process, and what only a GPU's memory can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu import __main__ as runner
from tests.gpu.memory import blocks_that_passed, streams_of_pools

GROUP = """
import os, sys, time
from tests.gpu.case import Case, Skipped

def fine(machine): pass
def wrong(machine): raise AssertionError("no")
def crash(machine): os._exit(11)
def hang(machine): time.sleep(600)
def skip(machine): raise Skipped("needs two")

def cases(fake):
    return [Case(name, globals()[name]) for name in ("fine", "wrong", "crash", "skip", "hang", "fine")]
"""


def test_a_group_goes_on_behind_tests_that_end_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    (tmp_path / "tests" / "gpu" / "made_up.py").write_text(GROUP)
    monkeypatch.setattr(runner, "CASE_S", 1.0)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # `tests` and `tests.gpu` are namespaces: this is one more place
    group = runner.Group("made_up", runner.Options(out=tmp_path, fake=True), deadline=1e12)
    group.run()
    states = [(each["case"], each["state"]) for each in group.results()]
    assert states == [
        ("fine", "passed"),
        ("wrong", "failed"),
        ("crash", "ended the process"),
        ("skip", "skipped"),
        ("hang", "hung"),
        ("fine", "passed"),
    ]
    assert "status 11" in group.results()[2]["message"]
    runner.write(tmp_path, group.results())
    assert (tmp_path / "tests.xml").read_text().count("<failure") == 3


def test_a_group_that_cannot_even_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    group = runner.Group("nowhere", runner.Options(out=tmp_path, fake=True), deadline=1e12)
    group.run()
    assert [each["state"] for each in group.results()] == ["ended the process"]


@pytest.mark.parametrize("word", ["fake", "nothing=1"])
def test_a_word_that_means_nothing_is_refused(word: str) -> None:
    with pytest.raises(SystemExit, match=r"tests\.gpu"):
        runner.parse([word])


def event(action: str, addr: int, size: int, stream: int) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream}


def test_a_block_that_goes_from_one_learner_to_another_is_seen() -> None:
    trace = [
        event("alloc", 0, 512, 1),
        event("alloc", 2048, 512, 2),
        event("free_completed", 0, 512, 1),
        event("alloc", 0, 256, 1),  # to the same one
        event("alloc", 512, 256, 2),  # to nobody's neighbour
        event("alloc", 256, 256, 3),  # of a stream that is no learner's
    ]
    assert blocks_that_passed(trace, {1, 2}) == []
    trace.append(event("alloc", 256, 128, 2))  # the other half of what 1 had
    assert blocks_that_passed(trace, {1, 2}) == [(256, 1, 2)]
    assert blocks_that_passed(trace, {1}) == []


def test_what_the_driver_has_had_back_in_between_is_nobodys() -> None:
    trace = [event("alloc", 0, 512, 1), event("segment_free", 0, 2048, 1), event("alloc", 0, 512, 2), {"action": "oom"}]
    assert blocks_that_passed(trace, {1, 2}) == []


def test_pools_by_their_streams() -> None:
    segments = [{"segment_pool_id": (0, 1), "stream": 5}, {"segment_pool_id": (0, 1), "stream": 6}]
    assert streams_of_pools(segments) == {(0, 1): {5, 6}}
