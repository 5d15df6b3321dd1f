"""Makes what a `_target_` in the configuration names."""

import functools
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bow.cli.checking import check_arguments, shown
from bow.errors import BowError, SettingError, reason

TARGET = "_target_"


def imported(name: Any, key: str) -> Any:
    """Import a dotted name, such as `torch.optim.SGD`; modules in the current folder count, behind all others."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        found = pkgutil.resolve_name(name)
    except Exception as error:  # whatever a module of the user's does when it is imported
        why = reason(error)
        raise SettingError(f"{key}={shown(name)} cannot be imported ({why}); write package.module.name") from None
    if not callable(found):
        raise SettingError(f"{key}={name} is of type {type(found).__name__}; name a function or a class")
    return found


def factory(settings: Any, key: str) -> Callable[..., Any]:
    """The `_target_` with its arguments filled in, not yet called."""
    if not isinstance(settings, Mapping) or TARGET not in settings:
        raise SettingError(f"{key}={shown(settings)} says nothing to make; write {{_target_: NAME, ...}}")
    target = imported(settings[TARGET], f"{key}.{TARGET}")
    arguments = {name: _argument(value, f"{key}.{name}") for name, value in settings.items() if name != TARGET}
    check_arguments(target, arguments, prefix=f"{key}.")
    return functools.partial(target, **arguments)


def made(settings: Any, key: str, *arguments: Any) -> Any:
    """The object that the `_target_` makes of its arguments."""
    return called(factory(settings, key), key, *arguments)


def called(function: Callable[..., Any], key: str, *arguments: Any) -> Any:
    """The result of a function whose objections are the user's mistake."""
    try:
        return function(*arguments)
    except BowError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise SettingError(f"{key} cannot be made of these settings ({reason(error)}); correct them") from error


def all_made(settings: Any, key: str) -> tuple[Any, ...]:
    """The objects of a list, or of the values of a mapping."""
    if isinstance(settings, Mapping):
        return tuple(made(value, f"{key}.{name}") for name, value in settings.items())
    if not isinstance(settings, Iterable) or isinstance(settings, str):
        raise SettingError(f"{key} must be a list, got {shown(settings)}; write [{{_target_: NAME, ...}}]")
    return tuple(made(value, f"{key}[{index}]") for index, value in enumerate(settings))


def _argument(value: Any, key: str) -> Any:
    if isinstance(value, Mapping) and TARGET in value:
        return made(value, key)
    return tuple(value) if isinstance(value, list) else value
