"""Reasons why a step cannot be captured: torch's refusals, and side effects that a replayed graph would lose."""

import contextlib
import io
import logging
import pickle
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from bow.errors import CaptureError, reason

# Meanings of the exceptions that torch raises while it runs a model on fake tensors, by class name.
_MEANINGS = {
    "DataDependentOutputException": "reads a tensor's value in Python (.item(), int(), bool() or an if on a tensor)",
    "GuardOnDataDependentSymNode": "branches in Python on a tensor's value",
    "UserError": "branches in Python on a tensor's value",
    "DynamicOutputShapeException": "makes a tensor whose shape depends on values (nonzero, unique, masked_select)",
    "UnsupportedFakeTensorException": "uses a kind of tensor that has no shape without values",
    "UnsupportedOperatorException": "uses an operator that cannot run without values",
}


EAGER = 'use engine="eager"'  # the fallback that the error message suggests

REMEDY = "write the step with tensor operations only"


def refusal(model: str, cause: str, remedy: str = REMEDY, instead: str = EAGER) -> CaptureError:
    return CaptureError(f"{model} cannot be captured because its step {cause}; {remedy}, or {instead}")


def refused(model: str, error: BaseException, instead: str = EAGER) -> CaptureError:
    kind = type(error).__name__
    if kind in _MEANINGS:
        function = getattr(error, "func", None)
        return refusal(model, _MEANINGS[kind] + (f", in {function}" if function is not None else ""), instead=instead)
    if any(sign in str(error) for sign in (".numpy()", "data_ptr", "FakeTensor", "tolist()")):
        return refusal(model, f"needs the values of its tensors outside torch ({reason(error)})", instead=instead)
    if "Generator" in str(error):
        return refusal(model, "draws from a torch.Generator", "use torch's default random number generator", instead)
    return refusal(model, f"fails ({reason(error)})", "run it once on this batch without capture to see where", instead)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings (the user's own run has shown them), torch's logs, and the graphs it prints."""
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith("torch") and isinstance(logger, logging.Logger) and not logger.disabled
    ]
    records = logging.getLogger("torch.__trace")  # makes a stack trace for every record, even if disabled
    handlers, records.handlers = records.handlers, []
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        records.handlers = handlers
        for logger in loggers:
            logger.disabled = False


_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, type(None))


class ValuePlace(NamedTuple):
    """Place of a Python value that the step can change."""

    text: str  # for messages
    module: str | None = None  # path of the module whose attribute it is
    attribute: str = ""

    def __str__(self) -> str:
        return self.text


PythonState: TypeAlias = dict[ValuePlace, str]


def python_state(model: nn.Module, functions: Iterable[type] = ()) -> PythonState:
    """Return plain Python values that the step can change, as text."""
    state = {
        ValuePlace("the state of Python's random"): str(hash(random.getstate())),
        ValuePlace("the state of numpy.random"): str(hash(pickle.dumps(np.random.get_state(legacy=False)))),
    }
    for path, module in model.named_modules():
        owner = f"module {path!r}" if path else "the model"
        for name, shown in _plain(vars(module)):
            state[ValuePlace(f"attribute {name!r} of {owner}", path, name)] = shown
    for function in functions:
        state.update({ValuePlace(f"{function.__name__}.{name!r}"): shown for name, shown in _plain(vars(function))})
        for code in _functions(function):
            shown_by_name = _plain(_outside(code))
            state.update(
                {ValuePlace(f"variable {name!r} of {function.__name__}"): shown for name, shown in shown_by_name}
            )
    return state


@contextlib.contextmanager
def python_random_kept() -> Iterator[None]:
    """Restore the state of Python's and NumPy's global generators afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
# Random number sources of a step, other than the global generators.


def state_of(generator: Any) -> Any:
    """Return the state of a torch, NumPy or Python generator; None if it has none, such as the system's."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    try:
        return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()
    except NotImplementedError:
        return None


def set_state(generator: Any, state: Any) -> None:
    if state is None:
        return
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def changed(before: PythonState, after: PythonState) -> list[ValuePlace]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def refuse_changes(
    model: str, before: PythonState, after: PythonState, refusal: Callable[..., CaptureError] = refusal
) -> None:
    if names := changed(before, after):
        cause = f"changes {names[0]}, a change that is lost when the captured step is replayed"
        raise refusal(model, cause, "keep what changes in a buffer")


def _plain(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, (*_PLAIN, Tensor)) and not name.startswith("__") and not _is_of_torch(name):
            yield name, _shown(value)


def _shown(value: Any) -> str:
    """Show a tensor by its identity and version: a fake tensor has no values."""
    if isinstance(value, Tensor):
        return f"tensor {id(value)} {value._version}"
    if isinstance(value, dict):
        return str({key: _shown(part) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return str([_shown(part) for part in value])
    return repr(value) if isinstance(value, _PLAIN) else str(id(value))


def _is_of_torch(name: str) -> bool:
    """Whether an attribute is torch's bookkeeping: parameters, buffers, submodules, hooks, LSTM's weight lists."""
    return name in {"_parameters", "_buffers", "_modules"} or "hook" in name or name.startswith("_flat_weight")


def _functions(owner: type) -> Iterator[FunctionType]:
    for value in vars(owner).values():
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            yield function


def _outside(function: FunctionType) -> dict[str, Any]:
    names = function.__code__.co_names
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # empty
            found[name] = None
    return found


def code_text(code: CodeType) -> Iterator[str]:
    """Yield a function's instructions, names and constants, but not its location in the source."""
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_text(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
