"""What a sweep shows, on a terminal of 80 columns and away from one."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch.nn import functional as F

import bow
from bow.members import progress, sweep
from bow.members.progress import SweepProgress, fitted_by_rank
from tests.members.test_equality import DATA, SGD, mlp


def swept(path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, **settings: Any) -> list[str]:
    """The lines of a sweep."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80, color_system=None, legacy_windows=False)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)

    class Shown(SweepProgress):
        """Draws at once, where rich waits for its timer, so that a fast machine shows every state."""

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more, console=console)

        def show(self, *where: Any) -> None:
            super().show(*where)
            if self._live is not None:
                self._live.refresh()

    monkeypatch.setattr(sweep_module(), "SweepProgress", Shown)
    given = {"variants": bow.grid(seed=range(3), lr=[0.05, 0.0125]), "epochs": 3, "validation": DATA, **settings}
    bow.sweep(mlp, DATA, F.cross_entropy, optimizer=SGD, engine="eager", run=path / "run", **given)
    return file.getvalue().replace("\r", "\n").split("\n")


def sweep_module() -> Any:
    import sys

    return sys.modules[sweep.__module__]


def test_away_from_a_terminal_every_member_and_the_whole_leave_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = swept(tmp_path, monkeypatch, terminal=False, at_once=4)
    assert [line.split()[0] for line in lines[:6]] == [f"{number}/6" for number in range(1, 7)]
    assert all("accuracy" in line for line in lines[:6])
    assert lines[6].startswith("best seed=")
    assert "6 members in" in lines[6]
    assert max(map(len, lines)) <= 80


def test_on_a_terminal_a_bar_shows_members_and_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = swept(tmp_path, monkeypatch, terminal=True, at_once=4, stop=bow.Halving("accuracy", reduction=2))
    shown = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", "\n".join(lines))
    assert "0 done  4 training  2 waiting" in shown
    assert "samples/s  at most" in shown
    assert "best seed=" in shown
    assert "halving" in shown
    assert shown.count("% ━") > 3
    assert re.search(r"^training +epoch +accuracy +loss +train loss *$", shown, re.M)
    assert re.search(r"^seed=1 lr=0.05 +0 *$", shown, re.M)
    assert re.search(r"^seed=. lr=[0-9.]+ +1 +[0-9.]+ % +[0-9.]+ +[0-9.]+ *$", shown, re.M)


def test_the_table_has_at_most_eight_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [bow.Variant(name="x" * 100, seed=0), *(bow.Variant(seed=seed) for seed in range(1, 11))]
    lines = swept(tmp_path, monkeypatch, terminal=True, variants=variants, epochs=1)
    shown = [re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", line).rstrip() for line in lines]
    assert "and 3 more" in shown
    assert "seed=7      0" in [re.sub(" +", " " * 6, line) for line in shown]
    assert not any(line.startswith("seed=8") for line in shown)
    assert max(len(line) for line in shown if line.startswith(("x", "training"))) <= 80


def test_nothing_is_shown_where_progress_is_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = bow.Run(tmp_path / "run", progress=False)
    bow.sweep(mlp, DATA, F.cross_entropy, variants=bow.grid(seed=range(2)), engine="eager", run=run)
    assert capsys.readouterr().out == ""


def test_the_least_important_parts_are_left_out_of_a_line() -> None:
    parts = [(0, "1/2"), (1, "accuracy"), (2, "epochs"), (0, "diverged")]
    assert fitted_by_rank(parts, 80) == "1/2  accuracy  epochs  diverged"
    assert fitted_by_rank(parts, 24) == "1/2  accuracy  diverged"
    assert fitted_by_rank(parts, 3) == "1/2 diverged"


@pytest.mark.parametrize(("members", "epochs", "share"), [(8, 4, 16 / 32), (9, 1, 1.0), (4, 3, 7 / 12)])
def test_halving_takes_a_share_of_all_epochs(members: int, epochs: int, share: float) -> None:
    assert bow.Halving(reduction=2).share(members, epochs) == pytest.approx(share)
