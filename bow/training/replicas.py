"""The module wrapper for those who keep a training loop of their own."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.cluster import ALONE, World
from bow.data import BatchStream
from bow.devices import StreamDevice, cuda_device
from bow.engines import (
    Batch,
    EngineName,
    LearningConfig,
    Loss,
    OnNan,
    Outcome,
    RoundEvent,
    Stacked,
    Step,
    check_device,
    choose_learners,
    make_engine,
)
from bow.engines.config import Engine as EngineConfig
from bow.engines.eager import batch_of
from bow.engines.memory import bytes_text
from bow.engines.memory_budget import MemoryBudget
from bow.engines.offload import check_swap
from bow.engines.task_scheduler import Dispatch
from bow.errors import CheckpointError, ModelError, SettingError
from bow.forking import begin_to_compute
from bow.graph.learning_step import LearningStep
from bow.graph.outside import OutsideTensors
from bow.replicas import BufferPolicy, LearnerGroup, OptimizerFactory, copy_buffers, prepare_template
from bow.schedule import Timeline
from bow.sync import SMA, Synchroniser, Timing
from bow.training.checkpoint import refusing_damage
from bow.training.given import (
    check_has_values,
    check_learners,
    check_schedule,
    check_stacked,
    check_step,
    check_sync,
    engine_for,
    resolve_device,
)
from bow.training.moved import refuses_moved
from bow.values import whole, whole_seed

DEFAULT_OPTIMIZER: OptimizerFactory = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)

DEFAULT_SYNC = SMA()

STATE_VERSION = 2

DATA_SHARE = 4
"""Samples stay on a device if they take at most this part of the memory that learners leave."""

MAX_BYTES_TOGETHER = 2**28
"""Bytes of batches after which no more rounds are dealt to be run as one."""


class Replicas(nn.Module):
    """Several learners of one model, trained side by side and kept together by a synchroniser.

    Its one submodule is the central model: `parameters()` and `state_dict()` are the central model's, and calling
    it runs the central model. The learners are rows of the replica matrix and not submodules.

    Args:
        model: the model, or a function of no arguments that builds it. It is read, not changed.
        loss: `loss(outputs, targets) -> scalar`, for batches `(inputs, targets)`.
        step: instead of `loss`: `step(model, batch) -> loss`, or `(loss, {name: scalar})`, for any pytree batch.
        optimizer: makes a `torch.optim` optimizer from an iterable of parameters.
        learners: how many learners this device trains, or `"auto"` (4 on a CPU, 8 on a GPU).
        sync: what keeps the learners together.
        engine: what runs them, a name or a `bow.Engine`; `"auto"` is a rule that `bow.engines.choice` documents.
        device: `"auto"` (a GPU where there is one), `"cpu"`, `"cuda"` or `"cuda:N"`.
        precision: `"bfloat16"` for autocast; None is the model's own dtype.
        clip_norm: the largest gradient norm of a learner; `SSGD` clips after averaging.
        on_nan: a learner whose loss, gradient or weights are not finite starts again from z, and where all learners do
            so round after round, the training ends (`"restart"`) or goes on (`"continue"`); or it ends the training at
            once (`"error"`).
        buffers: what the central model's batch-norm statistics are: the learners' `"average"`, those of the
            `"first"` learner, or measured anew (`"recalibrate"`, by `bow.train`).
        seed: from which the random numbers of the learning tasks derive.
        expected_rounds: how long the training will be, if that is known: `graph` compiles the learning task of a long
            one, which takes half a minute.
        world: the processes of the training, one for each device, from `bow.cluster.join`. All of them make their
            `Replicas`, each with as many learners as its device is to have, run the same rounds, and start from the
            weights of rank 0.
        example: a batch of one learner, if one is at hand: learners that do not fit on the device with its activations
            are refused. Without it, those are that do not fit alone.

    Raises:
        BowError: an argument that cannot be carried out; the message names the value and the remedy.

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
        precision: str | None = None,
        clip_norm: float | None = None,
        on_nan: OnNan = "restart",
        buffers: BufferPolicy = "average",
        seed: int = 0,
        expected_rounds: int | None = None,
        example: Batch | None = None,
        world: World = ALONE,
    ) -> None:
        super().__init__()
        begin_to_compute("bow.Replicas")
        engine = EngineConfig.of(engine)
        check_sync(sync)
        seed = whole_seed(seed)
        expected_rounds = None if expected_rounds is None else whole("expected_rounds", expected_rounds, least=0)
        if not isinstance(world, World):
            raise SettingError(f"world must be what bow.cluster.join gives, got {type(world).__name__}; leave it out")
        settings = LearningConfig(
            check_step(loss, step),
            precision=precision,
            clip_norm=clip_norm,
            on_nan=on_nan,
            seed=seed,
            rounds=expected_rounds,
            engine=check_schedule(engine),
        )
        template = prepare_template(model, seed)
        streams = device if isinstance(device, StreamDevice) else None
        self.device = device.torch_device if isinstance(device, StreamDevice) else resolve_device(device)
        if self.device.type == "cuda" and streams is None:
            streams = cuda_device(self.device)
        is_auto = learners == "auto"
        count = choose_learners(streams or self.device, None, None) if is_auto else check_learners(learners)
        if world.is_one:
            sync.check(count)
        place = self.device if streams is None else streams
        chosen = engine_for(engine, template, expected_rounds, place)
        check_device(chosen, streams is not None)
        check_swap(settings.memory, chosen, streams=streams is not None)
        self._memory_budget = MemoryBudget(
            place, template, optimizer, sync, chosen, example, precision, clip_norm, settings.memory
        )
        if is_auto:
            count = max(1, self._memory_budget.most(count))
        spare = self._memory_budget.check(count)
        group = LearnerGroup(
            template, optimizer, learners=count, device=self.device, buffers=buffers, spare_bytes=spare, world=world
        )
        self._group = group
        self._streams = streams
        self._engine = make_engine(chosen, group, sync, settings, streams)
        self._modules["central"] = group.central
        # Others look at the autograd graph of their first task.
        self._is_checked = chosen != "fused" and not engine.compile
        self.last: Outcome | None = None
        """Losses and metrics of the last round."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Learners hold threads and compiled code: neither `copy` nor `pickle` can have them."""
        raise SettingError(
            "Replicas cannot be copied or pickled; use export() for the central model, or training_state() and "
            "load_training_state() for all learners"
        )

    @property
    def learners(self) -> int:
        """Number of learners on this device."""
        return len(self._group)

    @property
    def learners_in_all(self) -> int:
        """Number of learners on all devices."""
        return self._group.num_all

    @property
    def by_device(self) -> Sequence[int]:
        """Number of learners of each device."""
        return self._group.by_device

    @property
    def own(self) -> range:
        """The numbers of this device's learners among those of all devices."""
        return range(self._group.first, self._group.first + len(self._group))

    @property
    def world(self) -> World:
        """The processes of the training."""
        return self._group.world

    @property
    def engine(self) -> str:
        """The engine that runs, after any fallback."""
        return self._engine.description

    @property
    def has_streams(self) -> bool:
        """Whether learners are on a device that works through streams, as GPUs do."""
        return self._streams is not None

    @property
    def sync(self) -> Synchroniser:
        """What keeps the learners together."""
        return self._engine.sync

    @property
    def step(self) -> Step:
        """What a learning task does with a batch."""
        return self._engine.settings.step

    @property
    def precision(self) -> str | None:
        """`"bfloat16"` for autocast, or None."""
        return self._engine.settings.precision

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of all learners; learning-rate schedulers are built on it."""
        return self._group.optimizer.optimizer

    @property
    def num_parameters(self) -> int:
        """Parameters that are trained."""
        return self._group.layout.num_parameters

    @property
    def num_restarts(self) -> int:
        """How often a learner diverged and started again from z."""
        self._engine.catch_up()
        return self._engine.num_restarts

    @property
    def is_hopeless(self) -> bool:
        """Whether all learners of this device have diverged round after round."""
        return self._engine.is_hopeless

    @property
    def rounds(self) -> int:
        """Completed rounds."""
        return self._engine.round_index

    @property
    def period(self) -> int:
        """How many of the next rounds `rounds_at_once` can run without a barrier.

        More than one with `"first_come"`, and on GPUs.
        """
        return self._engine.period

    @property
    def dispatch(self) -> Dispatch:
        """How batches are dealt."""
        return self._engine.settings.engine.dispatch

    @property
    def W(self) -> Shaped[Tensor, "learners parameters"]:
        """The replica matrix: one row of weights per learner, in the order of the optimizer's groups."""
        return self._group.matrix.weights

    @property
    def G(self) -> Shaped[Tensor, "learners parameters"]:
        """The gradients of the last round, in the layout of `W`; clipped where they were, averaged with `SSGD`."""
        return self._group.matrix.gradients

    @property
    def z(self) -> Shaped[Tensor, " parameters"]:
        """The central model's weights as a row."""
        return self._group.matrix.z

    @property
    def central(self) -> nn.Module:
        """The central model, in evaluation mode; its parameters are views of `z`."""
        self._engine.catch_up()
        return self._group.central

    def learner(self, index: int) -> nn.Module:
        """One learner's module; its parameters are views of its row."""
        return self._group.learners[index].module

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
        outcome = self._engine.round(self._prepare(batches))
        self.remember(outcome)
        return outcome.losses

    def rounds_at_once(self, batches: Sequence[Any]) -> list[Outcome]:
        """Run several rounds, of `period` or fewer without a barrier between them.

        Args:
            batches: by round, as for `round`.

        Returns:
            Losses and metrics of each, by batch.
        """
        outcomes = self._engine.rounds([self._prepare(each) for each in batches])
        if outcomes:
            self.remember(outcomes[-1])
        return outcomes

    def remember(self, outcome: Outcome) -> None:
        """Make this what `last` is; callbacks are told of rounds that ran as one after another."""
        object.__setattr__(self, "last", outcome)  # nn.Module's way takes longer than all else in a round out here

    def run(self, batches: Iterator[Batch], rounds: int) -> Shaped[Tensor, "rounds learners"]:
        """Run rounds on batches from an iterator; the learners of the last round may sit out when it ends.

        With `dispatch="first_come"` there is no barrier but the synchronisation tasks, in engines whose learners do not
        keep step. With `"fixed"`, and in other engines, there is one after every round on a CPU, and after every eighth
        on a GPU.

        Returns:
            The losses of the rounds that were run, by batch.
        """
        rounds = whole("rounds", rounds, least=0)
        losses: list[Tensor] = []
        batches = iter(batches)  # a loader or a list would begin anew in every round
        while len(losses) < rounds:
            dealt = self._dealt_together(batches, min(self.period, rounds - len(losses)))
            if not dealt:
                break
            losses += [outcome.losses for outcome in self.rounds_at_once(dealt)]
        return torch.stack(losses) if losses else self.z.new_empty(0, self.learners)

    def reside(self, stream: BatchStream) -> bool:
        """Keep a stream's samples on the device, if they are tensors and take at most a quarter of what is free there.

        Learning tasks then begin by gathering their batches, and nothing is brought from the host.

        Returns:
            Whether they are there now; always false where learners compute on the host, and for engine `eager`.
        """
        if self._streams is None or not self._engine.brings_batches:
            return False
        return stream.reside(self.device, self._streams.free_bytes() // DATA_SHARE)

    def memory_report(self) -> str | None:
        """What the training holds on a device of its own, beside what was predicted; None on a CPU.

        Example:
            >>> replicas = Replicas(nn.Linear(2, 2), nn.functional.cross_entropy, engine="eager", device="cpu")
            >>> replicas.memory_report() is None
            True
        """
        if self._streams is None:
            return None
        held, need = self._streams.used_bytes(), self._memory_budget.need(self.learners)
        return (
            f"{self.learners} learners: {bytes_text(held)} in use on {self.device}, "
            f"{bytes_text(need.total_bytes)} predicted for learners and central model"
        )

    def start_timeline(self) -> None:
        """Record from now on what runs when: with engine `graph` every operator, otherwise tasks or rounds."""
        self._engine.record_spans()

    def take_timeline(self) -> Timeline:
        """What has run since `start_timeline`; nothing is recorded any more.

        Example:
            >>> replicas = Replicas(nn.Linear(2, 2), nn.functional.cross_entropy, engine="eager", device="cpu")
            >>> replicas.start_timeline()
            >>> losses = replicas.round((torch.ones(4, 3, 2), torch.zeros(4, 3, dtype=torch.int64)))
            >>> [span.name for span in replicas.take_timeline().spans]
            ['learning tasks', 'step and averaging']
        """
        return Timeline(self._engine.take_spans())

    def close(self) -> None:
        """End the threads of the engine, if it has some; a further round starts them again."""
        self._engine.close()

    def add_learner(self) -> None:
        """Add a learner that starts from z; where there are several devices, all add one behind the same round.

        Raises:
            SettingError: averaging would be unstable with it, no row is left, or there is no memory for it.
        """
        refusal: str | None = None
        try:
            self._memory_budget.check_one_more(self.learners)
        except SettingError as error:
            refusal = str(error)
        refusals = [each for each in self.world.all_gather(refusal) if each is not None]
        if refusals:
            raise SettingError(refusals[0])
        self._engine.resize(self.learners + 1)

    def remove_learner(self) -> None:
        """Remove the last learner; where there are several devices, that of each.

        Raises:
            SettingError: it is the only one.
        """
        self._engine.resize(self.learners - 1)

    def resize(self, learners: int) -> None:
        """Have so many learners on this device; new ones start from z, and the last ones go.

        Where there are several devices, all do this behind the same round, each with a number of its own.

        Raises:
            SettingError: averaging would be unstable with so many, or there is no room for them here.
        """
        self._engine.resize(whole("learners", learners))

    def catch_up(self) -> None:
        """Wait until all rounds that were handed over have ended: on a GPU some are still under way."""
        self._engine.catch_up()

    @property
    def compile_s(self) -> float | None:
        """Behind a round of engine `graph` on a CPU: seconds that compiling its learning task may take.

        0 where it was compiled on this machine before; None where there is no such choice.
        """
        return self._engine.compile_s

    def settle(self) -> None:
        """Make the central model what the training has reached.

        On one device only `Independent` needs it. On several, all do this behind the same round, and the central model
        gets buffers that all their learners have a part in.
        """
        self._engine.settle()

    def take_events(self) -> list[RoundEvent]:
        """What happened since the last call and a user should hear of: restarts, fallbacks."""
        return self._engine.take_events()

    def export(self) -> nn.Module:
        """The central model as a plain module of its own, in evaluation mode, on the CPU."""
        if 0 < self.rounds < self.sync.every:
            warnings.warn(
                f"{self.sync!r} has not synchronised in {self.rounds} rounds, so that the central model is untrained; "
                f"use every={self.rounds} or less, or train for longer",
                stacklevel=2,
            )
        self._engine.catch_up()
        return self._group.export()

    def training_state(self) -> dict[str, Any] | None:
        """Everything that is needed to go on exactly, as tensors and plain values on the CPU.

        Where there are several devices, all ask for it behind the same round. Rank 0 then has it, with the learners of
        all, and the others None.
        """
        engine = self._engine
        engine.catch_up()
        restarts = int(self.world.sum_numbers([engine.num_restarts])[0])
        group = self._group.state(self.sync.own_state)
        if group is None:
            return None
        return {
            **self._identity(),
            "round": engine.round_index,
            "restarts": restarts,
            "drop": vars(engine.context.restarts.drop).copy(),
            "group": group,
        }

    @refusing_damage()
    def load_training_state(self, state: Mapping[str, Any] | None, learners: int | None = None) -> None:
        """Continue from `training_state()`.

        Where there are several devices, all do this behind the same round, and what rank 0 is given counts. The state
        may be of another number of devices.

        Args:
            state: what `training_state` gave.
            learners: how many this device is to have; None: as many as it had, or its part of them where the number of
                devices is another. Those that the state does not have start from its central model, and those with the
                highest numbers are left out where it has more.

        Raises:
            CheckpointError: the state is of another model, optimizer or synchroniser, and nothing has changed by then;
                or it is damaged.
        """
        world = self.world
        problem = None if state is None else self._mismatch(state)
        told = world.broadcast({} if state is None or problem else _outline(state))
        if problem or not told:
            raise CheckpointError(problem or "the state that rank 0 was given does not fit; its message says why")
        self._engine.catch_up()
        self._engine.resize(part_of(told["by_device"], world) if learners is None else learners)
        alike = self.sync.timing is Timing.BEFORE_STEP
        if not self._group.load_state(None if state is None else state["group"], alike):
            self.sync.start_own(self._group.matrix)
        self._engine.resume(told["round"], told["restarts"] if world.leads else 0, told["drop"])

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The central model's state, which loads into the plain model."""
        state: dict[str, Any] = self.central.state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load the central model; every learner starts from it and averaging starts at rest."""
        self._engine.catch_up()
        result = self.central.load_state_dict(state_dict, strict=strict)
        self._group.restart_all()
        for learner in self._group.learners:
            copy_buffers(self._modules["central"], learner.module)  # type: ignore[arg-type]
        self.sync.start(self._group.matrix)
        return result

    def train(self, mode: bool = True) -> "Replicas":
        """Do nothing: the central model stays in evaluation mode, and learners know when they learn."""
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> NoReturn:
        raise ModelError(
            "Replicas cannot be moved or cast (.to, .cuda, .half, ...): its parameters are rows of the replica matrix; "
            "convert the model before and pass device= to Replicas"
        )

    def _identity(self) -> dict[str, Any]:
        """What must be the same where a state is loaded; `alpha`, the learning rate and the like may differ."""
        groups = self._group.layout.group_slots
        return {
            "version": STATE_VERSION,
            "parameters": self.num_parameters,
            "model": [[f"{slot.names[0]} {list(slot.shape)}" for slot in slots] for slots in groups],
            "optimizer": type(self.optimizer).__name__,
            "sync": self.sync.kind,
        }

    def _mismatch(self, state: Mapping[str, Any]) -> str | None:
        """Why a state cannot be loaded here, in a sentence; None where it can."""
        if "strategy" in state:
            return "the checkpoint is of a training by a partition of bow.plan; resume with that partition"
        for part, own in self._identity().items():
            if state.get(part) != own:
                return (
                    f"the state was made with {part} {state.get(part)!r}, this training has {own!r}; "
                    f"resume with the same {part}"
                )
        return None

    def _dealt_together(self, batches: Iterator[Batch], limit: int) -> list[list[Batch | None]]:
        """The batches of so many rounds, or of fewer where they have run out or are large."""
        dealt: list[list[Batch | None]] = []
        room = MAX_BYTES_TOGETHER
        while len(dealt) < limit and room > 0 and (batch := self._dealt(batches)):
            dealt.append(batch)
            room -= num_bytes(batch) if limit > 1 else 0
        return dealt

    def _dealt(self, batches: Iterator[Batch]) -> list[Batch | None]:
        """The next batches, one per learner, None where they have run out; empty where there is none left."""
        dealt: list[Batch | None] = list(itertools.islice(batches, self.learners))
        return dealt + [None] * (self.learners - len(dealt)) if dealt else []

    def _check_outside(self, batches: Stacked | Sequence[Batch | None]) -> None:
        """Refuse a step that depends on what nobody trains, before the first round of compiled or vectorised code."""
        batch = batch_of(batches, 0)
        if batch is None:
            return
        module = self.learner(0)
        if OutsideTensors(self.step, module).may_matter:
            tensors = tree_map_only(Tensor, lambda t: t.to(self.device, copy=True), batch)
            with torch.random.fork_rng(devices=[]):
                LearningStep(module, self.step).run(
                    dict(module.named_parameters()), dict(module.named_buffers()), tensors
                )
        self._is_checked = True

    def _prepare(self, batches: Any) -> Stacked | Sequence[Batch | None]:
        prepared = self._on_device(batches)
        if self.last is None:
            check_has_values(prepared.value if isinstance(prepared, Stacked) else prepared, "a round")
        if not self._is_checked:
            self._check_outside(prepared)
        return prepared

    def _on_device(self, batches: Any) -> Stacked | Sequence[Batch | None]:
        if isinstance(batches, list):
            if len(batches) != self.learners:
                raise SettingError(
                    f"a round of {self.learners} learners needs {self.learners} batches, got {len(batches)}; "
                    "pass None for a learner that sits out"
                )
            return [None if batch is None else self._to_device(batch) for batch in batches]
        if isinstance(batches, Stacked):
            return Stacked(self._to_device(batches.value))
        check_stacked(batches, self.learners)
        return Stacked(self._to_device(batches))

    def _to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cpu" or self._engine.brings_batches:
            return batch
        return tree_map_only(Tensor, lambda t: t.to(self.device, non_blocking=True), batch)


def _outline(state: Mapping[str, Any]) -> dict[str, Any]:
    """What all devices must know of a state."""
    return {
        "round": state["round"],
        "restarts": state["restarts"],
        "drop": state["drop"],
        "by_device": state["group"]["by_device"],
    }


def part_of(by_device: Sequence[int], world: World) -> int:
    """How many learners of a state a device goes on with: its own, or with other devices than before an even part."""
    if len(by_device) == world.size:
        return by_device[world.rank]
    each, more = divmod(sum(by_device), world.size)
    return max(1, each + (world.rank < more))


def num_bytes(batches: Any) -> int:
    """Bytes of the tensors of any pytree."""
    return sum(leaf.nbytes for leaf in tree_leaves(batches) if isinstance(leaf, Tensor))
