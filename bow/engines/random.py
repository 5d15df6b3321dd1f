"""Random numbers of learning tasks: derived from the seed, without consuming the user's own."""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from bow.seeds import derive_seed

COMPILER = "torch._dynamo"  # importing it takes a second, and torch does so in places that compile nothing
DEFAULT_GENERATOR = threading.Lock()  # held while operators of learning tasks use the default generator of all threads


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode whose `call` runs each operator, and that does not import torch's compiler."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)


_uncompiled = DispatchMode.__torch_dispatch__  # as wrapped by torch: kept out of compiled code, by the compiler
_plain = getattr(_uncompiled, "__wrapped__", _uncompiled)


def _dispatch(*args: Any, **kwargs: Any) -> Any:
    return (_uncompiled if COMPILER in sys.modules else _plain)(*args, **kwargs)


DispatchMode.__torch_dispatch__ = _dispatch  # type: ignore[method-assign]


class OwnNumbers(DispatchMode):
    """Dispatch mode in which operators draw from a separate generator, the numbers of the default one."""

    # The default generator is shared by all threads: draws of learners that run at the same time would depend on their
    # order.

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def call(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not is_random(func) or given_generator(func, args, kwargs) is not None:
            return func(*args, **kwargs)
        position = _position(func)
        if position is None:
            return self._lent(func, args, kwargs)
        if position < len(args):
            return func(*args[:position], self._generator, *args[position + 1 :], **kwargs)
        return func(*args, **{**kwargs, "generator": self._generator})

    def _lent(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator that takes no generator, with the default one in the state of this one."""
        default = torch.default_generator
        with DEFAULT_GENERATOR:
            state = default.get_state()
            default.set_state(self._generator.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                self._generator.set_state(default.get_state())
                default.set_state(state)


class NumbersOfGraph(OwnNumbers):  # type: ignore[no-untyped-call]
    """Dispatch mode in which operators draw the numbers of a step graph's operators, which have a stream each."""

    def __init__(self, seed: int, operators: Sequence[int]) -> None:
        super().__init__(seed)
        self._seed = seed
        self._operators = operators
        self.num_draws = 0  # operators that have drawn so far

    def call(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if is_random(func) and given_generator(func, args, kwargs) is None:
            if self.num_draws < len(self._operators):
                self._generator.manual_seed(derive_seed(self._seed, self._operators[self.num_draws]))
            self.num_draws += 1
        return super().call(func, args, kwargs)


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Context in which code compiled by `torch.compile` runs uncompiled, in all threads."""
    # Compiled code refuses to run under `OwnNumbers` and `DrawWatch`, and torch never compiles code that it first
    # encounters under them.
    if COMPILER not in sys.modules:  # then nothing is compiled, and importing it takes seconds
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


class DrawWatch:
    """Observe draws of learning tasks from the CPU's default generator; one `with` block for each task."""

    def __init__(self, *, operators: bool) -> None:
        self.draws = False  # whether they draw at all
        # Whether `OwnNumbers` around a forward pass does not cover what they draw: in the backward pass, from a
        # generator of the user's, by an operator that is not declared as random, or after the state was changed
        # (activation checkpointing resets it); or they take forward-mode derivatives, which one thread at a time can.
        self.unsafe_in_parallel = False
        self._in_forward = False
        self._left = torch.empty(0)
        self._mode = _Watching(self) if operators else contextlib.nullcontext()

    def __enter__(self) -> "DrawWatch":
        self._left = torch.default_generator.get_state()
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        if self._moved():
            self.draws = self.unsafe_in_parallel = True

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        self._in_forward = True
        try:
            yield
        finally:
            self._in_forward = False

    def before_draw(self, *, foreign: bool) -> None:
        """Called before an operator draws, from the default generator or from a `foreign` one."""
        self.draws = True
        if foreign or not self._in_forward or self._moved():
            self.unsafe_in_parallel = True

    def after_draw(self) -> None:
        self._left = torch.default_generator.get_state()

    def _moved(self) -> bool:
        return not torch.equal(torch.default_generator.get_state(), self._left)


class _Watching(DispatchMode):
    def __init__(self, watch: DrawWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def call(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if forward_ad._current_level >= 0:  # the level of dual numbers is shared by all threads
            self._watch.unsafe_in_parallel = True
        if not is_random(func):
            return func(*args, **kwargs)
        self._watch.before_draw(foreign=given_generator(func, args, kwargs) is not None)
        try:
            return func(*args, **kwargs)
        finally:
            self._watch.after_draw()


class NoGenerators(DispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that refuses generators, from which one draw would serve all learners at once."""

    def call(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if is_random(func) and given_generator(func, args, kwargs) is not None:
            raise RuntimeError(f"the step passes a Generator to {func}, which would draw for all learners at once")
        return func(*args, **kwargs)


@functools.cache
def is_random(operator: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags


def given_generator(operator: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    position = _position(operator)
    return args[position] if position is not None and position < len(args) else kwargs.get("generator")


@functools.cache
def _position(operator: OpOverload) -> int | None:
    """Return the index of the generator among an operator's arguments; None if it takes none."""
    names = [argument.name for argument in operator._schema.arguments]
    return names.index("generator") if "generator" in names else None
