"""`bow.train`: from a model and data to a trained central model and a run directory."""

import contextlib
import dataclasses
import functools
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from bow.cluster import WorkerJob, World, is_leader, is_member, job_name, join, start, was_restarted
from bow.cluster.config import Devices
from bow.data import BatchStream
from bow.data.opening import allows_one_pass
from bow.devices import StreamDevice
from bow.engines import EngineName, Loss, OnNan, Step, choose_learners
from bow.engines.config import Engine
from bow.errors import DataError, RunDirectoryError, SettingError, warn_user
from bow.files import save_text
from bow.forking import begin_to_compute
from bow.interruption import end_as_asked
from bow.observe import ProgressBar, RunDirectory, RunLock
from bow.observe.run_directory import readable
from bow.replicas import OptimizerFactory, prepare_template
from bow.sync import Synchroniser
from bow.training.batches import DataSource, check_last_batch, check_round
from bow.training.callbacks import Hooks
from bow.training.checkpoint import (
    candidate_checkpoints,
    delete_checkpoints_after,
    learners_to_resume,
    open_checkpoint,
    optimizer_settings,
    restore,
    run_of,
    trajectory,
)
from bow.training.checks import (
    all_labels,
    check_first_batch,
    check_sampler,
    choose_devices,
    make_scheduler,
    refuses_moved,
    warn_of_first_come,
)
from bow.training.config import PerRound, Run, SchedulerFactory, TrainConfig
from bow.training.context import Learners, Position, RunContext
from bow.training.epoch import MOST_LOST
from bow.training.evaluation import Evaluator
from bow.training.replicas import DEFAULT_OPTIMIZER, DEFAULT_SYNC, ReplicasConfig
from bow.training.result import Result
from bow.training.run import TrainingLoop
from bow.training.trials import Request, Trials
from bow.training.tuning import (
    Tuned,
    balanced,
    build,
    check_tuner,
    make_request,
    most_while_training,
    part_of_training,
    tune,
    tuned_before,
    without_spinning,
)
from bow.tuner import Tuner

if TYPE_CHECKING:
    from bow.training.placed import Placed
    from bow.training.stopping import StopRule


ENDING_S = 60.0  # seconds that a training restarted by torchrun waits for the previous processes to exit
REMEDY = 'continue with resume="auto"'  # remedy where another process of a training has exited
RESTORED = ("optimizer", "scheduler")  # sections of config.yaml that a resumed training keeps
JOB = ".torchrun"  # file of a run directory with the name of torchrun's job, if any
# Called instead of `run_training`, in order to run several trainings side by side.
TRAIN_OVERRIDE: ContextVar[Callable[[TrainConfig], Result] | None] = ContextVar("TRAIN_OVERRIDE", default=None)


