"""Tests on a device as parts of the benchmark: what hangs, ends its process or waits for a second run; and archives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import Config, program, testing
from benchmarks.gpu.parts import Part
from benchmarks.gpu.program import COMPLETE, CUT, FAILED, UNENDED, pack, progress
from tests import forked
from tests.gpu.memory import blocks_that_passed, streams_of_pools

ROOT = Path(__file__).parents[2]

GROUP = """
import os, sys, time
from benchmarks.gpu import testing
from tests.gpu.case import Case, Skipped

testing.CASE_S = 600.0

def fine(machine): pass
def wrong(machine): assert mended(), "no"
def crash(machine): os._exit(11)
def hang(machine): time.sleep(600)
def skip(machine):
    testing.CASE_S = 0.5  # of the next one in this process, which hangs
    raise Skipped("needs two")
def mended(): return "MENDED" in os.environ

def cases(fake):
    found = [Case(name, globals()[name]) for name in ("fine", "wrong", "crash", "skip", "hang")] + [Case("last", fine)]
    return [case for case in found if not mended() or case.name not in ("crash", "hang")]
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A benchmark of one group of tests."""
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    (tmp_path / "tests" / "gpu" / "made_up.py").write_text(GROUP)
    (tmp_path / "sitecustomize.py").write_text(
        "from benchmarks.gpu import parts\n"
        "parts.PARTS = (parts.Part('tests_kernels', 'testing', 600.0, arguments={'group': 'made_up'}),)\n"
    )
    monkeypatch.setattr(program, "PARTS", (Part("tests_kernels", "testing", 600.0, arguments={"group": "made_up"}),))
    # `tests` and `tests.gpu` are namespaces: this is one more place
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv(forked.AFTERWARDS, "1")
    return Config(out=tmp_path / "out", fake=True, budget_s=1000.0)


def states(config: Config) -> dict[str, str]:
    found = json.loads((config.out / "parts" / "tests_kernels.json").read_text())
    return {row["case"]: row["state"] for row in found["cases"]}


def test_a_group_goes_on_behind_tests_that_end_its_process(made_up: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "CASE_S", 0.5)
    assert program.run(made_up, "a command") == 0  # nothing is judged on the fake device
    assert states(made_up) == {
        "fine": "passed",
        "wrong": "failed",
        "crash": "ended the process",
        "skip": "skipped",
        "hang": "hung",
        "last": "passed",
    }
    page = (made_up.out / "gpu.md").read_text()
    assert "* tests_kernels: 2 passed, 1 failed, 1 ended the process, 1 skipped, 1 hung; failed: wrong" in page
    assert "status 11" in page
    assert "Timeout" in (made_up.out / "logs" / "tests_kernels.txt").read_text()  # with the stacks of all threads

    monkeypatch.setenv("MENDED", "1")
    program.run(made_up, "a second command")  # what has not passed
    again = json.loads((made_up.out / "parts" / "tests_kernels.json").read_text())["cases"]
    assert {row["case"] for row in again if "is_old" not in row} == {"wrong"}
    assert states(made_up)["wrong"] == "passed"
    assert (made_up.out / "parts" / "tests_kernels.before").exists()


def test_what_was_cut_short_is_gone_on_with_and_what_is_complete_is_not() -> None:
    assert progress({}) == UNENDED
    assert progress({"machine": {}, "rows": [1]}) == UNENDED  # all was killed
    assert progress({"seconds": 1.0, "is_cut": True, "notes": ["3 of 5 turns, because time ran out"]}) == CUT
    assert progress({"seconds": 1.0, "failure": "an error"}) == FAILED
    assert progress({"seconds": 1.0, "total": 1, "cases": [{"case": "a", "state": "hung", "message": ""}]}) == FAILED
    assert progress({"seconds": 1.0, "rows": [1]}) == COMPLETE


def test_a_case_that_the_end_of_all_time_cut_off_has_not_run() -> None:
    now = time.monotonic()
    row = {"case": "a", "state": "begun", "limit_s": 3.0, "until": now - 1}
    findings: dict[str, Any] = {"cases": [row], "failure": "its process ended with status 1"}
    assert testing.ended(findings)
    assert findings["cases"] == []


def test_cases_wait_where_time_has_run_out(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    part = Part("tests_kernels", "testing", 5.0, arguments={"group": "kernels"})
    config = Config(out=tmp_path, fake=True, processes=False)
    assert program.measure(part, config, 0.0, time.monotonic(), {})
    found = json.loads((tmp_path / "parts" / "tests_kernels.json").read_text())
    assert found["is_cut"]
    assert len(found["cases"]) == 1
    assert f"{found['total'] - 1} of {found['total']} cases not run, because time ran out" in found["notes"]


def test_no_part_begins_with_less_than_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(Config(out=tmp_path, fake=True, budget_s=20.0), "a command") == 0
    assert "left out, because time ran out: tests_kernels, tests_agreement, overlap" in capsys.readouterr().out


@pytest.mark.nightly
def test_an_archive_is_renewed_and_what_is_killed_leaves_it(tmp_path: Path) -> None:
    archive, out = tmp_path / "a" / "gpu.tar.gz", tmp_path / "gpu"
    words = ["benchmarks", "gpu", "fake=true", f"out={out}", f"archive={archive}"]
    words += ["parts=overlap,tests_kernels", "budget_s=5400"]
    script = f"import sys; from benchmarks.gpu import program; program.RENEWED_S = 0.2; sys.argv[1:] = {words[1:]!r}\n"
    script += "from benchmarks.__main__ import run; run(sys.argv[1:])"
    # Its processes are no children of the server's, but its own.
    environment = {name: value for name, value in os.environ.items() if name != forked.PLACE}
    command = [*forked.FORKED, "-c", script]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, process_group=0)
    try:
        cases: list[Any] = []
        while not cases:
            time.sleep(0.1)
            cases = [row for row in in_archive(archive).get("cases", []) if row["state"] == "passed"]
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        os.kill(process.pid, signal.SIGKILL)  # and not its children
        process.wait()
        deadline = time.monotonic() + 120
        while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not Path(f"/proc/{child}").exists()
        assert len(in_archive(archive)["cases"]) >= len(cases)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()  # type: ignore[union-attr]
        process.wait()


def in_archive(archive: Path) -> dict[str, Any]:
    if not archive.exists():
        return {}
    with tarfile.open(archive) as file:
        names = [name for name in file.getnames() if name.endswith("tests_kernels.json")]
        found: dict[str, Any] = json.loads(file.extractfile(names[0]).read()) if names else {}  # type: ignore[union-attr]
    return found


def test_an_archive_has_what_there_is_and_nothing_half_made(tmp_path: Path) -> None:
    (tmp_path / "gpu" / "parts").mkdir(parents=True)
    (tmp_path / "gpu" / "parts" / "a.json").write_text("{}")
    (tmp_path / "gpu" / "parts" / ".a.json.made").write_text("{")
    pack(tmp_path / "gpu", tmp_path / "gpu.tar.gz")
    with tarfile.open(tmp_path / "gpu.tar.gz") as file:
        assert file.getnames() == ["gpu/parts/a.json"]


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
