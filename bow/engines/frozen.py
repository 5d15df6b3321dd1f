"""Watch the Python values that a captured step reads; replaying a graph would freeze them."""

import contextlib
import functools
import operator
import sys
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from numbers import Number
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bow.graph.refusal import GENERATORS, code_text, set_state, state_of

MAX_PLACES = 2000  # places to watch besides attributes of the model's modules, nearest to the step first
MAX_SIZE = 1000  # of a longer list or dictionary only the length is watched
MAX_ARRAY_BYTES = 1024  # the elements of a larger NumPy array are not watched
PLAIN = (bool, int, float, complex, str, bytes, type(None))

# Kinds of public module attributes that are watched although no followed code names them.
HELD = (*PLAIN, tuple, Tensor, FunctionType, MethodType, functools.partial)

# Packages whose code reads nothing that a training changes.
_FOREIGN = {"torch", "numpy", *sys.stdlib_module_names} - {"__main__"}

# Methods that are called by syntax, or by torch, and not by name.
_IMPLICIT = {
    f"__{name}__"
    for name in (
        *("call", "getattr", "getattribute", "getitem", "iter", "next", "len", "contains", "enter", "exit"),
        *("bool", "float", "int", "index", "neg", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"),
        *("pow", "rpow", "lt", "le", "gt", "ge", "abs", "round", "mod", "floordiv", "matmul"),
        *("get", "missing"),
    )
} | {"forward", "backward", "setup_context"}

BUFFERS = (array, bytearray)

_TENSORS = ("_parameters", "_buffers", "_modules")

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_contents = operator.attrgetter("cell_contents")


class FrozenValues:
    """Snapshot of the Python values that a step and a model can read; calls no property or method of the user's."""

    # Follows globals and attributes that their code names (and the code of functions and methods that it names),
    # enclosing variables, defaults, partials and bound methods, and from there containers, instances and classes.

    def __init__(self, step: Any, model: nn.Module) -> None:
        names: set[str] = set()
        while True:  # code found later names attributes of objects found earlier
            walk = _Walk(step, model, names)
            if walk.names <= names:
                break
            names |= walk.names
        self.generators = walk.generators  # random generators owned by the step
        self.tensors = walk.tensors  # neither parameters nor buffers of the model
        self._labels = [label for *_, label in walk.places]
        self._reads = [read for read, *_ in walk.places]
        self._arguments = [argument for _, argument, *_ in walk.places]
        self._values = [value for _, _, value, _ in walk.places]
        self._containers = [container for container, *_ in walk.containers]
        self._copies = [copied for _, copied, _ in walk.containers]
        self._met = walk.met
        self._is_whole = walk.is_whole
        self._container_labels = [label for *_, label in walk.containers]
        self._empty = walk.empty

    def text(self) -> str | None:
        """Return all values as text that is equal in every process; None if text cannot describe them."""
        if not self._is_whole or self.tensors or self.generators or any(self._empty):
            return None
        places = [f"{label} {_text(value)}" for label, value in zip(self._labels, self._values, strict=True)]
        kept = zip(self._container_labels, self._copies, strict=True)
        met = map(_attributes_text, self._met)
        try:
            return "\n".join([*met, *places, *(f"{label} {_text(copied)}" for label, copied in kept)])
        except RecursionError:  # a list that contains itself
            return None

    def changed(self) -> str | None:
        """Return the name of a value that has changed since, if there is one."""
        try:  # in C throughout: this runs in every round
            now = map(operator.call, self._reads, self._arguments)
            if (
                all(map(operator.is_, now, self._values))
                and not any(self._empty)
                and all(map(operator.eq, self._containers, self._copies))
            ):
                return None
        except Exception:  # an element is missing or cannot be compared
            pass
        return self._find()

    def _find(self) -> str | None:
        for index, (read, argument, before) in enumerate(zip(self._reads, self._arguments, self._values, strict=True)):
            try:
                now = read(argument)
            except Exception:
                return self._labels[index]
            if now is not before and not _equal(now, before):
                return self._labels[index]
            self._values[index] = now
        pairs = zip(self._containers, self._copies, self._container_labels, strict=True)
        unequal = (label for container, copied, label in pairs if not _equal(container, copied))
        return next(unequal, "a hook" if any(self._empty) else None)


class _Walk:
    """Search a step and a model for places that hold values, nearest first."""

    def __init__(self, step: Any, model: nn.Module, followed: set[str]) -> None:
        self.names: set[str] = set()
        self.places: list[tuple[Callable[[Any], Any], Any, Any, str]] = []
        self.containers: list[tuple[Any, Any, str]] = []
        self.empty: list[Any] = []
        self.generators: list[Any] = []
        self.tensors: list[Tensor] = []
        self.met: list[Any] = []
        self.is_whole = True  # whether nothing was skipped
        self._followed = followed
        self._seen: dict[int, Any] = {}
        self._waiting: deque[tuple[Any, str]] = deque()
        for tensor in (*model.parameters(), *model.buffers()):
            self._seen[id(tensor)] = tensor
        self._visit(step, "step")
        self._visit(model, "model")
        limit = MAX_PLACES
        while self._waiting and len(self.places) + len(self.containers) < limit:
            value, label = self._waiting.popleft()
            before = len(self.places) + len(self.containers)
            self._look_at(value, label)
            self.met.append(value)
            if issubclass(type(value), nn.Module):
                limit += len(self.places) + len(self.containers) - before
        self.is_whole &= not self._waiting

    def _visit(self, value: Any, label: str) -> None:
        if issubclass(type(value), PLAIN) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if issubclass(type(value), Tensor):
            self.tensors.append(value)
        else:
            self._waiting.append((value, label))

    def _watch(self, read: Callable[[Any], Any], argument: Any, label: str) -> None:
        try:
            value = read(argument)
        except (AttributeError, ValueError, LookupError):  # an empty slot, cell or context variable
            return
        self.places.append((read, argument, value, label))
        self._visit(value, label)

    def _look_at(self, value: Any, label: str) -> None:
        kind = type(value)
        self.is_whole &= not _is_custom_operator(value)
        if kind is FunctionType:
            self._function(value)
        elif issubclass(kind, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._visit(part, label)
        elif kind is MethodType:
            self._visit(value.__func__, label)
            self._visit(value.__self__, label)
        elif kind in (BuiltinMethodType, MethodWrapperType):
            self._visit(value.__self__, label)
        elif issubclass(kind, staticmethod | classmethod):
            self._visit(value.__func__, label)
        elif issubclass(kind, property):
            self._visit(value.fget, label)
        elif issubclass(kind, functools.cached_property):
            self._visit(value.func, label)
        elif kind is ContextVar:
            self._watch(ContextVar.get, value, label)
        elif issubclass(kind, nn.Module):
            self._module(value)
        elif issubclass(kind, dict | list | tuple | set | frozenset | deque):
            self._container(value, label)
        elif kind is np.ndarray:
            if value.nbytes <= MAX_ARRAY_BYTES and value.dtype != object:
                self._watch(np.ndarray.tobytes, value, label)
            else:
                self.is_whole = False
        elif kind in BUFFERS:
            if len(value) <= MAX_SIZE:
                self.containers.append((value, value[:], label))
            else:
                self.is_whole = False
        elif issubclass(kind, ModuleType):
            if not _is_foreign(value.__name__):
                self._entries(vars(value), label)
        elif issubclass(kind, type):
            self._class(value, label)
        elif issubclass(kind, GENERATORS):
            self.generators.append(value)
        else:
            self._instance(value, label)

    def _function(self, function: FunctionType) -> None:
        if not function.__closure__ and _is_foreign(function.__module__):
            return
        names = set(_names(function.__code__))
        self.names |= names
        if "ops" in names and any(function.__globals__.get(name) is torch for name in names):
            self.is_whole = False  # an operator's registered implementation cannot be found
        for name in sorted(names & function.__globals__.keys()):
            self._watch(function.__globals__.get, name, name)
        for name in sorted(names & sys.modules.keys()):  # imported in the function
            self._visit(sys.modules[name], name)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._watch(_contents, cell, name)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name) is not None:
                self._watch(operator.attrgetter(name), function, f"{function.__name__}.{name}")
        self._entries(vars(function), function.__name__)
        self._visit(vars(function).get("__wrapped__"), function.__name__)

    def _module(self, module: nn.Module) -> None:
        entries = vars(module)
        for name, value in entries.items():
            if name in ("_parameters", "_buffers"):
                for tensor in value.values():
                    self._visit(tensor, name)
            elif name == "_modules" and value:
                self.containers.append((value, value.copy(), name))
                for child, submodule in value.items():
                    self._visit(submodule, child)
            elif name in _HOOKS and value:
                self._container(value, name)
            elif name in _HOOKS:
                self.empty.append(value)
            elif name in self._followed or (name[0] != "_" and issubclass(type(value), HELD)):
                self._watch(entries.get, name, name)
        self._visit(type(module), type(module).__name__)

    def _container(self, value: Any, label: str) -> None:
        kind = type(value)
        if len(value) > MAX_SIZE:
            self._watch(len, value, label)
            self.is_whole = False
            return
        parts = list(dict.values(value)) if issubclass(kind, dict) else list(value)
        if all(issubclass(type(part), PLAIN) for part in parts):
            if not issubclass(kind, tuple | frozenset):
                self.containers.append((value, kind.copy(value), label))
        elif issubclass(kind, dict):
            self._watch(len, value, label)
            for key in dict.keys(value):
                read = value.get if kind is dict else functools.partial(dict.get, value)
                self._watch(read, key, f"{label}[{key!r}]" if issubclass(type(key), PLAIN) else label)
        elif issubclass(kind, list | deque):
            self._watch(len, value, label)
            for index in range(len(parts)):
                self._watch(value.__getitem__, index, f"{label}[{index}]")
        else:
            for part in parts:
                self._visit(part, label)

    def _class(self, kind: type, label: str) -> None:
        for base in kind.__mro__:
            if _is_foreign(base.__module__):
                continue
            for name, value in vars(base).items():
                if issubclass(type(value), FunctionType | staticmethod | classmethod):
                    if name in self._followed or name in _IMPLICIT:
                        self._watch(vars(base).get, name, f"{label}.{name}")
                elif name in self._followed and type(value) is not MemberDescriptorType:
                    self._watch(vars(base).get, name, f"{label}.{name}")

    def _instance(self, value: Any, label: str) -> None:
        kind = type(value)
        try:
            entries = object.__getattribute__(value, "__dict__")  # bypass the user's own `__getattribute__`
        except AttributeError:
            entries = {}
        if type(entries) is dict:
            self._entries(entries, label)
            self._visit(entries.get("__wrapped__"), label)
        for held in ("maps", "data") if issubclass(kind, ChainMap | UserDict | UserList) else ():
            self._visit(entries.get(held), label)
        for base in kind.__mro__:
            for name, slot in vars(base).items():
                if type(slot) is MemberDescriptorType and name in self._followed and not _is_foreign(base.__module__):
                    self._watch(slot.__get__, value, f"{label}.{name}")
        self._visit(kind, kind.__name__)

    def _entries(self, entries: Mapping[str, Any], label: str) -> None:
        for name in sorted(self._followed.intersection(entries)):
            self._watch(entries.get, name, f"{label}.{name}")


def _text(value: Any) -> str:
    """Return a value as text: plain ones in full, functions by their code, others by their type alone."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, (*PLAIN, *BUFFERS, Number, slice, range, np.generic, np.dtype, torch.finfo)):
        return f"{name} {value!r}"
    if issubclass(kind, dict):
        return f"{name} {{{', '.join(f'{_text(key)}: {_text(part)}' for key, part in dict.items(value))}}}"
    if issubclass(kind, set | frozenset):
        return f"{name} {sorted(map(_text, value))}"
    if issubclass(kind, list | tuple | deque):
        return f"{name} [{', '.join(map(_text, value))}]"
    if kind is FunctionType:
        return f"{value.__module__}.{value.__qualname__} {' '.join(code_text(value.__code__))}"
    if issubclass(kind, Enum):
        return f"{name} {object.__getattribute__(value, '_name_')}"
    if kind in (torch.dtype, torch.device, torch.layout, torch.memory_format):
        return f"{name} {value!r}"
    if issubclass(kind, type) or _is_foreign(kind.__module__):
        return f"{name} {[getattr(value, called, '') for called in ('__module__', '__qualname__', '__name__')]}"
    return name


def _attributes_text(value: Any) -> str:
    """Return a value as text, a module with its attributes: those of torch's own modules are not followed."""
    if not issubclass(type(value), nn.Module):
        return _text(value)
    own = (f"{name}={_text(part)}" for name, part in vars(value).items() if name not in _TENSORS)
    return f"{_text(type(value))} {' '.join(own)}"


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in code, inner functions included, and strings that it may pass to `getattr`."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def is_torchs_own(operator: str) -> bool:
    return operator.partition(".")[0] in ("aten", "prim", "prims")


def _is_custom_operator(value: Any) -> bool:
    kind = type(value)
    if kind is torch._ops._OpNamespace:
        return not is_torchs_own(value.name)
    is_operator = issubclass(kind, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
    return kind.__module__ == "torch._library.custom_ops" or (is_operator and not is_torchs_own(str(value)))


def _is_foreign(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _FOREIGN


def _equal(now: Any, before: Any) -> bool:
    if type(now) is not type(before) or not isinstance(now, (*PLAIN, *BUFFERS, tuple, list, dict, set, deque)):
        return False
    try:
        return bool(now == before)
    except Exception:  # it contains a tensor now
        return False


@contextlib.contextmanager
def generators_kept(generators: Sequence[Any]) -> Iterator[Callable[[], bool]]:
    """Restore a step's generators afterwards; yields a check for draws from Python's or NumPy's."""
    states = [(generator, state_of(generator)) for generator in generators]
    others = [(each, str(state)) for each, state in states if not isinstance(each, torch.Generator)]
    try:
        yield lambda: any(str(state_of(each)) != state for each, state in others)
    finally:
        for generator, state in states:
            set_state(generator, state)
