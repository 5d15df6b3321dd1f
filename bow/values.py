"""Validate numbers and paths that users give; errors are one sentence."""

import inspect
import math
import numbers
import operator
import os
from pathlib import Path
from typing import Any

from bow.errors import BowError, SettingError

LARGEST = 2**63 - 1  # the largest integer that torch accepts
PROCESSES_PER_CORE = 4  # more would only compete
LONGEST_NAME = 255
LONGEST_PATH = 4095  # limits in bytes of a file name and a path on Linux and macOS


def whole(
    name: str, value: Any, *, least: int = 1, most: int = LARGEST, words: str = "", also: str = "", remedy: str = ""
) -> int:
    """Check an integer and return it as `int`; accepts NumPy's, and anything with `__index__`."""
    try:
        given = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        given = None
    if given is not None and least <= given <= most:
        return given
    if not words and given is not None and given > most:
        words = f"a whole number from {least} to {'2**63 - 1' if most == LARGEST else most}"
    words = words or f"a whole number of at least {least}"
    raise SettingError(_refusal(name, words, also, value if given is None else given, remedy))


def processes(name: str, value: Any, cores: int, also: str = "") -> int:
    return whole(name, value, most=PROCESSES_PER_CORE * cores, also=also, remedy=f"use {name}={cores}")


def whole_seed(value: Any) -> int:
    """Check a seed: any integer that torch's generators accept."""
    return whole("seed", value, least=-(2**63), most=2**64 - 1, words="a whole number from -2**63 to 2**64 - 1")


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    also: str = "",
    remedy: str = "",
) -> float:
    """Check a finite number within bounds; accepts NumPy's."""
    bounds = {"above": above, "at least": least, "below": below, "at most": most}
    words = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)
    if not is_finite(value):
        of = "of " if least is not None else ""
        raise SettingError(_refusal(name, f"a finite number {of}{words}".rstrip(), also, value, remedy))
    fits = (above is None or value > above) and (least is None or value >= least)
    if not (fits and (below is None or value < below) and (most is None or value <= most)):
        raise SettingError(_refusal(name, words, also, value, remedy))
    return value if isinstance(value, int) else float(value)


def is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def parameter_names(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # builtins without a signature
        return []


def given_path(name: str, value: Any, refusal: type[BowError] = SettingError) -> Path:
    """Check a path and expand `~`."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise refusal(_refusal(name, "a path such as 'runs/first'", "", value, ""))
    if not text:
        raise refusal(f"{name} must be a path, got an empty one; name a file or a directory, or leave it out")
    try:
        longest = max(len(os.fsencode(part)) for part in Path(text).parts or (text,))
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise refusal(f"{name} must be a path in UTF-8, got {text!r}; use another name") from None
    if "\0" in text:
        raise refusal(f"{name} must be a path without NUL characters, got {text!r}; use another name")
    if longest > LONGEST_NAME or length > LONGEST_PATH:
        shown = f"{text[:20]}... of {length} bytes"
        raise refusal(
            f"{name} must be a path of at most {LONGEST_PATH} bytes, with at most {LONGEST_NAME} for each name, "
            f"got {shown}; use a shorter one"
        )
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise refusal(f"{name}={text} names the home directory of an unknown user; write the path in full") from None


def _refusal(name: str, wanted: str, also: str, value: object, remedy: str) -> str:
    kind = "" if isinstance(value, (int, float)) and not isinstance(value, bool) else f" of type {type(value).__name__}"
    wanted += f", or {also}" if also else ""
    return f"{name} must be {wanted}, got {shortened(value)}{kind}" + (f"; {remedy}" if remedy else "")


def shortened(value: object) -> str:
    """A value as messages show it."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
