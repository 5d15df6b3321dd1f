"""What commands print on a terminal of 80 columns: no line is longer, and no word or number is cut."""

import contextlib
import io
import os
import pty
import re
import threading
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.table import Table

from bow.cli import main
from bow.terminal import fit, fitted_by_rank, terminal_table, wrapped

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs a command on a terminal, of 80 columns where none are told; what it printed, redrawn lines too."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, status: int = 0) -> list[str]:
        ours, theirs = pty.openpty()
        read = io.BytesIO()

        def keep() -> None:
            with contextlib.suppress(OSError):  # the other end is closed
                while part := os.read(ours, 65536):
                    read.write(part)

        reader = threading.Thread(target=keep)
        reader.start()
        terminal = os.fdopen(theirs, "w", encoding="utf-8")
        with terminal, contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
            assert main(words) == status
        reader.join()
        os.close(ours)
        text = CONTROL.sub("", read.getvalue().decode())
        return [part.rstrip() for line in text.split("\n") for part in line.split("\r")]

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["train", "learners=2", "epochs=2", "engine=eager", "data.limit=64"],
        ["train", "-m", "seed=0,1", "optimizer.lr=.01,.02", "epochs=1", "data.limit=64", "engine=eager"],
        ["train", "-m", "learners=1,2", "epochs=1", "data.limit=64", "engine=eager"],
        ["doctor", "learners=2"],
        ["plan", "compare", "network=alexnet", "topology=k80_node", "methods=data,expert,cpu"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_no_line_is_wider_than_the_terminal(words: list[str], shown: Callable[..., list[str]]) -> None:
    lines = shown(*words)
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) > 3


def test_what_a_prediction_says_fits_the_terminal(shown: Callable[..., list[str]]) -> None:
    directory = f"runs/{'lenet_' * 8}"
    shown("train", "learners=1", "steps=1", "engine=eager", "data.limit=64", f"run={directory}")
    lines = shown("predict", directory, "validation")
    assert max(map(len, lines)) <= 80
    assert f"{directory}/predictions.npy" in " ".join(lines).split()


def test_a_mistake_goes_on_below_between_words(shown: Callable[..., list[str]]) -> None:
    lines = [line for line in shown("train", "run=/dev/null/there", "epochs=1", status=2) if line]
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("bow: ")


def test_numbers_of_a_table_are_whole_where_its_text_has_no_room() -> None:
    table = terminal_table("policies", "policy", "over the best", rows=[("critical path, 2 executors", "1234.567")])
    console = Console(width=24, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    assert [line.rstrip() for line in captured.get().splitlines()[-2:]] == ["critical path,  1234.567", "2 executors"]


def fitted(table: Table, width: int) -> list[str]:
    """The lines of a table after `fit`."""
    fit(table, width)
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def test_words_of_a_table_are_whole_where_they_fit() -> None:
    row = ["2026-01-31_120000_resnet", "ResNet, synthetic_images", "4, graph (compiled)", "finished, 15/15, 1 min"]
    table = terminal_table("runs", "run", "model, data", "learners, engine", "state", texts=range(4), rows=[row])
    shown = " ".join(fitted(table, 67)).split()
    assert {"2026-01-31_120000_resnet", "synthetic_images", "(compiled)", "finished,"} <= set(shown)


@pytest.mark.parametrize("width", range(18, 44))
def test_a_unit_stays_with_its_number_in_a_table(width: int) -> None:
    table = terminal_table("", "run", "state", texts=range(2), rows=[["lenet", "interrupted, 7.81/15, 9 min 48 s"]])
    shown = fitted(table, width)
    assert any("9 min" in line for line in shown)
    assert any("48 s" in line for line in shown)


def test_what_matters_least_is_left_out_of_a_line() -> None:
    parts = [(0, "epoch 1/3"), (2, "1,001 samples/s"), (3, "2 learners"), (1, "1.0 s")]
    assert fitted_by_rank(parts, 40) == "epoch 1/3  1,001 samples/s  1.0 s"
    assert fitted_by_rank(parts, 16) == "epoch 1/3  1.0 s"
    assert wrapped(fitted_by_rank(parts, 5), 5) == ["epoch", "    1/3"]
