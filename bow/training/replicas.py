"""`bow.Replicas`: several learners as one module, for custom training loops."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from bow.cluster import ALONE, TrialWorld, World
from bow.data import Batch
from bow.devices import StreamDevice, cuda_device
from bow.engines import (
    EngineName,
    LearningConfig,
    Loss,
    OnNan,
    Outcome,
    Step,
    check_device,
    choose_learners,
    make_engine,
)
from bow.engines.config import Engine as EngineConfig
from bow.engines.config import MemoryFormat
from bow.engines.memory import MemoryBudget, is_cpu
from bow.engines.offload import check_offload
from bow.errors import ModelError, SettingError, warn_user
from bow.forking import begin_to_compute
from bow.replicas import BufferPolicy, LearnerGroup, OptimizerFactory, copy_buffers, prepare_template
from bow.schedule import Schedule, Timeline
from bow.sync import SMA, Synchroniser
from bow.training.batches import RoundBatches
from bow.training.checks import (
    check_embeddings,
    check_schedule,
    check_step,
    check_sync,
    dtypes_explained,
    engine_for,
    refuses_moved,
    resolve_device,
)
from bow.training.replicas_state import load_state, read_state
from bow.values import whole, whole_seed

DEFAULT_OPTIMIZER: OptimizerFactory = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
DEFAULT_SYNC = SMA()


@dataclass(frozen=True)
class TimelineRecorder:
    """Records timelines of operators, tasks or rounds."""

    start: Callable[[], None]  # start recording: operators with engine `graph`, otherwise tasks or rounds
    take: Callable[[], Timeline]  # stop recording, and return what has run since `start`


class Replicas(nn.Module):
    """Several learners of one model, trained in parallel and kept together by a synchroniser.

    Its one submodule is the central model: `parameters()` and `state_dict()` are the central model's, and calling
    it runs the central model. The learners are rows of the replica matrix and not submodules.

    Args:
        model: the model, or a function of no arguments that builds it. It is read, not changed.
        loss: `loss(outputs, targets) -> scalar`, for batches `(inputs, targets)`.
        step: instead of `loss`: `step(model, batch) -> loss`, or `(loss, {name: scalar})`, for any pytree batch. With
            neither, batches are dictionaries and the loss is `model(**batch).loss`.
        optimizer: function that makes a `torch.optim` optimizer from an iterable of parameters; if its first parameter
            is called `named...`, it receives pairs `(name, parameter)`.
        learners: number of learners on this device, or `"auto"`: a rule that `bow.engines.choice` documents.
        sync: the synchroniser.
        engine: how learning tasks run, a name or a `bow.Engine`; `"auto"`: a rule that `bow.engines.choice` documents.
        device: `"auto"` (a GPU where there is one), `"cpu"`, `"cuda"` or `"cuda:N"`.
        clip_norm: the largest gradient norm of a learner; `SSGD` clips after averaging.
        on_nan: a learner whose loss, gradient or weights are not finite restarts from the central model; if all
            learners do so round after round, the training ends (`"restart"`) or continues (`"continue"`). `"error"`
            ends it at once.
        buffers: source of the central model's batch-norm statistics: the learners' `"average"`, the `"first"` learner,
            or a recalibration (`"recalibrate"`, by `bow.train`).
        seed: seed of the learning tasks' random numbers, and of a model that is given as a function.
        batch_size: samples of a full batch, if known: engine `graph` does not capture shorter ones, so that a training
            resumed before its last batch runs as one that was never interrupted.
        expected_rounds: length of the training, if known: `graph` compiles the learning task of a long one, which
            takes half a minute; below 100, `engine="auto"` is `eager` on a CPU.
        world: the processes of the training, one for each device, from `bow.cluster.join`. All of them create their
            `Replicas`, each with its own number of learners, run the same rounds, and start from the weights of rank 0.
        example: a batch of one learner, if available: learners that do not fit on the device with its activations are
            rejected. Without it, activations are not counted.

    Attributes:
        device: the device of the learners.
        streams: the same device if it works with streams, as GPUs do; None on a CPU.
        world: the processes of the training.
        num_parameters: number of trained parameters.
        group: rows, optimizer and buffers of the learners, and their numbers on all devices.
        loop: the engine's round loop: period, events, and what the engine runs.
        timeline: starts and ends recording a timeline, see `TimelineRecorder`.
        last: losses and metrics of the last round.

    Raises:
        BowError: an invalid argument; the message names the value and the remedy.

    Example:
        >>> replicas = Replicas(nn.Linear(2, 2), nn.functional.cross_entropy, learners=2, engine="eager", device="cpu")
        >>> batch = (torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
        >>> replicas.round([batch, batch]).shape
        torch.Size([2])

    References:
        Budea, TensorBow, 2019, chapter 3.
    """

    @refuses_moved("bow.Replicas")
    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Loss | None = None,
        *,
        step: Step | None = None,
        optimizer: OptimizerFactory = DEFAULT_OPTIMIZER,
        learners: int | Literal["auto"] = "auto",
        sync: Synchroniser = DEFAULT_SYNC,
        engine: EngineName | EngineConfig = "auto",
        device: str | torch.device | StreamDevice = "auto",
        clip_norm: float | None = None,
        on_nan: OnNan = "restart",
        buffers: BufferPolicy = "average",
        seed: int = 0,
        batch_size: int | None = None,
        expected_rounds: int | None = None,
        example: Batch | None = None,
        world: World = ALONE,
    ) -> None:
        super().__init__()
        begin_to_compute("bow.Replicas")
        engine = EngineConfig.of(engine)
        check_sync(sync)
        seed = whole_seed(seed)
        if not isinstance(world, World):
            raise SettingError(f"world must be a result of bow.cluster.join, got {type(world).__name__}; leave it out")
        settings = LearningConfig(
            check_step(loss, step),
            clip_norm=clip_norm,
            on_nan=on_nan,
            seed=seed,
            batch_size=None if batch_size is None else whole("batch_size", batch_size),
            rounds=None if expected_rounds is None else whole("expected_rounds", expected_rounds, least=0),
            engine=engine,
        )
        template = prepare_template(model, seed)
        check_embeddings(template)
        streams = device if isinstance(device, StreamDevice) else None
        self.device = device.torch_device if isinstance(device, StreamDevice) else resolve_device(device)
        if self.device.type == "cuda" and streams is None:
            streams = cuda_device(self.device)
        place = self.device if streams is None else streams
        is_auto = learners == "auto"
        count = choose_learners(place) if is_auto else whole("learners", learners, also='"auto"')
        if world.is_one:
            sync.check(count)
        chosen = engine_for(engine, settings.rounds, place, is_one=count == 1 and world.is_one)
        check_device(chosen, streams is not None)
        if engine.schedule is not None:
            if not isinstance(engine.schedule, Schedule):
                raise SettingError(
                    f"schedule must be a bow.Schedule in bow.Replicas, got {engine.schedule!r}; read a file with "
                    "bow.Schedule.from_json, or use bow.train"
                )
            check_schedule(engine.schedule, engine, on_cpu=streams is None)
        check_offload(settings.engine.offload, chosen, streams=streams is not None)
        memory = MemoryBudget(place, template, optimizer, sync, chosen, example, settings)
        if is_auto:
            count = max(1, memory.most(count))
        spare = memory.check(count)
        self.memory = memory
        self.streams = streams
        self.world = world
        self.group = LearnerGroup(
            template,
            optimizer,
            learners=count,
            device=self.device,
            buffers=buffers,
            spare_bytes=spare,
            world=world,
            memory_format=engine.memory_format,
        )
        self.num_parameters = self.group.layout.num_parameters
        self.loop = loop = make_engine(chosen, self.group, sync, settings, streams)
        self.batches = RoundBatches(self.group, loop, streams, chosen)
        self.timeline = TimelineRecorder(loop.record_spans, lambda: Timeline(loop.take_spans()))
        self.last: Outcome | None = None
        self._modules["central"] = self.group.central

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse `copy` and `pickle`: learners hold threads and compiled code."""
        raise SettingError(
            "Replicas cannot be copied or pickled; use export() for the central model, or training_state() and "
            "load_training_state() for all learners"
        )

    @property
    def learners(self) -> int:
        """Number of learners on this device."""
        return len(self.group)

    @property
    def engine(self) -> str:
        """The engine in use, after any fallback."""
        return self.loop.description

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of all learners; learning-rate schedulers are built on it."""
        return self.group.optimizer.optimizer

    @property
    def rounds(self) -> int:
        """Completed rounds."""
        return self.loop.round_index

    @property
    def W(self) -> Shaped[Tensor, "learners parameters"]:
        """The replica matrix: one row of weights per learner, in the order of the optimizer's groups."""
        return self.group.matrix.weights

    @property
    def G(self) -> Shaped[Tensor, "learners parameters"]:
        """The gradients of the last round, in the layout of `W`, after any clipping and the averaging of `SSGD`.

        Engines whose learning tasks include the step write them only if the optimizer has a hook.
        """
        return self.group.matrix.gradients

    @property
    def z(self) -> Shaped[Tensor, " parameters"]:
        """The central model's weights as a row."""
        return self.group.matrix.z

    @property
    def central(self) -> nn.Module:
        """The central model, in evaluation mode; its parameters are views of `z`."""
        self.loop.catch_up()
        return self.group.central

    def learner(self, index: int) -> nn.Module:
        """Return one learner's module, whose parameters are views of its row."""
        return self.group.learners[whole("learner", index, least=0, most=self.learners - 1)].module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the central model."""
        return self.central(*args, **kwargs)

    def round(self, batches: Any) -> Shaped[Tensor, " learners"]:
        """Run one round: a learning task per learner and, when due, the synchronisation task.

        Args:
            batches: a list with one batch per learner, None for a learner that sits out; or, as a shortcut, one
                batch whose tensors are `[learners, batch, ...]`.

        Returns:
            The learners' losses, before the step; NaN for those that sat out.
        """
        self.group.check_flags()
        with dtypes_explained(self.group.template, batches):
            outcome = self.loop.round(self.batches.prepare(batches))
        remember(self, outcome)
        return outcome.losses

    def rounds_at_once(self, batches: Sequence[Any]) -> list[Outcome]:
        """Run several rounds, up to `loop.period` of them at once.

        Args:
            batches: one entry per round, as for `round`.

        Returns:
            Losses and metrics of each round, in the order of its batches.
        """
        self.group.check_flags()
        outcomes = self.loop.rounds([self.batches.prepare(each) for each in batches])
        if outcomes:
            remember(self, outcomes[-1])
        return outcomes

    def run(self, batches: Iterable[Batch], rounds: int) -> Shaped[Tensor, "rounds learners"]:
        """Run rounds on batches from an iterable; if it ends, some learners may sit out of the last round.

        With `dispatch="first_come"`, the only barriers are the synchronisation tasks, in engines whose learners run
        independently. With `"fixed"`, and in other engines, there is a barrier after every round on a CPU, and after
        every eighth on a GPU.

        Returns:
            The losses of the rounds that ran, in the order of their batches.
        """
        rounds = whole("rounds", rounds, least=0)
        losses: list[Tensor] = []
        batches = iter(batches)  # a loader or a list would restart in every round
        while len(losses) < rounds:
            taken = self.batches.take(batches, min(self.loop.period, rounds - len(losses)))
            if not taken:
                break
            with dtypes_explained(self.group.template, taken):
                losses += [outcome.losses for outcome in self.rounds_at_once(taken)]
        return torch.stack(losses) if losses else self.z.new_empty(0, self.learners)

    def resize(self, learners: int) -> None:
        """Change the number of learners on this device; new ones start from z, and the last ones are removed.

        With several devices, all must call this after the same round, each with its own number.

        Raises:
            SettingError: averaging would be unstable with this number, or there is no row or no memory for it.
        """
        refusal: str | None = None
        try:
            learners = whole("learners", learners)
            self.memory.check_more(self.learners, learners)
        except SettingError as error:
            refusal = str(error)
        if refusals := [each for each in self.world.all_gather(refusal) if each is not None]:
            raise SettingError(refusals[0])
        self.loop.resize(learners)

    def settle(self) -> None:
        """Update the central model from the learners.

        On one device only `Independent` needs it. With several, all must call this after the same round, which also
        combines the buffers of all learners in the central model.
        """
        self.loop.settle()

    def export(self) -> nn.Module:
        """Return a copy of the central model as a plain module, in evaluation mode, on the CPU."""
        sync = self.loop.sync
        if 0 < self.rounds < sync.every and not sync.follows(self.group.num_all):
            warn_user(
                f"{sync!r} has not synchronised in {self.rounds} rounds, so that the central model is untrained; "
                f"use every={self.rounds} or less, or train for longer",
            )
        self.loop.check_last()
        self.loop.catch_up()
        return self.group.export()

    def training_state(self) -> dict[str, Any] | None:
        """Return the complete state of the training, as tensors and plain values on the CPU.

        With several devices, all must call this after the same round. Rank 0 gets the state of all learners, the
        others None.
        """
        return read_state(self.group, self.loop)

    def load_training_state(self, state: Mapping[str, Any] | None, learners: int | None = None) -> None:
        """Restore the state that `training_state` returned.

        With several devices, all must call this after the same round; the state given to rank 0 is used. It may be
        of another number of devices.

        Args:
            state: the result of `training_state`.
            learners: number of learners on this device; None: as many as it had, or an even share if the number of
                devices differs. Learners without a state start from its central model, and surplus states of the
                highest numbers are dropped.

        Raises:
            CheckpointError: the state is of another model, optimizer or synchroniser, in which case nothing has
                changed; or it is damaged.
        """
        learners = None if learners is None else whole("learners", learners)
        load_state(self.group, self.loop, state, learners)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the central model's state, which the plain model can load."""
        state: dict[str, Any] = self.central.state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load the central model; every learner restarts from it, and the synchroniser's state is reset."""
        if assign:
            raise SettingError("assign=True would replace tensors that are trained in place; leave it out")
        self.loop.catch_up()
        result = self.central.load_state_dict(state_dict, strict=strict)
        self.group.restart_all()
        for learner in self.group.learners:
            copy_buffers(self._modules["central"], learner.module)  # type: ignore[arg-type]
        self.loop.sync.start(self.group.matrix)
        return result

    def train(self, mode: bool = True) -> "Replicas":
        """Do nothing: the central model stays in evaluation mode, and learners in training mode."""
        return self

    def close(self) -> None:
        """Stop the threads of the engine, if any; a further round restarts them."""
        self.loop.close()

    def _apply(self, fn: Any, recurse: bool = True) -> NoReturn:
        raise ModelError(
            "Replicas cannot be moved or cast (.to, .cuda, .half, ...): its parameters are rows of the replica matrix; "
            "convert the model before and pass device= to Replicas"
        )


def remember(learners: Any, outcome: Outcome) -> None:
    """Set `last`, also before the callbacks of each round of a group."""
    vars(learners)["last"] = outcome  # nn.Module.__setattr__ takes longer than the rest of a round here


@dataclass(frozen=True)
class ReplicasConfig:
    """Arguments of `Replicas`, common to trials and training."""

    model: nn.Module  # the template
    task: LearningConfig
    optimizer: OptimizerFactory
    sync: Synchroniser
    device: torch.device | StreamDevice
    buffers: BufferPolicy
    example: Batch | None  # a batch of one learner, to predict memory from
    moving_average: bool = False  # whether one of the central model is kept as well
    is_watched: bool = False  # whether rounds run one by one
    is_several: bool = False  # whether there are other devices: trials then use the training's code paths

    @functools.cached_property
    def on_cpu(self) -> bool:
        return is_cpu(self.device)

    def with_engine(self, **changes: object) -> "ReplicasConfig":
        engine = dataclasses.replace(self.task.engine, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(self, task=dataclasses.replace(self.task, engine=engine))

    def build(
        self,
        engine: str,
        learners: int,
        *,
        compile: bool = False,
        memory_format: MemoryFormat = None,
        expected_rounds: int | None = None,
        world: World | None = None,
    ) -> Replicas:
        if self.moving_average:
            self._budget(engine).check(learners)  # `Replicas` does not account for the average
        settings = {
            **{name: getattr(self.task, name) for name in ("step", "clip_norm", "on_nan", "seed", "batch_size")},
            **{name: getattr(self, name) for name in ("optimizer", "sync", "device", "buffers", "example")},
        }
        made = Replicas(
            self.model,
            **settings,
            learners=learners,
            engine=self.task.engine.run_by(engine, compile, memory_format),
            expected_rounds=expected_rounds,
            world=world or (TrialWorld() if self.is_several else ALONE),
        )
        made.memory = dataclasses.replace(made.memory, moving_average=self.moving_average)
        return made

    def most_learners(self, engine: str, wanted: int) -> int:
        """Return the most learners, up to `wanted`, that fit in memory and with which the synchroniser is stable."""
        for count in range(self._budget(engine).most(wanted), 0, -1):
            with contextlib.suppress(SettingError):
                self.sync.check(count)
                return count
        return 0

    def _budget(self, engine: str) -> MemoryBudget:
        parts = self.device, self.model, self.optimizer, self.sync, engine, self.example, self.task
        return MemoryBudget(*parts, self.moving_average)
