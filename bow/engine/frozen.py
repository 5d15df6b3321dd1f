"""Values in Python that a step graph has frozen: numbers of the step and attributes of the model."""

import functools
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

_PLAIN = (bool, int, float, str, type(None))
_MANY = 16
"""Longer lists and tuples are not looked at."""


class FrozenValues:
    """Plain values that the step and the model's modules had when the learning task was captured.

    A graph repeats them for good, eager PyTorch looks at them every time. What is looked at: enclosing variables and
    globals that the code of the step names, those of functions that it names likewise, attributes of an object whose
    method the step is and of modules that it names (a loss), and attributes of the first learner's modules.

    Args:
        step: what is done with a batch.
        model: one learner's module.
    """

    def __init__(self, step: Any, model: nn.Module) -> None:
        self._cells: list[tuple[CellType, Any, str]] = []
        self._entries: list[tuple[Mapping[str, Any], str, Any]] = []
        self._visited: set[int] = set()
        self._look_at(step)
        for module in model.modules():
            self._look_at_entries(vars(module))

    def changed(self) -> str | None:
        """The name of a value that is another one by now, if there is one."""
        for values, name, before in self._entries:
            if _differs(values.get(name), before):
                return name
        for cell, before, name in self._cells:
            if _differs(_contents(cell), before):
                return name
        return None

    def _look_at(self, function: Any) -> None:
        if id(function) in self._visited:
            return
        self._visited.add(id(function))
        if isinstance(function, functools.partial):
            self._look_at(function.func)
            self._look_at_entries(function.keywords)
        elif isinstance(function, MethodType):
            self._look_at(function.__func__)
            self._look_at_entries(getattr(function.__self__, "__dict__", {}))
        elif isinstance(function, nn.Module):
            self._look_at_entries(vars(function))
            self._look_at(type(function).forward)
        elif isinstance(function, FunctionType) and not function.__module__.startswith("torch"):
            self._look_at_variables(function)

    def _look_at_variables(self, function: FunctionType) -> None:
        names = set(_names(function.__code__)) & function.__globals__.keys()
        self._look_at_entries(function.__globals__, names)
        for name in names:
            self._look_at(function.__globals__[name])
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = _contents(cell)
            if _is_plain(value):
                self._cells.append((cell, _copy(value), name))
            else:
                self._look_at(value)

    def _look_at_entries(self, values: Mapping[str, Any], names: set[str] | None = None) -> None:
        for name in values if names is None else names:
            if "hook" not in name and not name.startswith("__") and _is_plain(values[name]):
                self._entries.append((values, name, _copy(values[name])))


def _names(code: CodeType) -> Iterator[str]:
    """The globals that code names, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _differs(now: Any, before: Any) -> bool:
    """Whether a value is another one; the same not-a-number is the same."""
    return now is not before and (not _is_plain(now) or now != before)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= _MANY and all(isinstance(part, _PLAIN) for part in value)
    return isinstance(value, _PLAIN)


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value