@refuses_moved("bow.train")
def train(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    loss: Loss | None = None,
    *,
    step: Step | None = None,
    optimizer: OptimizerFactory = DEFAULT_OPTIMIZER,
    scheduler: SchedulerFactory | PerRound | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    steps: int | None = None,
    stop: "StopRule | Sequence[StopRule] | None" = None,
    learners: int | Literal["auto"] | Tuner = "auto",
    sync: Synchroniser = DEFAULT_SYNC,
    engine: EngineName | Engine = "auto",
    devices: int | Literal["auto", "cpu", "cuda"] | StreamDevice | Devices = "auto",
    clip_norm: float | None = None,
    on_nan: OnNan = "restart",
    validation: Any = None,
    run: str | Path | Run | None = None,
    callbacks: Sequence[object] = (),
    seed: int = 0,
) -> Result:
    """Train several learners of a model in parallel and return their central model.

    Choose the batch size that trains best; the number of learners is chosen to fill the hardware.

    Args:
        model: the model, or a function of no arguments that builds it. It is read, not changed.
        data: tensors or NumPy arrays `[samples, ...]` in a pair `(inputs, targets)` or any pytree, a `Dataset`, a
            `DataLoader` (keeps its own batch size and workers), or an `IterableDataset` or another library's loader of
            batches (both need `steps`).
        loss: `loss(outputs, targets) -> scalar`, a mean over samples: the central model's loss on the validation data
            is the mean over its batches, weighted by their samples.
        step: instead of `loss`: `step(model, batch) -> loss`, or `(loss, {name: scalar})`, whose means are in the
            records of epochs as `train_...`; batch is any pytree. With neither, batches are dictionaries and the loss
            is the model's own, `model(**batch).loss`, as in Hugging Face's models.
        optimizer: function that makes a `torch.optim` optimizer from an iterable of parameters; if its first parameter
            is called `named...`, it receives pairs `(name, parameter)`, as in `lambda named: ...`, for groups by name.
        scheduler: function that makes a `torch.optim.lr_scheduler` from the optimizer, stepped after every epoch, or
            after every round in a `bow.PerRound(...)`, such as `bow.WarmupCosine()`. A parameter `rounds` receives
            their number.
        batch_size: samples per learner and round; None: 16, or the `DataLoader`'s own.
        epochs: passes over the data by all learners together.
        steps: rounds; when given, `epochs` is ignored.
        stop: `bow.EarlyStopping`, an object with a method `why_over(training)` that is called after every epoch
            (`bow.members.StopRule`), or a list of them; `result.best` is the best model.
        learners: per device; `"auto"` is chosen by timed trials before the training and adjusted during it, as a
            `bow.Tuner` specifies. With `bow.PerRound`, the number stays as the trials have chosen it.
        sync: the synchroniser.
        engine: how learning tasks run on a device, a name or a `bow.Engine`; `"auto"` is chosen by the same trials.
            They run model, loss or step, and optimizer on samples of the data, without an effect on the training
            unless `loss` or `step` keep state; trainings too short for trials follow the rule in
            `bow.engines.choice`. With `dispatch="first_come"`, learning rates change and callbacks of rounds run after
            each period between two synchronisation tasks; a training that a callback stops ends there. With
            a schedule, given or found by `"auto"`, `learners="auto"` is one learner.
        devices: a number, a name (`"cpu"`, `"cuda"`, `"auto"`) or a `bow.Devices`. Each device has its own process,
            which this one starts; processes started by torchrun train together, each on its own device. All of them
            call the callbacks; rank 0, which is this one, shows progress, logs and writes.
        clip_norm: the largest gradient norm of a learner.
        on_nan: a learner that diverges restarts from the central model, and the training ends if more than half of the
            steps of an epoch were discarded (`"restart"`) or continues (`"continue"`); `"error"` ends it at once.
        validation: like `data`, or a `bow.Validation`; the central model is evaluated on it after every epoch.
        run: the run directory, or a `bow.Run` with settings of checkpoints, resuming and logging.
        callbacks: objects with some of the hooks of `bow.Callback`.
        seed: of shuffling, of all random numbers in learning tasks and evaluations, and of a model that is given as a
            function; a whole number of at most 64 bits.

    Raises:
        BowError: an invalid argument; the message names the value and the remedy, and nothing has been written.

    Example:
        >>> import torch
        >>> inputs, targets = torch.randn(256, 8), torch.randint(0, 2, (256,))
        >>> result = train(
        ...     nn.Linear(8, 2), (inputs, targets), nn.functional.cross_entropy, learners=2,
        ...     run=Run(getfixture("tmp_path") / "run", progress=False),
        ... )
        >>> result.learners
        2

    References:
        Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019.
    """
    return run_training(TrainConfig(**locals()))  # the arguments


