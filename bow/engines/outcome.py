"""Settings, outcomes and events of rounds."""

import functools
import statistics
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from jaxtyping import Bool, Shaped
from torch import Tensor

from bow.engines.config import DEFAULT_ENGINE, Engine
from bow.engines.task import Metrics, Step, accumulating
from bow.errors import SettingError
from bow.schedule import Schedule
from bow.values import number

# A non-finite learner restarts unless the training is hopeless; always restarts; raises an error.
OnNan: TypeAlias = Literal["restart", "continue", "error"]


@dataclass(frozen=True)
class LearningConfig:
    """Settings of a training's learning tasks, read by engines."""

    step: Step
    _: KW_ONLY
    clip_norm: float | None = None
    on_nan: OnNan = "restart"
    seed: int = 0
    batch_size: int | None = None  # samples of a usual batch, if known; shorter ones are not captured
    rounds: int | None = None  # of the whole training, if known: decides whether compiling pays
    engine: Engine = DEFAULT_ENGINE

    def __post_init__(self) -> None:
        check_clipping(self.clip_norm)
        if self.on_nan not in get_args(OnNan):
            raise SettingError(f'on_nan must be "restart", "continue" or "error", got {self.on_nan!r}')

    @functools.cached_property
    def task_step(self) -> Step:
        """The step of a learning task: the user's, or an accumulating one around it."""
        if self.engine.accumulate == 1:
            return self.step
        return accumulating(self.step, self.engine.accumulate)

    @property
    def schedule(self) -> Schedule | None:
        return self.engine.schedule if isinstance(self.engine.schedule, Schedule) else None

    def compiled(self, compile: bool) -> "LearningConfig":
        return replace(self, engine=replace(self.engine, compile=compile))


def check_clipping(clip_norm: object) -> None:
    if clip_norm is not None:
        number("clip_norm", clip_norm, above=0, also="None for no clipping")


@dataclass(frozen=True)
class RoundEvent:
    """An event in a round that the user should know about."""

    round: int
    event: str
    message: str


@dataclass(frozen=True)
class Turns:
    """Results of learning tasks that a learner ran one after another, with a step after each."""

    losses: Shaped[Tensor, " turns"]  # before each step
    finite: bool  # of all turns; a turn that is not finite is the last one
    turn_s: float  # duration of one on its executor


MOST_GAIN, WIDEST = 1.1, 1.5  # gain per learner at once, and ratio of the quartiles, beyond which the machine was busy


@dataclass
class ParallelSpeedup:
    """Speedup of learners that run in parallel: a task is timed alone now and then, and the round after it."""

    learners: int
    at_once: int
    times: list[tuple[float, float]] = field(default_factory=list)  # seconds of a task alone on one core, of the round

    def __str__(self) -> str:
        alone_s, round_s = map(statistics.median, zip(*self.times, strict=True))
        gain, what = self.learners * alone_s / round_s, f"{self.learners} learners, {self.at_once} side by side"
        settled = [alone / together for alone, together in self.times[1:]] or [1.0]  # the first task is slower
        low, _, high = statistics.quantiles([*settled, *settled], method="inclusive")
        if gain > self.at_once * MOST_GAIN or high > low * WIDEST:
            return f"{what}: the gain could not be measured, because the machine was busy"
        return (
            f"{what}: {gain:.1f} times the throughput of one on a core "
            f"(a round {1000 * round_s:.3g} ms, one task alone {1000 * alone_s:.3g} ms)"
        )


@dataclass
class Outcome:
    """Results of a round's learning tasks besides the gradients in `G`."""

    losses: Shaped[Tensor, " learners"]  # before the step; NaN for learners without a batch
    finite: Bool[Tensor, " learners"]  # loss and gradient; on a CPU also the weights after the step
    active: list[bool]  # which learners had a batch
    metrics: Metrics = field(default_factory=dict)  # what the step returned besides the loss, by learner
    taken_by: Sequence[int] | None = None  # by batch, the learner that took it; None: batch j is learner j's

    @functools.cached_property
    def healthy(self) -> list[bool]:
        if bool(self.finite.all()):
            return self.active
        return [active and finite for active, finite in zip(self.active, self.finite.tolist(), strict=True)]

    def mark_diverged(self, finite: Bool[Tensor, " learners"]) -> None:
        self.finite = self.finite & finite
        self.__dict__.pop("healthy", None)

    @property
    def diverged(self) -> list[bool]:
        return [active and not healthy for active, healthy in zip(self.active, self.healthy, strict=True)]

    @property
    def any_diverged(self) -> bool:
        return self.healthy is not self.active and any(self.diverged)
