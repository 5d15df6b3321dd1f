from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bow.errors import SettingError
from bow.values import given_path, is_finite, number, processes, whole


class Index:
    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1), (np.int64(3), 3), (np.uint8(7), 7), (Index(), 5), (2**63 - 1, 2**63 - 1)]
)
def test_whole_numbers_of_any_kind_become_plain_ones(value: Any, expected: int) -> None:
    taken = whole("k", value)
    assert type(taken) is int
    assert taken == expected


@pytest.mark.parametrize("value", [0, -1, 2**63, 2.0, np.float32(2), "4", None, True, np.bool_(True), [1], math.nan])
def test_what_is_no_whole_number_within_the_bounds_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match=r'^k must be a whole number .*, or "auto", got .*; use 4$'):
        whole("k", value, also='"auto"', remedy="use 4")


def test_a_refusal_names_type_and_range_and_is_short() -> None:
    with pytest.raises(SettingError, match=r"at least 1, got '4' of type str$"):
        whole("k", "4")
    with pytest.raises(SettingError, match=r"from 2 to 8, got 9$"):
        whole("k", 9, least=2, most=8)
    with pytest.raises(SettingError) as caught:
        whole("k", "x\n" * 500)
    assert len(str(caught.value)) < 150
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0.5, 1, np.float64(0.25), np.float32(0.25), np.int64(1)])
def test_numbers_of_any_kind_become_plain_ones(value: Any) -> None:
    taken = number("mu", value, above=0, most=1)
    assert type(taken) in (int, float)
    assert taken == value


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, np.nan, "1", None, True, 10**400, 0, 1, -0.5, 1.5, 1j, [0.5]]
)
def test_what_is_no_finite_number_within_the_bounds_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match=r"^mu must be .*above 0 and below 1, or None, got "):
        number("mu", value, above=0, below=1, also="None")


def test_a_machine_bears_some_processes_on_each_core() -> None:
    assert processes("devices", 8, cores=2) == 8
    with pytest.raises(SettingError, match="devices must be a whole number from 1 to 8, got 9; use devices=2"):
        processes("devices", 9, cores=2)


def test_finite() -> None:
    assert is_finite(3)
    assert not any(map(is_finite, [math.nan, math.inf, "3", True, None, 10**400]))


def test_paths_are_taken_as_they_are_but_for_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert given_path("run_dir", "~/x") == Path("/home/someone/x")
    assert given_path("run_dir", Path("~/x")) == Path("/home/someone/x")
    assert given_path("run_dir", "läuf ☃ mit leer") == Path("läuf ☃ mit leer")
    assert given_path("run_dir", "a/~b") == Path("a/~b")


@pytest.mark.parametrize(
    "value",
    [
        *(7, True, None, ["a"], b"a", {"a": 1}),
        *("", "a\0b", os.fsdecode(b"bad\xff"), "x" * 300, "ü" * 200, "d/" * 3000, "~nobody-of-this-name/x"),
    ],
    ids=repr,
)
def test_what_no_file_can_be_called_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match=r"^run") as caught:
        given_path("run_dir", value)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
    str(caught.value).encode("utf-8")