def run_training(config: TrainConfig) -> Result:
    if (instead := TRAIN_OVERRIDE.get()) is not None:
        return instead(config)
    begin_to_compute("bow.train")
    prepared = prepare(config, functools.partial(_worker_job, config))
    resume = config.run.resume
    restarted = config.run.path is not None and (was_restarted() or _is_of_job(Path(config.run.path)))
    resume = "auto" if restarted and resume is None else resume
    with contextlib.ExitStack() as at_the_end:
        lock = at_the_end.enter_context(RunLock())
        path, resumes_in_place, state, resumed = None, False, None, None
        if is_leader():
            with readable(Path(config.run.path or resume or ".")):
                checkpoints = candidate_checkpoints(resume, config.run.path)
                path, resumes_in_place = _directory(config.run.path, resume, checkpoints)
                if path is not None:
                    RunDirectory(path).check(resumes_in_place)
                if path is not None and path.exists():
                    lock.take(path, ENDING_S if restarted else 0.0)
                state = open_checkpoint(resume, config.run.path)
                resumed = run_of(checkpoints[-1]) if checkpoints else None
        world = at_the_end.enter_context(_world(prepared))
        threads = torch.get_num_threads()
        at_the_end.callback(torch.set_num_threads, threads)
        shown = ProgressBar(enabled=config.run.progress and world.leads)
        # Rank 0 distributes the learners and losses of a checkpoint; everyone gets its plain values.
        plain = dict(state or {})
        learned, step_values = plain.pop("replicas", None), plain.pop("step_values", None)
        state = world.broadcast(plain or None)
        made = _make_learners(prepared, state, world, shown)
        replicas = made.learners
        at_the_end.callback(replicas.close)
        warn_of_first_come(config.engine.dispatch, config.sync, made.tuned.learners)
        stream = prepared.opened.stream
        rounds = config.steps or stream.rounds_left(replicas.group.num_all)
        scheduler = make_scheduler(config.scheduler_factory, replicas.optimizer, rounds)
        started_with = optimizer_settings(replicas.optimizer)
        given_trajectory = trajectory(config, prepared.opened, rounds)
        if state is not None:
            restore(state, learned, replicas, stream, scheduler, given_trajectory)
            started_with = state["started_with"]
        unit, steps = scheduler_steps(config, stream, replicas.group.num_all, state or {})
        check_scheduler_lasts(scheduler, steps, unit)
        name = type(prepared.request.replicas.model).__name__.lower()
        directory, fresh = _create_directory(path, name, resumes_in_place, state is not None, config, world, lock)
        if made.save is not None and world.leads:
            made.save(directory.path)
        is_manual = config.run.checkpoint_every != "auto"
        context = RunContext(
            config=config,
            replicas=replicas,
            stream=stream,
            position=Position(stream.samples_per_epoch),
            keeps_checkpoints=is_manual or (resumes_in_place and state is not None and not state["automatic"]),
            evaluate=prepared.evaluator,
            directory=directory,
            tuned=made.tuned,
            most_learners=made.most_learners,
            tuner=made.tuner,
            fresh=fresh,
            threads=threads,
            started_with=started_with,
            trajectory=given_trajectory,
            trials=lambda: Trials(prepared.request.replicas, prepared.opened.feed()),
            resumed=resumed,
        )
        loop = TrainingLoop(context, scheduler, shown, Hooks(config.callbacks))
        if state is not None:
            loop.load_state(state, step_values)
            if world.leads:
                delete_checkpoints_after(directory.checkpoints, loop.round)
        loop.go()
        result = loop.finish()
    number = loop.received_signal
    if number is None:
        return result
    if config.run.on_interrupt == "raise":
        end_as_asked(number, loop.resume_hint if world.leads and loop.interrupted_by is not None else None)
    return dataclasses.replace(result, interrupted_by=signal.Signals(number))


@dataclass(frozen=True)
class Prepared:
    """A validated training, ready to begin."""

    config: TrainConfig
    place: torch.device
    count: int | None  # number of devices; None: one per process
    job: WorkerJob | None  # to run in other processes; None: this one starts none
    opened: DataSource
    evaluator: Evaluator | None
    request: Request
    placed: "Placed | None"


