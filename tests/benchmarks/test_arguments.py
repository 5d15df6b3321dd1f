"""The settings of a benchmark, as words."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import NAMES, main
from benchmarks.arguments import check_positive, parse, setting
from bow.errors import SettingError


@dataclass(frozen=True)
class Settings:
    out: Path = setting(Path("results"), "folder")  # noqa: RUF009
    models: tuple[str, ...] = setting(("a", "b"), "models", choices=("a", "b"))
    counts: tuple[int, ...] = setting((1, 2), "counts")
    seconds: float = setting(0.5, "seconds")
    repeats: int = setting(3, "repeats")
    quick: bool = setting(False, "less")

    def __post_init__(self) -> None:
        check_positive(self, "counts", "seconds", "repeats")


def test_words_become_values_of_their_types() -> None:
    words = ["out=there", "models=b", "counts=4,8", "seconds=2", "repeats=7", "quick=true"]
    assert parse(Settings, words) == Settings(Path("there"), ("b",), (4, 8), 2.0, 7, True)


def test_what_is_not_given_keeps_its_default() -> None:
    assert parse(Settings, ["repeats=1"]) == Settings(repeats=1)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("repaets=1", ["'repaets'", "out, models, counts, seconds, repeats, quick"]),
        ("quick", ["key=value", "'quick'", "repeats"]),
        ("repeats=many", ["repeats must be a whole number", "'many'"]),
        ("repeats=0", ["repeats must be above 0", "got 0"]),
        ("seconds=soon", ["seconds must be a number", "'soon'"]),
        ("seconds=nan", ["seconds must be above 0", "got nan"]),
        ("quick=perhaps", ["quick must be true or false", "'perhaps'"]),
        ("models=a,c", ["models must be of a, b", "'c'"]),
        ("counts=2,-1", ["counts must be above 0", "2,-1"]),
        ("counts=", ["counts must be above 0", "got nothing"]),
    ],
)
def test_a_mistake_is_a_sentence_that_names_the_value_and_the_choices(word: str, parts: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        parse(Settings, [word])
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_an_unknown_benchmark_lists_the_names() -> None:
    with pytest.raises(SettingError, match="'enginse' is not a benchmark; choose one of engines, sweep, accuracy"):
        main("enginse", [])


@pytest.mark.parametrize("name", NAMES)
def test_help_lists_the_settings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(name, ["--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: python -m benchmarks {name}" in text
    assert "=benchmarks/results" in text
    assert ("quick=false" in text) == (name != "readme")


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_writes_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        main(name, [f"out={tmp_path / 'results'}", "threeds=1"])
    assert not list(tmp_path.iterdir())
