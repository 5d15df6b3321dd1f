"""Checks, while tests run, that tensors have the shapes and dtypes that bow's annotations promise.

pytest's `--jaxtyping-packages=bow,shape_checks.checked` wraps every function of bow in `checked`. Only annotations
that name a shape are checked: a test that hands over a wrong type on purpose shall meet bow's own error.
"""

import types
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    hints = function.__annotations__
    if not any(map(_has_shape, hints.values())):
        return function
    function.__annotations__ = {name: hint if _has_shape(hint) else Any for name, hint in hints.items()}
    return beartype(function)


def _has_shape(hint: object) -> bool:
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return issubclass(hint, jaxtyping.AbstractArray)
    return any(map(_has_shape, typing.get_args(hint)))