def prepare(config: TrainConfig, pack: Callable[[int | None], WorkerJob | None]) -> Prepared:
    step, learners = config.step_or_loss, config.num_learners
    device, count = choose_devices(config.devices.count)
    engine, schedule, partition = config.engine.runner, None, config.partition
    if config.engine.schedule is not None:
        from bow.training.schedule import decide, engine_with, read_schedule  # few trainings need it

        schedule = read_schedule(config.engine.schedule)
        engine = engine_with(schedule, config.engine, device)
    if partition is not None:
        from bow.training.placed import check_settings, devices_of, placed_step

        check_settings(partition, config)
        learners = partition.learners
        assert isinstance(device, torch.device)  # check_settings refuses stream devices
        count = devices_of(partition, config.devices.count, count, device)
    check_sampler(config.data, "data", count)
    check_sampler(config.validation.data, "the validation data", count)
    template = prepare_template(config.model, config.seed)
    job = pack(count)  # before anything is read from the data
    is_one = learners == 1 and (count or 1) == 1 and not is_member()  # evaluated between two passes
    if config.validation.buffers == "recalibrate" and not is_one and allows_one_pass(config.data):
        raise DataError(
            'the loader given as data allows one pass at a time, and validation.buffers="recalibrate" needs one beside '
            "the training's; use one learner on one device, another policy, or a DataLoader"
        )
    opened = DataSource(config.data, **config.stream_settings)
    stream = opened.stream
    if config.validation.every < 1 and stream.samples_per_epoch is None:
        raise SettingError(
            f"validation.every={config.validation.every} needs data whose length is known; give a Dataset or tensors, "
            "or leave it out"
        )
    rule = learners
    if rule == "auto":
        rule = choose_learners(device, stream.samples_per_epoch, stream.batch_size)
    check_round(stream, rule)
    most_bad = 1.0 if config.on_nan == "continue" else MOST_LOST
    check_first_batch(template, opened.example, config.loss, step, all_labels(config.data), most_bad=most_bad)
    if partition is None:  # which skips a batch of another size
        check_last_batch(stream, config.engine.accumulate, template, config.loss, step)
    validation, evaluator = config.validation, None
    if validation.data is not None:
        evaluator = Evaluator(validation.data, config.loss, validation.metrics, validation.batch_size)
        batch, labels = evaluator.first_batch(), all_labels(validation.data)
        check_first_batch(template, batch, config.loss, step, labels, data="validation", most_bad=MOST_LOST)
    replicas_config = ReplicasConfig(
        model=template,
        task=dataclasses.replace(config.task, batch_size=opened.usual_batch),
        optimizer=config.optimizer,
        sync=config.sync,
        device=device,
        buffers=validation.buffers,
        example=None if config.step is not None else opened.example,
        moving_average=validation.ema is not None,
        is_watched=config.is_watched,
    )
    placed = None
    if partition is not None:
        placed = placed_step(partition, replicas_config, opened, None if is_member() else count or 1)
    say = ProgressBar(enabled=config.run.progress and is_leader()).say
    if schedule is not None:
        decided = decide(schedule, replicas_config, opened.example, say, 1 if learners == "auto" else learners)
        replicas_config = replicas_config.with_engine(schedule=decided)
        if decided is not None:
            engine = "graph"
            if learners == "auto":
                learners = rule = 1
    request = make_request(replicas_config, opened, rule, engine, learners, epochs=config.epochs, steps=config.steps)
    place = device.torch_device if isinstance(device, StreamDevice) else device
    return Prepared(config, place, count, job, opened, evaluator, request, placed)


@dataclass(frozen=True)
class MadeLearners:
    """The learners of a training, and how they were chosen."""

    learners: Learners
    tuned: Tuned
    tuner: Tuner
    most_learners: int  # upper limit while training; 0: the number is fixed
    save: Callable[[Path], None] | None = None  # saves a partition's measurements in the run directory


def _make_learners(prepared: Prepared, state: dict[str, Any] | None, world: World, shown: ProgressBar) -> MadeLearners:
    config, request, opened = prepared.config, prepared.request, prepared.opened
    tuner = check_tuner(config.tuner, request)
    if not world.is_one:
        request = part_of_training(request, world.size)
    if prepared.placed is not None:
        from bow.training.placed import place_learners

        learners, save = place_learners(config, request.replicas, prepared.placed, world, checks=state is None)
        tuned = Tuned("auto", learners.learners, None, False, "given")
        return MadeLearners(learners, tuned, tuner, 0, save)
    if state is None:
        tuned = tune(request, opened, tuner, loss=config.loss or config.step_or_loss, say=shown.say)
        tuned = without_spinning(tuned, request.replicas, shown.say)
    else:
        tuned = tuned_before(state, request, tuner)
    tuned = balanced(tuned, request, world)
    asked_for = None if request.learners == "auto" and tuned.source != "pinned" else tuned.learners
    own = tuned.learners if state is None else learners_to_resume(state, asked_for, world)
    in_all = sum(world.all_gather(own))
    rounds = config.steps if config.steps is not None else opened.stream.rounds_left(in_all)
    replicas = build(tuned, request.replicas, rounds, world, learners=own)
    replicas.batches.reside(opened.stream)
    most = 0 if config.is_per_round else most_while_training(tuned, request, tuner)
    return MadeLearners(replicas, tuned, tuner, most)


def _world(prepared: Prepared) -> contextlib.AbstractContextManager[World]:
    place, count, bucket_mb = prepared.place, prepared.count, prepared.config.devices.bucket_mb
    if prepared.job is None:
        return join(place, count, bucket_mb, remedy=REMEDY)
    return start(count or 1, place, prepared.job, bucket_mb, remedy=REMEDY)


