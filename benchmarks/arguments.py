"""From `key=value` words to the settings of a benchmark."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from bow.errors import SettingError

T = TypeVar("T")


def setting(default: Any, text: str, choices: Sequence[Any] = ()) -> Any:
    """A field of a settings dataclass."""
    return dataclasses.field(default=default, metadata={"text": text, "choices": tuple(choices)})


def parse(settings: type[T], words: Sequence[str]) -> T:
    """Make settings from words such as `"out=DIR"`, `"quick=true"` or `"learners=1,2"`."""
    fields = {field.name: field for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    types = get_type_hints(settings)
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise SettingError(f"settings are written key=value, got {word!r}; the keys are {', '.join(fields)}")
        if key not in fields:
            raise SettingError(f"{key!r} is not a setting of this benchmark; choose one of {', '.join(fields)}")
        values[key] = _value(key, text, types[key])
        _check_choice(key, values[key], fields[key].metadata["choices"])
    return settings(**values)


def describe(name: str, settings: type[Any]) -> str:
    """The help text of a benchmark: each setting with its default and its meaning."""
    lines = [f"usage: python -m benchmarks {name} [KEY=VALUE ...]", ""]
    for field in dataclasses.fields(settings):
        given = f"{field.name}={_shown(field.default)}"
        lines.append(f"  {given:<44} {field.metadata['text']}")
    return "\n".join(lines)


def check_positive(settings: Any, *names: str) -> None:
    """Refuse numbers that are not above 0, and tuples that are empty or have such a number in them."""
    for name in names:
        value = getattr(settings, name)
        entries = value if isinstance(value, tuple) else (value,)
        if not entries or any(not entry > 0 for entry in entries):
            raise SettingError(f"{name} must be above 0, got {_shown(value) or 'nothing'}")


def _value(key: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is tuple:
        return tuple(_value(key, part, get_args(kind)[0]) for part in text.split(",") if part)
    read, wanted = _READERS[kind]
    try:
        return read(text)
    except (ValueError, KeyError) as error:
        raise SettingError(f"{key} must be {wanted}, got {text!r}") from error


def _check_choice(key: str, value: Any, choices: tuple[Any, ...]) -> None:
    entries = value if isinstance(value, tuple) else (value,)
    for entry in entries:
        if choices and entry not in choices:
            raise SettingError(f"{key} must be of {', '.join(map(str, choices))}, got {entry!r}")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (_boolean, "true or false"),
    str: (str, "a word"),
    Path: (Path, "a path"),
}
