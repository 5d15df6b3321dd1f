"""The whole benchmark on the fake device, in this process: every line but those that time CUDA."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import main
from benchmarks.gpu import Config, program
from benchmarks.gpu.aims import OPEN
from benchmarks.gpu.parts import NAMES, USUAL_S, Context, Part
from benchmarks.gpu.program import measure
from bow.errors import SettingError

# What the compiler uses when it is first imported.
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")]

SAME_CODE = ("throughput_lenet_16", "throughput_resnet32_16", "throughput_resnet32_64", "throughput_resnet32_32")
ONE_OF_EACH = tuple(name for name in NAMES if name not in (*SAME_CODE, "averaging_lenet_16"))
TESTS = ("tests_kernels", "tests_agreement", "tests_randomness")
PARTS = tuple(name for name in ONE_OF_EACH if name in TESTS or not name.startswith("tests_"))


def settings(out: Path, *parts: str, **changes: Any) -> Config:
    return Config(out=out, parts=parts, fake=True, processes=False, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one run of all parts leaves."""
    out = tmp_path_factory.mktemp("gpu")
    patient = settings(out, *PARTS, budget_s=10 * USUAL_S)  # nothing is left out on a busy machine
    assert program.run(patient.reduced(), "python -m benchmarks gpu") == 0
    return out


def test_every_part_comes_to_its_end(folder: Path) -> None:
    parts = json.loads((folder / "gpu.json").read_text())["parts"]
    assert tuple(parts) == PARTS
    assert {name: found.get("failure") for name, found in parts.items()} == dict.fromkeys(parts)
    assert [note for found in parts.values() for note in found.get("notes", [])] == []


def test_everybody_takes_part(folder: Path) -> None:
    found = json.loads((folder / "parts" / "throughput_lenet_4.json").read_text())
    names = [row["name"] for row in found["contestants"]]
    assert {"pytorch", "pytorch compiled", "graph, 1", "graph, 2", "graph+round, 2", "streams, 2", "fused, 2"} < {
        *names
    }
    assert all(row["samples_per_s"]["median"] > 0 for row in found["contestants"])
    own = {row["name"]: row["engine"] for row in found["contestants"] if row["engine"] is not None}
    assert all(name.startswith(engine) for name, engine in own.items())  # nobody fell back
    assert {found["final"]["best"], found["final"]["one"]} == set(found["final"]["rates"])


def test_every_test_passes(folder: Path) -> None:
    parts = json.loads((folder / "gpu.json").read_text())["parts"]
    rows = [row for name in TESTS for row in parts[name]["cases"]]
    assert {row["state"] for row in rows} == {"passed"}


def test_memory_changes_no_result(folder: Path) -> None:
    losses = json.loads((folder / "parts" / "allocators.json").read_text())["losses"]
    assert len(losses) == 2
    assert len(set(losses.values())) == 1


def test_the_page_says_that_the_device_is_fake_and_judges_nothing(folder: Path) -> None:
    page = (folder / "gpu.md").read_text()
    assert "On the fake device" in page
    for heading in (
        "Aims",
        "Throughput",
        "What averaging costs",
        "Kernels",
        "Allocators",
        "Tests",
    ):
        assert f"## {heading}" in page
    assert {aim["verdict"] for aim in json.loads((folder / "gpu.json").read_text())["aims"]} == {OPEN}


def test_traces_are_small_and_whole_ones_are_gone(folder: Path) -> None:
    assert {path.name for path in folder.glob("*trace*")} == {
        f"trace_{engine}.json.gz" for engine in ("graph", "graph+round", "streams")
    }


def test_a_part_that_fails_leaves_what_it_has_and_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: Context) -> None:
        context.record(rows=[1])
        raise RuntimeError("an illegal memory access was encountered")

    part = Part("overlap", "overlapping", 1)
    monkeypatch.setattr(Part, "measure", lambda self: fail)
    (tmp_path / "parts").mkdir()
    assert not measure(part, settings(tmp_path, "overlap"), 5, time.monotonic() + 5, {})
    found = json.loads((tmp_path / "parts" / "overlap.json").read_text())
    assert found["rows"] == [1]
    assert found["failure"] == "RuntimeError: an illegal memory access was encountered"


def test_time_that_has_run_out_is_noted(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    part = Part("throughput_lenet_4", "throughput", 1, arguments={"model": "lenet", "batch_size": 4})
    assert measure(part, settings(tmp_path, "overlap").reduced(), 0.0, time.monotonic(), {})
    found = json.loads((tmp_path / "parts" / "throughput_lenet_4.json").read_text())
    assert [row["name"] for row in found["contestants"]] == ["pytorch"]
    assert "graph, 2: left out, because time ran out" in found["notes"]


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SettingError, match=r"needs a CUDA device, .* fake=true"):
        main("gpu", [f"out={tmp_path}"])


@pytest.mark.parametrize(("word", "message"), [("parts=nothing", "parts must be of"), ("stint_s=-1", "at least 0")])
def test_settings_are_checked(word: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        main("gpu", [word])