def _worker_job(config: TrainConfig, count: int | None) -> WorkerJob | None:
    if count in (None, 1) or is_member():
        return None
    config = config.with_run(loggers=(), progress=False)
    if config.partition is None:
        return WorkerJob(functools.partial(run_training, config))
    from bow.planning.tiles import import_rules, registered_rules

    rules = registered_rules()

    def run() -> None:
        import_rules(rules)
        run_training(config)

    return WorkerJob(run)


def scheduler_steps(
    config: TrainConfig, stream: BatchStream, learners: int, state: Mapping[str, Any]
) -> tuple[str, int | None]:
    """Return the unit after which the scheduler is stepped, and the remaining number of steps, if known."""
    per_epoch, batch = stream.samples_per_epoch, stream.batch_size
    rounds = stream.rounds_left(learners) if config.steps is None else config.steps - state.get("round", 0)
    if config.is_per_round:
        return "round", rounds
    if config.steps is None:
        return "epoch", config.epochs - state.get("epoch", 0)
    if rounds is None or per_epoch is None or batch is None:
        return "epoch", None
    samples = state.get("samples", 0) + rounds * batch * learners
    return "epoch", math.ceil(samples / per_epoch) - state.get("epoch", 0)


def check_scheduler_lasts(scheduler: LRScheduler | None, steps: int | None, unit: str) -> None:
    """Reject a `OneCycleLR` that ends before the training, and warn of a cosine whose rate rises again within it."""
    if scheduler is None or steps is None:
        return
    needed = scheduler.last_epoch + steps
    often = f"and this training steps it {needed} times, after every {unit}"
    if isinstance(scheduler, OneCycleLR) and needed > scheduler.total_steps:
        raise SettingError(
            f"scheduler OneCycleLR has total_steps={scheduler.total_steps}, {often}; use total_steps={needed}"
        )
    if isinstance(scheduler, CosineAnnealingLR) and needed > scheduler.T_max + 1:  # the last one ends the training
        warn_user(
            f"scheduler CosineAnnealingLR has T_max={scheduler.T_max}, {often}: the rate rises again; use "
            f"T_max={needed}",
        )


def _is_of_job(run_dir: Path) -> bool:
    file = run_dir / JOB
    with readable(run_dir):
        return file.exists() and file.read_text(encoding="utf-8") == job_name()


def _create_directory(
    path: Path | None, name: str, resumes: bool, is_restored: bool, config: TrainConfig, world: World, lock: RunLock
) -> tuple[RunDirectory, bool]:
    made = ("", False)
    if world.leads:
        directory = RunDirectory.create(path, name, resume=resumes)
        lock.take(directory.path)
        directory.check(resumes)  # another training may have taken it first
        directory.remove_leftovers()
        made = str(directory.path), not directory.holds_run
        settings = dict(config.as_settings())
        if resumes and is_restored:  # with optimizer and scheduler of the checkpoint, whatever is given now
            before = directory.read_config()
            settings |= {name: before[name] for name in RESTORED if settings.get(name) and before.get(name)}
        directory.write_config(settings)
        if job := job_name():
            save_text("the name of torchrun's job", directory.path / JOB, job, RunDirectoryError)
    where, fresh = world.broadcast(made)
    return RunDirectory(Path(where)), fresh


def _directory(
    run_dir: str | Path | None, resume: str | Path | None, checkpoints: Sequence[Path]
) -> tuple[Path | None, bool]:
    """Return the run directory (None: a generated name), and whether it is the resumed run's own."""
    own = run_of(checkpoints[-1]) if checkpoints else None
    path = own if run_dir is None else Path(run_dir)
    if path is None:
        return None, False
    if resume is not None and "variants" in RunDirectory(own or path).read_config():
        raise RunDirectoryError(f"{own or path} holds a sweep; resume it with bow.sweep, or name another directory")
    if checkpoints:
        return path, own is not None and path.resolve() == own.resolve()
    directory = RunDirectory(path)
    resumes_in_place = resume == "auto" and directory.holds_run  # a run without a checkpoint restarts
    if resumes_in_place and directory.model_path.exists():
        raise RunDirectoryError(
            f"run directory {path} holds the model of a run that has ended, and no checkpoint to resume from; "
            "name another directory, or move the model away"
        )
    return path, resumes_in_place
