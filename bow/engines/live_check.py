"""Live check: compare a captured learning task with the user's own step on a live batch from time to time.

Values frozen by the capture, wherever the step read them (a file, the clock, a C extension), show in loss, gradient,
metrics or buffers. Rounding must not: where the two differ by more than a few units of it, the step is repeated with
random rounding noise on every operator's result, whose spread sets the tolerance.
"""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from bow.data import Batch
from bow.engines.captured import CaptureCache
from bow.engines.eager import LearningTasks
from bow.engines.frozen import generators_kept
from bow.engines.outcome import LearningConfig
from bow.engines.random import DispatchMode
from bow.engines.task import Metrics
from bow.errors import reason
from bow.graph.refusal import python_random_kept
from bow.replicas import LearnerGroup, buffer_slots, buffer_state

SHARE = 0.01  # of the training time, for all checks after the first ones
FIRST = (1, 2, 4, 8)  # rounds after a capture that are always checked: together they take less than the capture
# Until checks have taken this long in all, one runs whenever the rounds since a capture have doubled: a training may be
# over before SHARE of its time is enough for one.
FREE_CHECKS_S = 0.1

# The usual time of a round, of which at most twice counts as training, as the rest is a pause: its first value, and the
# part of it that is left after each look at the clock, unless rounds do take so long.
FIRST_ROUND_S, USUAL_LEFT = 0.1, 0.8

# Units of rounding, relative to a tensor's norm, within which results count as equal.
ROUNDING = 64

# The same for what is compiled, which sums in another order. Whether values were frozen is not the question there: it
# also runs operator by operator, under the bound above. A gradient changes by far more than rounding where a value near
# zero falls on the other side of a ReLU: up to 0.02 of its norm, in 120 rounds of ResNet-8.
COMPILED_ROUNDING, COMPILED_GRADIENT = 1024, 2**20

# Units of noise per operator; number of noisy runs; multiple of the largest effect that is allowed.
NOISE, NOISY_RUNS, SPREADS = 4, 8, 4

# A step whose loss differs by a larger part when repeated on the same batch reads something that every run changes; an
# effect of rounding that is a larger part is measured again on each batch.
REPEATED = 1e-3

GRADIENT = "the gradient of "  # what the names of these parts begin with

MAX_UNDONE_BYTES = 2**26  # tensors other than buffers are saved and restored up to this size

# Makes the context in which a step draws random numbers; called afterwards, its value tells whether they were those of
# the capture.
Numbers: TypeAlias = Callable[[], contextlib.AbstractContextManager[Callable[[], bool]]]


@dataclass(frozen=True)
class TaskRun:
    """Results of a learning task."""

    loss: Tensor  # shape []
    gradient: Tensor  # as a row
    metrics: Metrics  # by name
    buffers: Mapping[str, Tensor]  # of the learner, after the task
    is_compiled: bool = False


@dataclass(frozen=True)
class Expected:
    """Result of the user's own step on a batch."""

    learner: int  # whose batch it is
    run: TaskRun | None  # None if it cannot be compared
    spread: Mapping[str, float] | None = None  # by part, the effect of rounding; None: not measured
    failure: str | None = None  # why it differs from the capture, if known without a comparison


