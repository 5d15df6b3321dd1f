"""Checks values from the command line against the annotations of what they are passed to."""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Union

from bow.cli.suggestion import suggestion
from bow.errors import SettingError

NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", Path: "a path"}


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Check that a function takes these arguments, by name and, where its annotations are plain, by type.

    What has no signature, as some classes written in C, is not checked.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):
        return
    named = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    hints = _hints(function)
    for name, value in values.items():
        if name not in named and len(named) == len(parameters):
            remedy = suggestion(name, named, None if prefix else "bow train --help lists the settings")
            raise SettingError(f"{prefix}{name}={value} sets an argument that does not exist; {remedy}")
        if name in hints and not fits(value, hints[name]):
            kind = describe(hints[name])
            raise SettingError(f"{prefix}{name} must be {kind}, got {shown(value)}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be what an annotation asks for; true where the annotation is not plain.

    Example:
        >>> fits(3, float), fits("abc", int | None), fits((1, "b"), tuple[int, ...]), fits("x", Literal["y"])
        (True, False, False, False)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    if hint is None or hint is type(None):
        return value is None
    if hint in (int, float):
        kinds = (int, float) if hint is float else int
        return isinstance(value, kinds) and not isinstance(value, bool)
    if hint in (str, bool):
        return isinstance(value, hint)
    if hint is Path:
        return isinstance(value, (str, Path))
    if origin in (tuple, list, Sequence, Iterable):
        return isinstance(value, (tuple, list)) and all(fits(element, arguments[0]) for element in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(fits(element, arguments[1]) for element in value.values())
    if is_dataclass(hint):
        return False  # a section, which is no plain value
    return not isinstance(value, (str, bool)) if _is_tensor(hint) else True


def describe(hint: Any) -> str:
    """An annotation in words.

    Example:
        >>> describe(int | None), describe(str | Path)
        ('a whole number or null', 'a path')
        >>> describe(Literal["epoch", "round"])
        'epoch or round'
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        left = [each for each in arguments if not (_is_tensor(each) or is_dataclass(each))]
        left = [each for each in left if not (each is str and Path in arguments)]
        return " or ".join(dict.fromkeys(map(describe, left)))
    if origin is Literal:
        return " or ".join(shown(option) for option in arguments)
    if hint is None or hint is type(None):
        return "null"
    if origin in (dict, Mapping):
        return "names with values, such as {NAME: VALUE}"
    if origin in (tuple, list, Sequence, Iterable):
        return f"a list, each element {describe(arguments[0])}"
    return NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def shown(value: Any) -> str:
    """A value as it is written on the command line.

    Example:
        >>> shown((1, None)), shown(""), shown("a"), shown("4")
        ('[1, null]', "''", 'a', "'4'")
    """
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(shown(element) for element in value)}]"
    looks_like_another = isinstance(value, str) and (not value or value[0] in "+-.0123456789")
    return "null" if value is None else repr(value) if looks_like_another else str(value)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function.__init__ if inspect.isclass(function) else function
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}


def _is_tensor(hint: Any) -> bool:
    return getattr(hint, "__name__", "") == "Tensor"
