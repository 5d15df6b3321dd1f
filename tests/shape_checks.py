"""Check during tests that tensors have the shapes and dtypes of bow's annotations.

Only functions with shape annotations are wrapped, and only those annotations are checked: a test that passes a
wrong type on purpose should meet bow's own error. Code traced by `torch.compile` is not checked, because the check
itself cannot be traced. The checks take a fifth of the time of a test, so they are enabled by `during`. What they need
is imported with the package: the process of pytest-xdist that only hands out the tests does without.
"""

import contextlib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

_is_on = False


@contextlib.contextmanager
def during(is_on: bool = True) -> Iterator[None]:
    """Enable or disable the checks."""
    global _is_on
    before, _is_on = _is_on, is_on
    try:
        yield
    finally:
        _is_on = before


def install(package: str) -> None:
    """Check the modules of a package that are imported from now on."""
    sys.meta_path.insert(0, _Finder(package))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function in shape checks, which run if enabled; returns it unchanged if no annotation has a shape."""
    hints = function.__annotations__
    if not any(map(_has_shape, hints.values())):
        return function
    from torch.compiler import is_compiling

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _is_on or is_compiling():
            return function(*args, **kwargs)
        return with_check()(*args, **kwargs)

    with_check = functools.cache(functools.partial(_with_check, function))
    return call


def _with_check(function: Callable[..., Any]) -> Callable[..., Any]:
    from beartype import beartype
    from jaxtyping import jaxtyped

    hints = function.__annotations__
    plain = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    plain.__kwdefaults__ = function.__kwdefaults__
    plain.__qualname__, plain.__module__ = function.__qualname__, function.__module__
    plain.__annotations__ = {name: hint if _has_shape(hint) else Any for name, hint in hints.items()}
    return jaxtyped(typechecker=beartype)(plain)


class _Finder:
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _check_members(module, module.__name__)


def _check_members(owner: Any, module: str) -> None:
    for name, member in list(vars(owner).items()):
        if inspect.isfunction(member) and member.__module__ == module:
            setattr(owner, name, checked(member))
        elif inspect.isclass(member) and member.__module__ == module:
            _check_members(member, module)


def _has_shape(hint: object) -> bool:
    from jaxtyping import AbstractArray

    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return issubclass(hint, AbstractArray)
    return any(map(_has_shape, typing.get_args(hint)))