class LiveCheck:
    """Compare a capture with the step, in the first rounds after a capture and then in 1 % of the time."""

    def __init__(self, group: LearnerGroup, settings: LearningConfig, captures: CaptureCache[Any]) -> None:
        self._group = group
        self._captures = captures
        self._tasks = LearningTasks(group, settings.compiled(False))
        self._num_captures = 0
        self._since = 0
        self._next = FIRST[0]
        self.needs_recheck = False  # the last check found a difference that only a noisy run can judge
        self._with_noise = False
        self._comparable = True
        self._was_compared = False  # since the last capture
        self._num_checks = 0
        self._known: dict[str, float] = {}  # by part, the relative effect of rounding as last measured
        self._seen, self._seen_round, self._round_s = time.perf_counter(), 0, FIRST_ROUND_S
        self._trained_s = self._trained_at_last_s = 0.0
        self._spent_s = self._last_s = 0.0
        self._written: list[Tensor] | None = None
        self._equal: int | None = None
        self._checked = -1  # the round that was checked last

    def resized(self) -> None:
        self._tasks.resized()

    def is_due(self, round_index: int) -> bool:
        self._count_time(round_index)
        if self._captures.num_captures != self._num_captures:
            self._num_captures = self._captures.num_captures
            self._since, self._next, self.needs_recheck, self._comparable = round_index, FIRST[0], False, True
            self._was_compared, self._known = False, {}
        if not self._num_captures or not self._comparable:
            return False
        if self.needs_recheck:
            return True
        has_doubled = round_index - self._since + 1 >= self._next
        if self._next <= FIRST[-1] or (has_doubled and self._spent_s < FREE_CHECKS_S):
            return has_doubled
        since_last_s = self._trained_s - self._trained_at_last_s
        return since_last_s * SHARE >= self._last_s and self._trained_s * SHARE >= self._spent_s

    def has_unchecked(self, round_index: int) -> bool:
        """Whether rounds before this one may have replayed a capture since the last check."""
        return self._num_captures > 0 and self._comparable and (self.needs_recheck or self._checked < round_index - 1)

    def _count_time(self, round_index: int) -> None:
        now, rounds = time.perf_counter(), round_index - self._seen_round
        if rounds > 0:  # else asked for again, or a training goes on from an earlier round
            each_s = min((now - self._seen) / rounds, 2 * self._round_s)
            self._trained_s += rounds * each_s
            self._seen, self._round_s = now, max(each_s, USUAL_LEFT * self._round_s)
        self._seen_round = round_index

    def rounds_before(self, round_index: int) -> int:
        """Return how many rounds from this one on need no check; checks that are due by time can wait for them."""
        if self.is_due(round_index):
            return 0
        by_rounds = self._next <= FIRST[-1] or self._spent_s < FREE_CHECKS_S
        return self._since + self._next - 1 - round_index if by_rounds and self._comparable else sys.maxsize

    def choose(self, shapes: Sequence[Hashable | None]) -> int | None:
        """Return the learner to check, another one each time, newest shape first; None if none has a batch."""
        present = [learner for learner, shape in enumerate(shapes) if shape in self._captures]
        newest = [learner for learner in present if shapes[learner] == self._captures.newest]
        chosen = newest if newest and self._next == FIRST[0] else present
        return chosen[self._num_checks % len(chosen)] if chosen else None

    def run_step(self, learner: int, batch: Batch, numbers: Numbers) -> Expected:
        """Run the user's own step and undo everything it may have changed."""
        self._started = time.perf_counter()
        self._num_checks += 1
        try:
            run, comparable = self._run(learner, batch, numbers, noise=None)
            if not comparable and self._was_compared:
                return Expected(learner, None, failure="it makes a different number of random draws")
            self._comparable, self._was_compared = comparable, comparable
            if not comparable or not bool(torch.isfinite(run.loss) & torch.isfinite(run.gradient.sum())):
                return Expected(learner, None)
            if self._with_noise:
                again = self._run(learner, batch, numbers, noise=None)[0].loss
                if _norm(again, run.loss) > REPEATED * _norm(run.loss):
                    failure = "the step is not deterministic: its loss differs between runs on the same batch"
                    return Expected(learner, None, failure=failure)
            spread = self._spread(learner, batch, numbers, run) if self._with_noise else None
            if spread is not None:
                sizes = {name: _norm(tensor) for name, tensor in self._parts(run).items()}
                parts = {name: effect / sizes[name] for name, effect in spread.items() if sizes[name] > 0}
                self._known = {name: part for name, part in parts.items() if part < REPEATED}
        except torch.OutOfMemoryError:
            return Expected(learner, None)
        except AssertionError:  # the user's own, or of a device that checks the order of accesses
            raise
        except Exception as error:
            return Expected(learner, None, failure=f"the step itself fails: {reason(error)}")
        return Expected(learner, run, spread)

    def compare(self, made: Sequence[TaskRun], expected: Expected, round_index: int) -> str | None:
        """Return how runs of the capture differ from the step; None if they do not, or if another check must judge."""
        differing = [what for run in made for what in self._differing(run, expected)]
        self._last_s = time.perf_counter() - self._started
        self._spent_s += self._last_s
        self._trained_at_last_s, self._checked = self._trained_s, round_index
        self._next = max(self._next, 2 * (round_index - self._since + 1))
        self.needs_recheck = bool(differing) and expected.spread is None
        self._with_noise = self.needs_recheck
        if expected.failure is not None:
            return self._sentence(expected.failure)
        if differing:
            return None if self.needs_recheck else self._sentence(differing[0])
        if expected.run is not None:
            self._equal = round_index
        return None

    def results_of(
        self,
        learner: int,
        loss: Tensor,
        metrics: Metrics,
        is_compiled: bool = False,
    ) -> TaskRun:
        """Return a learning task's results; its gradient is in the row of `G`."""
        own = self._group.learners[learner]
        return TaskRun(loss, own.gradient.clone(), metrics, buffer_state(own.module), is_compiled)

    @contextlib.contextmanager
    def undone(self, learner: int) -> Iterator[None]:
        """Undo what a learning task changes: buffers, gradient, attributes of modules, random generators."""
        own = self._group.learners[learner]
        attributes = [(vars(module), dict(vars(module))) for module in own.module.modules()]
        buffers = [
            (owner._buffers, key, buffer, None if buffer is None else buffer.clone())
            for _, (owner, key) in buffer_slots(own.module)
            for buffer in [owner._buffers[key]]
        ]
        tensors = [(tensor, tensor._version, tensor.detach().clone()) for tensor in self._may_be_written()]
        gradient, weights = own.gradient.clone(), own.row.detach().clone()
        try:
            with python_random_kept(), generators_kept(self._captures.generators):
                yield
        finally:
            for now, before in attributes:
                now.clear()
                now.update(before)
            for slots, key, buffer, value in buffers:
                slots[key] = buffer
                if buffer is not None and value is not None:
                    buffer.copy_(value)
            self._written = [tensor for tensor, version, _ in tensors if tensor._version != version]
            for tensor, version, value in tensors:
                if tensor._version != version:
                    tensor.detach().copy_(value)
            own.gradient.copy_(gradient)
            own.row.detach().copy_(weights)

    def _may_be_written(self) -> list[Tensor]:
        if self._written is None or self._next == FIRST[0]:
            tensors = [tensor for tensor in self._captures.tensors if not tensor.is_inference()]
            return tensors if sum(tensor.nbytes for tensor in tensors) <= MAX_UNDONE_BYTES else []
        return self._written

    def _run(self, learner: int, batch: Batch, numbers: Numbers, noise: torch.Generator | None) -> tuple[TaskRun, bool]:
        own = self._group.learners[learner]
        with self.undone(learner):
            with numbers() as comparable, contextlib.ExitStack() as modes:
                if noise is not None:
                    own.row.detach().mul_(_factors(own.row, noise))
                    modes.enter_context(_RoundingNoise(noise))
                # A copy, since the step may write to its batch.
                learned = self._tasks.run(learner, tree_map_only(Tensor, Tensor.clone, batch))
            return self.results_of(learner, learned.loss.clone(), dict(learned.metrics)), comparable()

    def _spread(self, learner: int, batch: Batch, numbers: Numbers, run: TaskRun) -> dict[str, float]:
        spread = dict.fromkeys(self._parts(run), 0.0)
        for turn in range(NOISY_RUNS):
            generator = torch.Generator(run.gradient.device).manual_seed(turn)
            noisy = self._parts(self._run(learner, batch, numbers, generator)[0])
            for name, tensor in self._parts(run).items():
                spread[name] = max(spread[name], _norm(noisy[name], tensor))
        return spread

    def _differing(self, made: TaskRun, expected: Expected) -> list[str]:
        if expected.run is None:
            return []
        own, parts = self._parts(expected.run), self._parts(made)
        found = []
        for name, tensor in own.items():
            other = parts.get(name)
            if other is None or other.shape != tensor.shape:
                found.append(f"{name} is missing or has a different shape")
                continue
            if other.dtype == tensor.dtype and torch.equal(other, tensor):  # as usual, and cheaper than norms
                continue
            distance, size = _norm(other, tensor), _norm(tensor)
            unit = torch.finfo(tensor.dtype).eps if tensor.dtype.is_floating_point else 0.0
            units = ROUNDING
            if made.is_compiled:
                units = COMPILED_GRADIENT if name.startswith(GRADIENT) else COMPILED_ROUNDING
            allowed = units * unit * size + SPREADS * (expected.spread or {}).get(name, 0.0)
            if expected.spread is None:
                allowed += SPREADS * self._known.get(name, 0.0) * size
            if not distance <= allowed:
                how = f"is {float(other):.6g} and not {float(tensor):.6g}" if tensor.dim() == 0 else "differs"
                found.append(f"{name} {how}")
        return found

    def _parts(self, run: TaskRun) -> dict[str, Tensor]:
        metrics = {f"the step's {name!r}": value.to(torch.float32) for name, value in run.metrics.items()}
        slots = self._group.layout.slots
        gradients = {f"{GRADIENT}{slot.names[0]!r}": slot.of(run.gradient) for slot in slots}
        buffers = {f"buffer {name!r}": value for name, value in run.buffers.items()}
        return {"the loss": run.loss.to(run.gradient.dtype), **metrics, **gradients, **buffers}

    def _sentence(self, what: str) -> str:
        known = "matched in no checked round" if self._equal is None else f"last matched in round {self._equal}"
        return (
            f"the captured step differs from the step: {what}; it {known}, and rounds after that may have been trained "
            "on frozen values. What a step reads from a file, the clock or similar is frozen when it is captured: pass "
            "it with the batch, or keep it in a buffer"
        )


