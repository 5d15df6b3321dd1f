"""Parts and peers in processes of their own, on a machine where next to nothing is installed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu import peers
from benchmarks.gpu.parts import Allotment
from benchmarks.gpu.peers import Peer
from benchmarks.harness import CaseError, Host, bare
from tests import forked

ROOT = Path(__file__).parents[2]

BARE = """
import sys
from importlib.machinery import PathFinder

MISSING = {"jaxtyping", "rich", "yaml", "safetensors", "hydra", "omegaconf", "wandb", "matplotlib", "beartype",
           "hypothesis", "pytest", "sklearn"}
found = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, path=None, target=None: None if name.partition(".")[0] in MISSING else found(name, path, target)
)
# Nor is bow installed.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
# What a forked process has imported, it imports anew.
for name in [name for name in sys.modules if name.partition(".")[0] in {"bow", "benchmarks", *MISSING}]:
    del sys.modules[name]
"""
"""What a Python is told that starts: it finds neither these packages nor an installed bow."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sitecustomize.py").write_text(BARE)
    return os.environ | {"PYTHONPATH": str(tmp_path), forked.AFTERWARDS: "1"}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [*forked.FORKED, "-m", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1200)


@pytest.mark.nightly
def test_the_benchmark_runs_from_a_checkout(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(environment, "benchmarks", "gpu", "fake=true", "parts=compiling", "budget_s=200", f"out={out}")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "not needed here: jaxtyping, rich, safetensors, yaml" in done.stderr
    found = json.loads((out / "gpu.json").read_text())["parts"]["compiling"]
    assert found.get("notes", []) == [], (out / "logs").glob("*")
    assert [row["name"] for row in found["contestants"]] == ["graph, 1", "graph compiled, 1"]


@pytest.mark.parametrize(("group", "least"), [("isolation", 5), pytest.param("kernels", 11, marks=pytest.mark.nightly)])
def test_the_tests_run_without_pytest(environment: dict[str, str], tmp_path: Path, group: str, least: int) -> None:
    out = tmp_path / "out"
    done = run(environment, "benchmarks", "gpu", "fake=true", f"parts=tests_{group}", "budget_s=5400", f"out={out}")
    assert done.returncode == 0, done.stderr + done.stdout
    results = json.loads((out / "gpu.json").read_text())["parts"][f"tests_{group}"]["cases"]
    assert {each["state"] for each in results} == {"passed"}
    assert len(results) >= least


def test_what_is_stood_in_for_names_the_package_when_it_is_called() -> None:
    stand_in = bare._StandIn("rich.console")
    assert stand_in.Float[int, "a b"] is int
    assert (None | stand_in.Console) is None
    assert list(stand_in.Console) == []
    with pytest.raises(ModuleNotFoundError, match=r"rich\.console\.Console was called"):
        stand_in.Console()
    with pytest.raises(AttributeError):
        _ = stand_in.__file__


def test_nothing_is_stood_in_for_where_everything_is_there() -> None:
    assert bare.prepare() == []


class Runner:
    engine = "graph"
    first_call_s = 1.5

    def turn(self, seconds: float) -> float:
        if seconds > 1:
            raise RuntimeError("CUDA error: an illegal memory access")
        return 100 * seconds

    def loss(self) -> float:
        return 2.0


def enter(is_good: bool) -> None:
    """In the process of a peer."""
    if not is_good:
        raise MemoryError("no room")
    peers._entered.append(Runner())


def test_a_peer_takes_turns_for_one_caller_after_another() -> None:
    with contextlib.closing(Host(prepare=(enter, (True,)))) as host:
        first = Peer(str(host.address), Allotment(60))
        assert (first.engine, first.first_call_s, first.turn(0.5), first.loss()) == ("graph", 1.5, 50.0, 2.0)
        with pytest.raises(CaseError, match="illegal memory access"):
            first.turn(2)
        first.close()
        second = Peer(str(host.address), Allotment(5))
        assert second.turn(1) == 100
        second.close()


def test_a_peer_that_failed_says_why_and_one_that_is_late_is_not_waited_for(tmp_path: Path) -> None:
    with contextlib.closing(Host(log=tmp_path / "log", prepare=(enter, (False,)))) as host:
        with pytest.raises(CaseError, match="no room"):
            Peer(str(host.address), Allotment(60))
        with pytest.raises(CaseError, match="not ready in time"):
            Peer(str(tmp_path / "1"), Allotment(0.1))
