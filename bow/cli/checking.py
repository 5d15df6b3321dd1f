"""Check values from the command line, and construct the objects that they describe."""

import contextlib
import difflib
import functools
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union

from bow.errors import BowError, SettingError, reason

NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", Path: "a path"}


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Check names and values of arguments against a function's signature and its plain annotations."""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):
        return
    named = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    hints: dict[str, Any] = {}
    with contextlib.suppress(NameError, TypeError, AttributeError):
        hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    for name, value in values.items():
        if name not in named and len(named) == len(parameters):
            remedy = suggestion(name, named, None if prefix else "bow train --help lists the settings")
            raise SettingError(f"{prefix}{name}={value} sets an argument that does not exist; {remedy}")
        if name in hints and not fits(value, hints[name]):
            kind = describe(hints[name])
            raise SettingError(f"{prefix}{name} must be {kind}, got {shown(value)}")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a plain value matches an annotation; true if the annotation is not plain."""
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
        return False  # a section, not a plain value
    return not isinstance(value, (str, bool)) if _is_tensor(hint) else True


def describe(hint: Any) -> str:
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
    """Return a value as it is written on the command line."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(shown(element) for element in value)}]"
    looks_like_another = isinstance(value, str) and (not value or value[0] in "+-.0123456789")
    return "null" if value is None else repr(value) if looks_like_another else str(value)


def _is_tensor(hint: Any) -> bool:
    return getattr(hint, "__name__", "") == "Tensor"


def suggestion(word: str, names: Iterable[str], otherwise: str | None = None) -> str:
    known = sorted(names)
    if near := difflib.get_close_matches(word, [name for name in known if name != "none"], n=1):
        return f"did you mean {near[0]}?"
    return otherwise or f"choose one of {', '.join(known)}"


TARGET = "_target_"


def imported(name: Any, key: str) -> Any:
    """Import a dotted name, such as `torch.optim.SGD`; the current folder is searched last."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        found = pkgutil.resolve_name(name)
    except Exception as error:  # importing a user's module can raise anything
        why = reason(error)
        raise SettingError(f"{key}={shown(name)} cannot be imported ({why}); write package.module.name") from None
    if not callable(found):
        raise SettingError(f"{key}={name} is of type {type(found).__name__}; name a function or a class")
    return found


def factory(settings: Any, key: str) -> Callable[..., Any]:
    """Return the `_target_` with its arguments bound, not called yet."""
    if not isinstance(settings, Mapping) or TARGET not in settings:
        raise SettingError(f"{key}={shown(settings)} has no _target_; write {{_target_: NAME, ...}}")
    target = imported(settings[TARGET], f"{key}.{TARGET}")
    arguments = {name: _argument(value, f"{key}.{name}") for name, value in settings.items() if name != TARGET}
    check_arguments(target, arguments, prefix=f"{key}.")
    return functools.partial(target, **arguments)


def made(settings: Any, key: str, *arguments: Any) -> Any:
    return called(factory(settings, key), key, *arguments)


def called(function: Callable[..., Any], key: str, *arguments: Any) -> Any:
    """Call a function whose exceptions are reported as the user's mistake."""
    try:
        return function(*arguments)
    except BowError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise SettingError(f"{key} cannot be made from these settings ({reason(error)}); correct them") from error


def all_made(settings: Any, key: str) -> tuple[Any, ...]:
    if isinstance(settings, Mapping):
        return tuple(made(value, f"{key}.{name}") for name, value in settings.items())
    if not isinstance(settings, Iterable) or isinstance(settings, str):
        raise SettingError(f"{key} must be a list, got {shown(settings)}; write [{{_target_: NAME, ...}}]")
    return tuple(made(value, f"{key}[{index}]") for index, value in enumerate(settings))


def _argument(value: Any, key: str) -> Any:
    if isinstance(value, Mapping) and TARGET in value:
        return made(value, key)
    return tuple(value) if isinstance(value, list) else value


Reader: TypeAlias = tuple[Callable[[str], Any], str]  # converts a text to a value; describes valid values
FLAG: Reader = ({"true": True, "false": False}.__getitem__, "true or false")
COUNT: Reader = (int, "a whole number")
NAME: Reader = (str, "a name")


def read_words(words: Iterable[str], readers: Mapping[str, Reader]) -> tuple[dict[str, Any], list[str]]:
    """Split `NAME=VALUE` words into the settings that have a reader and all other words."""
    own: dict[str, Any] = {}
    others = []
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in readers:
            others.append(word)
            continue
        read, wanted = readers[name]
        try:
            own[name] = read(text)
        except SettingError:
            raise
        except (ValueError, KeyError) as error:
            raise SettingError(f"{name} must be {wanted}, got {text!r}") from error
    return own, others