class _RoundingNoise(DispatchMode):
    """Dispatch mode that rounds operators' results at random (Parker, Monte Carlo arithmetic, 1997)."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def call(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if (parts := _by_parts().get(func)) is not None:
            with self:
                return parts(*args, **kwargs)
        made = func(*args, **kwargs)
        if any(returns.alias_info is not None for returns in func._schema.returns):  # a view, or written in place
            return made
        return tree_map_only(Tensor, self._rounded, made)

    def _rounded(self, tensor: Tensor) -> Tensor:
        # A gradient known to be 0 (`_efficientzerotensor`) has no memory to read.
        has_rounding = tensor.dtype.is_floating_point and not tensor._is_zerotensor()
        return tensor * _factors(tensor, self._generator) if has_rounding else tensor


@functools.cache
def _by_parts() -> Mapping[Any, Callable[..., Any]]:
    """Decompositions of operators whose results can be far smaller than the intermediate values that are rounded."""
    from torch._decomp import get_decompositions  # which imports torch's compiler

    aten: Any = torch.ops.aten
    made: Mapping[Any, Callable[..., Any]] = get_decompositions(
        [aten._log_softmax, aten._log_softmax_backward_data, aten.logsumexp]
    )
    return made


def _factors(tensor: Tensor, generator: torch.Generator) -> Tensor:
    unit = NOISE * torch.finfo(tensor.dtype).eps
    return torch.empty_like(tensor, requires_grad=False).uniform_(1 - unit, 1 + unit, generator=generator)


def _norm(tensor: Tensor, other: Tensor | None = None) -> float:
    """Return the norm of finite elements, or of the difference from another tensor; equal infinities, NaNs cancel."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    tensor = tensor.detach().to(wide)
    if other is None:
        return float(torch.linalg.vector_norm(tensor.nan_to_num(0.0, 0.0, 0.0)))
    other = other.detach().to(wide)
    same = (tensor == other) | (tensor.isnan() & other.isnan())
    return float(torch.linalg.vector_norm((tensor - other).masked_fill(same, 0.0)))
