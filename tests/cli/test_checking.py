from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from bow.cli.checking import check_arguments, describe, fits, shown
from bow.errors import SettingError


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, int, True),
        (3.0, int, False),
        (True, int, False),
        (3, float, True),
        (False, float, False),
        ("3", float, False),
        (1, bool, False),
        (None, int | None, True),
        ("auto", int | Literal["auto"], True),
        ("abc", int | Literal["auto"], False),
        ((1, 2), Sequence[int], True),
        ([1, "a"], Sequence[int], False),
        (1, tuple[int, ...], False),
        ({"accuracy": 0.9}, dict[str, float], True),
        ({"accuracy": "high"}, dict[str, float], False),
        ("anything", Any, True),
        ("anything", SettingError, True),
    ],
)
def test_values_fit_their_annotations(value: object, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


@pytest.mark.parametrize(
    ("hint", "words"),
    [(int | None, "a whole number or null"), (str | Path, "a path"), (Literal["epoch", "round"], "epoch or round")],
)
def test_annotations_are_said_in_words(hint: Any, words: str) -> None:
    assert describe(hint) == words


def test_values_are_shown_as_they_are_written() -> None:
    assert [shown(value) for value in ((1, None), "", "a", "4")] == ["[1, null]", "''", "a", "'4'"]


def function(first: int, *, second: Literal["a", "b"] = "a") -> None: ...


def test_unknown_argument_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match=r"model\.secnd=1 .* did you mean second\?"):
        check_arguments(function, {"secnd": 1}, prefix="model.")


def test_wrong_type_is_refused_with_what_is_right() -> None:
    with pytest.raises(SettingError, match=r"model\.second must be a or b, got c"):
        check_arguments(function, {"second": "c"}, prefix="model.")


def test_any_name_is_right_for_a_function_that_takes_any() -> None:
    check_arguments(lambda **anything: None, {"whatever": 1})


def test_what_has_no_signature_is_not_checked() -> None:
    check_arguments(int, {"whatever": 1})
