"""The settings of an experiment: a dataclass, set by `key=value` words."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from bow.errors import SettingError

T = TypeVar("T", bound="Config")

RESULTS = Path("benchmarks/results")  # the committed folder, relative to the root of the repository

QUICK = Path("build/quick")  # default folder with `quick`


def setting(
    default: Any, text: str, *, choices: Sequence[Any] = (), least: float | None = None, quick: Any = None
) -> Any:
    """A field of a `Config`.

    Args:
        default: its default value.
        text: a line of documentation, shown by `--help`.
        choices: the permitted values (for a tuple, its entries); empty: any value of its type.
        least: the lowest permitted number; None: above 0, unless the default is lower.
        quick: its default with `quick=true`; None: the same.
    """
    entries = default if isinstance(default, tuple) else (default,)
    numbers = [entry for entry in entries if isinstance(entry, (int, float)) and not isinstance(entry, bool)]
    if least is None and numbers and min(numbers) <= 0:
        least = min(numbers)
    metadata = {"text": text, "choices": tuple(choices), "least": least, "quick": quick}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings common to all experiments.

    Raises:
        SettingError: a value outside its range or not among its choices.
    """

    out: Path = setting(RESULTS, "folder for the results")  # noqa: RUF009 - it is dataclasses.field
    quick: bool = setting(False, "run a small part as a smoke test")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name), field.metadata)

    def reduced(self) -> Self:
        """Apply `quick` to the settings that were not set; does not overwrite committed results."""
        if not self.quick:
            return self
        own = {f.name: f.metadata["quick"] for f in dataclasses.fields(self) if getattr(self, f.name) == f.default}
        made = dataclasses.replace(self, **{name: value for name, value in own.items() if value is not None})
        return dataclasses.replace(made, out=QUICK) if RESULTS in (self.out, *self.out.parents) else made


@dataclasses.dataclass(frozen=True)
class Documented(Config):
    """Settings of an experiment whose tables and pictures are part of the documentation."""

    docs: Path = setting(Path("docs"), "folder with the page whose tables and pictures are replaced")  # noqa: RUF009

    def reduced(self) -> Self:
        """With `quick` the documentation is not changed, unless its folder was set."""
        made = super().reduced()
        given = made.docs != Documented.docs
        return made if given or not made.quick else dataclasses.replace(made, docs=made.out)


def parse(config: type[T], words: Sequence[str]) -> T:
    """Parse settings from words such as `"out=DIR"`, `"quick=true"` or `"learners=1,2"`.

    Raises:
        SettingError: a word without `=`, an unknown key, or an invalid value.
    """
    names = [field.name for field in dataclasses.fields(config)]
    types = get_type_hints(config)
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise SettingError(f"settings are written key=value, got {word!r}; the keys are {', '.join(names)}")
        if key not in names:
            raise SettingError(f"{key!r} is not a setting of this benchmark; choose one of {', '.join(names)}")
        values[key] = _value(key, text, types[key])
    return config(**values)


def describe(name: str, config: type[Config]) -> str:
    """Return the help text of an experiment: each setting with its default and description."""
    lines = [f"usage: python -m benchmarks {name} [KEY=VALUE ...]", ""]
    lines += [f"  {f.name + '=' + _shown(f.default):<44} {f.metadata['text']}" for f in dataclasses.fields(config)]
    return "\n".join(lines)


def _check(name: str, value: Any, metadata: Any) -> None:
    entries = value if isinstance(value, tuple) else (value,)
    choices, least = metadata["choices"], metadata["least"]
    if not entries:
        raise SettingError(f"{name} must not be empty; leave it out for the default")
    for entry in entries:
        if choices and entry not in choices:
            raise SettingError(f"{name} must be of {', '.join(map(str, choices))}, got {entry!r}")
        if isinstance(entry, (int, float)) and not isinstance(entry, bool):
            if least is None and not entry > 0:
                raise SettingError(f"{name} must be above 0, got {_shown(value)}")
            if least is not None and not entry >= least:
                raise SettingError(f"{name} must be at least {least:g}, got {_shown(value)}")


def _value(key: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is tuple:
        return tuple(_value(key, part, get_args(kind)[0]) for part in text.split(",") if part)
    read, wanted = _READERS[kind]
    try:
        return read(text)
    except (ValueError, KeyError) as error:
        raise SettingError(f"{key} must be {wanted}, got {text!r}") from error


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    str: (str, "a word"),
    Path: (Path, "a path"),
}
