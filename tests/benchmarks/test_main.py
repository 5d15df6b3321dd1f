"""`python -m benchmarks`."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import run


def test_help_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "engines, sweep, accuracy, readme" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["engine"], ["engines", "rounds"], ["engines", "repeats=0"]])
def test_a_mistake_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("bow: ")
    assert said.err.count("\n") == 1
