"""All settings of a training in one object, which worker processes receive and the run directory stores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bow.cluster.config import Devices
from bow.data import as_torch_data
from bow.engines import LearningConfig, Loss, OnNan, Step, check_clipping
from bow.engines.config import DEFAULT_ENGINE, Engine
from bow.errors import SettingError
from bow.observe import Logger
from bow.replicas import BufferPolicy, OptimizerFactory
from bow.replicas.buffers import check_policy
from bow.sync import Independent, Synchroniser
from bow.training.callbacks import Hooks, check_callbacks
from bow.training.checks import check_objects, check_step, check_sync, check_target
from bow.training.metrics import DEFAULT_METRICS, Metric, as_metrics, check_names, check_without_step
from bow.training.replicas import DEFAULT_OPTIMIZER, DEFAULT_SYNC
from bow.tuner import Tuner
from bow.values import given_path, number, whole, whole_seed

if TYPE_CHECKING:
    from bow.planning.problem.partition import Partition
    from bow.training.stopping import StopRule

SchedulerFactory: TypeAlias = Callable[[Optimizer], LRScheduler]

DEFAULT_DEVICES = Devices()


@dataclass(frozen=True)
class PerRound:
    """A learning-rate scheduler that is stepped after every round instead of every epoch.

    Args:
        factory: function that makes a `torch.optim.lr_scheduler` from the optimizer.

    Example:
        >>> import functools, torch
        >>> warm_up = PerRound(functools.partial(torch.optim.lr_scheduler.LinearLR, total_iters=100))
    """

    factory: SchedulerFactory


EVERY = "an epoch always ends with an evaluation, and 0.25 evaluates four times an epoch"


@dataclass(frozen=True, eq=False)
class Validation:
    """Settings of the central model's evaluation.

    Args:
        data: in any form of the training data; None: no evaluation.
        metrics: in addition to the loss, including those of torchmetrics; metrics that do not apply are skipped. With
            `step=`, none but the default is accepted, which is skipped: a step returns its own values.
        every: epochs between evaluations, at most 1; 0.25 evaluates four times an epoch.
        batch_size: samples per evaluation batch; None: 256, or the `DataLoader`'s own.
        target: values by name, such as `{"accuracy": 0.99}`: training stops when the central model reaches all.
        buffers: source of the central model's batch-norm statistics: the learners' `"average"`, the `"first"` learner,
            or up to 50 shuffled batches of training data before every evaluation (`"recalibrate"`).
        ema: decay of an exponential moving average of the central model's weights over the rounds, such as 0.999,
            which is evaluated, returned and saved instead of the central model; None: no moving average.

    Raises:
        SettingError: an invalid value.

    Example:
        >>> Validation(target={"accuracy": 0.99}).every
        1.0
    """

    data: Any = None
    _: KW_ONLY
    metrics: Sequence[Metric] = DEFAULT_METRICS
    every: float = 1.0
    batch_size: int | None = None
    target: Mapping[str, float] | None = None
    buffers: BufferPolicy = "average"
    ema: float | None = None

    def __post_init__(self) -> None:
        if self.ema is not None:
            number("validation.ema", self.ema, above=0, below=1, also="None for no average")
        if isinstance(self.data, (int, float, str, bytes)):
            raise SettingError(
                "validation must be data, such as a pair (inputs, targets) or a Dataset, or a bow.Validation, got "
                f"{self.data!r}; split the data, for example with torch.utils.data.random_split"
            )
        object.__setattr__(self, "metrics", as_metrics(self.metrics))
        check_objects("metrics", self.metrics, Metric)
        object.__setattr__(self, "data", as_torch_data(self.data))
        check_names("a metric", [getattr(metric, "name", None) for metric in self.metrics])
        check_policy(self.buffers)
        number("validation.every", self.every, above=0, most=1, remedy=EVERY)


@dataclass(frozen=True, eq=False)
class Run:
    """Run directory, checkpoints, resuming, interruption and logging of a training.

    Args:
        path: the run directory; None: `runs/<date>_<time>_<model>`.
        checkpoint_every: rounds between checkpoints, of which the last two are kept; None writes none. `"auto"` writes
            at most one a minute, or every five seconds on several devices, in at most 1 % of the time, and deletes
            them when the training has ended.
        resume: a checkpoint, a run directory, or `"auto"`: resume in `path` if it holds anything to resume, as
            processes restarted by torchrun do. The run directory is the checkpoint's own, where checkpoints of later
            rounds are deleted, or one without a run. Optimizer and scheduler settings are the checkpoint's, all
            others those of this call; a warning reports differences that affect the weights.
        on_interrupt: on Ctrl-C, SIGTERM or a closed terminal, the training ends after the round, writes a
            checkpoint, and raises `KeyboardInterrupt` or `SystemExit` (`"raise"`), or returns the result so far, with
            `interrupted_by` set (`"return"`). A second Ctrl-C ends it at once.
        loggers: objects with `log(record)` and `close()`; the run directory's JSON lines are always written. A
            sweep takes `bow.members.GroupLogger` objects.
        progress: show a progress bar, or plain lines away from a terminal.

    Raises:
        SettingError: an invalid value.

    Example:
        >>> Run("runs/first", resume="auto").checkpoint_every
        'auto'
    """

    path: str | Path | None = None
    _: KW_ONLY
    checkpoint_every: int | Literal["auto"] | None = "auto"
    resume: str | Path | None = None
    on_interrupt: Literal["raise", "return"] = "raise"
    loggers: Sequence[Logger] = ()
    progress: bool = True

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", given_path("run", self.path))
        if self.resume not in (None, "auto"):
            object.__setattr__(self, "resume", given_path("resume", self.resume))
        check_objects("loggers", self.loggers, Logger)
        if self.on_interrupt not in ("raise", "return"):
            raise SettingError(f'on_interrupt must be "raise" or "return", got {self.on_interrupt!r}')
        if self.checkpoint_every not in (None, "auto"):
            whole("checkpoint_every", self.checkpoint_every, also='"auto", or None for no checkpoints')


DEFAULT_VALIDATION, DEFAULT_RUN = Validation(), Run()


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainConfig:
    """All arguments of `bow.train`; short forms, such as an engine's name, become sections."""

    model: nn.Module | Callable[[], nn.Module]
    data: Any
    loss: Loss | None = None
    step: Step | None = None
    optimizer: OptimizerFactory = DEFAULT_OPTIMIZER
    scheduler: SchedulerFactory | PerRound | None = None
    batch_size: int | None = None
    epochs: int = 1
    steps: int | None = None
    stop: "Sequence[StopRule] | None" = None
    learners: int | Literal["auto"] | Tuner = "auto"
    sync: Synchroniser = DEFAULT_SYNC
    engine: Engine = DEFAULT_ENGINE
    devices: Devices = DEFAULT_DEVICES
    clip_norm: float | None = None
    on_nan: OnNan = "restart"
    validation: Validation = DEFAULT_VALIDATION
    run: Run = DEFAULT_RUN
    callbacks: Sequence[object] = ()
    seed: int = 0
    partition: "Partition | None" = None  # from found.train: splits operators among devices
    check_partition: bool = True  # time it first, and reject one slower than data parallelism or one device
    source: Mapping[str, Any] | None = None  # command-line settings that it was built from

    def __post_init__(self) -> None:
        made = {"engine": Engine.of(self.engine), "seed": whole_seed(self.seed), "data": as_torch_data(self.data)}
        kinds: dict[str, type] = {"devices": Devices, "validation": Validation, "run": Run}
        for name, kind in kinds.items():
            given = getattr(self, name)
            made[name] = given if isinstance(given, kind) else kind(given)
        for name, value in made.items():
            object.__setattr__(self, name, value)
        validation = self.validation
        learners = self.num_learners
        if learners != "auto":
            whole("learners", learners, also='"auto"')
        check_sync(self.sync)
        if validation.ema is not None and (
            self.engine.dispatch != "fixed" or isinstance(self.sync, Independent) or self.partition is not None
        ):
            raise SettingError(
                f"validation.ema={validation.ema:g} needs a central model that changes in every round, unlike "
                'with dispatch="first_come", bow.Independent or a partition; leave one of them out'
            )
        check_without_step(validation.metrics, self.step)
        check_clipping(self.clip_norm)
        check_callbacks(self.callbacks)
        if self.stop is not None:
            from bow.training.stopping import check_rules, names_of_epochs, with_directions  # few trainings need it

            names = names_of_epochs(validation.metrics if validation.data is not None else ())
            rules = with_directions(check_rules(self.stop), validation.metrics, names if self.step is None else None)
            object.__setattr__(self, "stop", rules)
        check_target(validation.target, validation.data, validation.metrics if self.step is None else None)

    def with_run(self, **changes: Any) -> "TrainConfig":
        return replace(self, run=replace(self.run, **changes))

    @property
    def num_learners(self) -> int | Literal["auto"]:
        return self.learners.learners if isinstance(self.learners, Tuner) else self.learners

    @property
    def tuner(self) -> Tuner | None:
        return self.learners if isinstance(self.learners, Tuner) else None

    @property
    def is_per_round(self) -> bool:
        return isinstance(self.scheduler, PerRound)

    @property
    def is_watched(self) -> bool:
        """Whether something reads the learners after every round, so that rounds run one by one."""
        reads = self.is_per_round or self.validation.ema is not None or Hooks(self.callbacks).listen("on_round_end")
        return reads and self.task.engine.dispatch == "fixed"

    @property
    def scheduler_factory(self) -> SchedulerFactory | None:
        return self.scheduler.factory if isinstance(self.scheduler, PerRound) else self.scheduler

    @property
    def stream_settings(self) -> dict[str, Any]:
        """Arguments of `open_stream` besides the data."""
        return {name: getattr(self, name) for name in ("batch_size", "epochs", "steps", "seed")}

    @property
    def step_or_loss(self) -> Step:
        return check_step(self.loss, self.step)

    @property
    def task(self) -> LearningConfig:
        settings = {each.name for each in fields(LearningConfig)} - {"step", "batch_size"}
        return LearningConfig(self.step_or_loss, **{n: value for n, value in vars(self).items() if n in settings})

    def as_settings(self) -> Mapping[str, Any]:
        """Return the contents of a run's `config.yaml`: the command line's settings, or those of this config."""
        if self.source is not None:
            return self.source
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "source"}
        sections = (Validation, Run, Engine, Devices)
        return {name: dict(vars(value)) if isinstance(value, sections) else value for name, value in values.items()}
