"""Without a compiler there is one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from bow.compiling import CACHE
from bow.errors import RuntimeUnavailableError
from bow.planning.simulator import simulation
from tests.planning.small_steps import DATA, problem


@pytest.fixture
def _nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(simulation, "library", simulation.library.__wrapped__)


@pytest.mark.usefixtures("_nothing_built")
def test_without_a_compiler_only_python_simulates(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeUnavailableError, match="the planner's simulator needs a C\\+\\+ compiler") as caught:
        problem().simulation(DATA)
    assert "\n" not in str(caught.value)
    assert not capfd.readouterr().err  # as if something was built
    assert problem().simulate(DATA).makespan_ns > 0


@pytest.mark.usefixtures("_nothing_built")
def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeUnavailableError, match="false cannot compile the planner's simulator: exit status 1"):
        simulation.library()
    assert "building the planner's simulator" in capfd.readouterr().err
