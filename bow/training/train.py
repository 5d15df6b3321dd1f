"""`bow.train`: from a model and data to a trained central model and a run directory."""

import contextlib
import dataclasses
import functools
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bow.cluster import (
    Bucket,
    WorkerJob,
    World,
    check_bucket,
    is_leader,
    is_member,
    job_name,
    join,
    start,
    was_restarted,
)
from bow.data import SyntheticSamples
from bow.devices import StreamDevice
from bow.engines import EngineName, Loss, OnNan, Step, check_engine, choose_learners
from bow.engines.swap import Memory
from bow.errors import RunDirectoryError
from bow.files import save_text
from bow.forking import begin_to_compute
from bow.observe import Logger, ProgressBar, RunDirectory, RunLock
from bow.planning.problem.partition import Partition
from bow.planning.search.search import Found
from bow.planning.tiles import ProcessGroup, registered_rules, take_over_rules
from bow.planning.tiles.registering import Registered
from bow.replicas import BufferPolicy, OptimizerFactory, prepare_template
from bow.schedule.scheduler import Dispatch
from bow.sync import Synchroniser
from bow.training.blueprint import Blueprint
from bow.training.callbacks import Hooks, check_callbacks
from bow.training.checkpoint import delete_checkpoints_after, meant, open_checkpoint, run_of
from bow.training.checks import (
    all_labels,
    check_choices,
    check_evaluate_every,
    check_first_batch,
    check_objects,
    check_target,
    choose_devices,
    make_scheduler,
    warn_of_first_come,
)
from bow.training.evaluation import Evaluator
from bow.training.given import check_learners, check_step, check_sync
from bow.training.interruption import end_as_asked
from bow.training.learners import Learners
from bow.training.metrics import Accuracy, Metric, check_names
from bow.training.opened import Opened, check_round
from bow.training.replicas import DEFAULT_OPTIMIZER, DEFAULT_SYNC
from bow.training.result import Result
from bow.training.resuming import learners_to_resume, optimizer_settings, restore, trajectory
from bow.training.run import MOST_LOST, Plan, Run
from bow.training.strategy import Strategy, decide, engine_with, read_strategy
from bow.training.tiles import TileLearners
from bow.training.tiles_check import Checked, check_speed
from bow.training.tiles_given import check_settings, devices_of, placed_step
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
)
from bow.tuner import Tuner
from bow.values import given_path, whole_seed

DEFAULT_METRICS = (Accuracy(),)

ENDING_S = 60.0
"""Seconds for a training that torchrun starts again to wait until the processes before it have gone."""

REMEDY = 'go on with resume="auto"'
"""What helps where another process of a training has gone."""

JOB = ".torchrun"
"""File of a run directory with the name of torchrun's job, if it was one."""


def train(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    loss: Loss | None = None,
    *,
    step: Step | None = None,
    optimizer: OptimizerFactory = DEFAULT_OPTIMIZER,
    lr_scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    lr_interval: Literal["epoch", "round"] = "epoch",
    batch_size: int | None = None,
    epochs: int = 1,
    steps: int | None = None,
    learners: int | Literal["auto"] = "auto",
    engine: EngineName = "auto",
    sync: Synchroniser = DEFAULT_SYNC,
    devices: int | Literal["auto", "cpu", "cuda"] | StreamDevice = "auto",
    dispatch: Dispatch = "fixed",
    tuner: Tuner | None = None,
    on_nan: OnNan = "restart",
    validation: Any = None,
    eval_batch_size: int | None = None,
    evaluate_every: float = 1.0,
    metrics: Sequence[Metric] = DEFAULT_METRICS,
    target: Mapping[str, float] | None = None,
    precision: str | None = None,
    clip_norm: float | None = None,
    memory: Memory = "device",
    buffers: BufferPolicy = "average",
    callbacks: Sequence[object] = (),
    loggers: Sequence[Logger] = (),
    run_dir: str | Path | None = None,
    checkpoint_every: int | Literal["auto"] | None = "auto",
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    strategy: Strategy = None,
    strategy_check: bool = True,
    compile: bool = False,
    bucket_mb: Bucket = None,
    seed: int = 0,
    progress: bool = True,
) -> Result:
    """Train several learners of a model side by side and return their central model.

    The user picks the batch size that trains best; the number of learners is what fills the hardware.

    Args:
        model: the model, or a function of no arguments that builds it. It is read, not changed.
        data: tensors `[samples, ...]` in a pair `(inputs, targets)` or any pytree, a `Dataset`, a `DataLoader` (keeps
            its own batch size and workers), or an `IterableDataset` (needs `steps`).
        loss: `loss(outputs, targets) -> scalar`, a mean over samples: the central model's loss on the validation data
            is the mean over its batches, each counted by its samples.
        step: instead of `loss`: `step(model, batch) -> loss`, or `(loss, {name: scalar})`; batch is any pytree.
        optimizer: makes a `torch.optim` optimizer from an iterable of parameters.
        lr_scheduler: makes a `torch.optim.lr_scheduler` from the optimizer.
        lr_interval: when the scheduler is stepped.
        batch_size: samples per learner and round; None: 16, or the `DataLoader`'s own.
        epochs: passes over the data by all learners together.
        steps: rounds; when given, `epochs` is not looked at.
        learners: per device; `"auto"` is found by timed trials before the training, and followed up while it goes on.
        engine: `"eager"`, `"fused"`, `"graph"`, `"streams"`, `"whole_round"` or `"auto"`, see `Replicas`; `"auto"` is
            found by the same trials. They run model, loss or step, and optimizer on samples of the data, and leave
            no trace in the training, unless `loss` or `step` keep a state of their own; trainings too short for
            trials follow the rule in `bow.engines.choice`.
        sync: what keeps the learners together.
        devices: `"cuda"`: all GPUs that there are; `"cpu"`: all cores as one device; `"auto"`: GPUs if there are any;
            or a number of devices, which without a GPU are as many shares of the cores. Each device is trained on by a
            process of its own, which this one starts; processes that torchrun has started train together, each on its
            own device. All of them call the callbacks; rank 0, which is this one, shows progress, logs and writes.
        dispatch: `"fixed"`, or `"first_come"`: between two synchronisation tasks the learner that is free first takes
            the next batch, see `Replicas`. Learning rates change, and callbacks hear of rounds, behind such a period;
            a training that a callback stops ends there.
        tuner: how engine and learners are found where they are `"auto"`; None is `bow.Tuner()`. With
            `lr_interval="round"`, learners stay as many as the trials have found.
        on_nan: a learner that diverges starts again from z, and the training ends where more than half of the steps of
            an epoch came to nothing (`"restart"`); it starts again and the training goes on (`"continue"`); or it ends
            the training (`"error"`), as it always does with a placed strategy.
        validation: like `data`; the central model is evaluated on it after every epoch.
        evaluate_every: epochs between evaluations; 0.25 evaluates four times an epoch, and 1 or more after every epoch.
        eval_batch_size: samples per evaluation batch, 256 by default.
        metrics: what the central model is measured by besides the loss; those that do not apply are left out.
        target: values by name, such as `{"accuracy": 0.99}`: training stops when the central model reaches all.
        precision: `"bfloat16"` for autocast; None is the model's own dtype.
        clip_norm: the largest gradient norm of a learner.
        memory: where a learning task keeps what its backward pass needs: on the `"device"`, or in host memory
            (`"swap"`: engines `"eager"` and `"streams"` on a GPU), for models that do not fit otherwise.
        buffers: what the central model's batch-norm statistics are, see `Replicas`; `"recalibrate"` measures them
            on up to 50 shuffled batches of the training data before every evaluation.
        callbacks: objects with some of the hooks of `bow.Callback`.
        loggers: objects with `log(record)` and `close()`; the run directory's JSON lines are always written.
        run_dir: None is `runs/<date>_<time>_<model>`.
        checkpoint_every: rounds between checkpoints, of which the last two are kept; None writes none. `"auto"` writes
            them once a minute at most, in at most 1 % of the time, and deletes them when the training has ended.
        resume: a checkpoint, a run directory, or `"auto"`: go on in `run_dir` if there is something to go on from, as
            processes do that torchrun has started again. The
            run directory is the checkpoint's own, where checkpoints of later rounds are deleted, or one without a run.
            Settings of optimizer and scheduler are the checkpoint's, all others those of this call; where one differs
            that the weights depend on, a warning says so.
        on_interrupt: what comes of Ctrl-C, SIGTERM or a closed terminal: the training ends behind the round, writes a
            checkpoint, and raises `KeyboardInterrupt` or `SystemExit` (`"raise"`), or `"return"` returns the result so
            far, with `interrupted_by`. A second Ctrl-C ends it at once.
        strategy: which executors run the operators of a learning task side by side (engine `graph` on a CPU): a
            `bow.Schedule`, a file that `bow schedule` wrote, or `"auto"`: operators are profiled, policies are timed
            for some seconds, and the best is used if it clearly beats running operators one after another; the log
            says which. `learners="auto"` is one learner then. None: one executor for each learner. Or what `bow.plan`
            returns, or a file of `bow plan`, for this model, loss and batch size: operators are split and placed on
            devices, each of which is a process; learners that the strategy has are averaged once a step. The batch of a
            learner is as large as one device's would be, all its devices see the same one, and what is trained is what
            one device would train, to rounding. Batches of another size, as the last one may be, are left out. The step
            is captured once, before the training: Python code in it does not run again.
        strategy_check: before the training, time a placed strategy beside data parallelism for some steps, refuse it
            if it is slower, and write when a step was expected to run what, and when it did, into
            `strategy_timeline.json` of the run directory.
        compile: compile the learning task (`fused` always does, `graph` for a long training).
        bucket_mb: between devices, sums are split into parts of so many MiB, or into variables (`"variable"`); None:
            one AllReduce for all.
        seed: of shuffling, of all random numbers in learning tasks, and of a model that is given as a function; a whole
            number of at most 64 bits.
        progress: show a progress bar, or plain lines away from a terminal.

    Raises:
        BowError: an argument that cannot be carried out; the message names the value and the remedy, and nothing
            has been written by then.

    Example:
        >>> import torch
        >>> inputs, targets = torch.randn(256, 8), torch.randint(0, 2, (256,))
        >>> result = train(
        ...     nn.Linear(8, 2), (inputs, targets), nn.functional.cross_entropy, learners=2,
        ...     run_dir=getfixture("tmp_path") / "run", progress=False,
        ... )
        >>> result.learners
        2

    References:
        Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019.
    """
    settings = dict(locals())
    begin_to_compute("bow.train")
    seed = whole_seed(seed)
    run_dir = None if run_dir is None else given_path("run_dir", run_dir)
    resume = resume if resume in (None, "auto") else given_path("resume", resume)
    check_sync(sync)
    chosen_step = check_step(loss, step)
    check_objects("metrics", metrics, Metric)
    check_names("a metric", [getattr(metric, "name", None) for metric in metrics])
    check_objects("loggers", loggers, Logger)
    check_engine(engine)
    check_callbacks(callbacks)
    check_choices(lr_interval, dispatch, tuner, checkpoint_every, evaluate_every, clip_norm, on_interrupt)
    check_bucket(bucket_mb)
    check_target(target, validation, metrics if step is None else None)
    device, count = choose_devices(devices)
    given = read_strategy(strategy)
    placed = given if isinstance(given, Partition) else None
    if isinstance(strategy, Found):
        settings["strategy"] = placed  # of what was found, the run needs no more
    asked = None if isinstance(given, Partition) else given
    if placed is None:
        engine = engine_with(asked, engine, device, dispatch, compile)
    else:
        check_settings(placed, settings)
        learners = placed.learners
        assert isinstance(device, torch.device)  # a fake device with streams is refused
        count = devices_of(placed, devices, count, device)
    template = prepare_template(model, seed)
    if learners != "auto":
        learners = check_learners(learners)
    parcel = _packed(count, settings)  # before anything is read from the data
    opened = Opened(data, batch_size=batch_size, epochs=epochs, steps=steps, seed=seed)
    stream = opened.stream
    check_evaluate_every(evaluate_every, stream)
    rule = choose_learners(device, stream.samples_per_epoch, stream.batch_size) if learners == "auto" else learners
    check_round(stream, rule)
    most_bad = 1.0 if on_nan == "continue" else MOST_LOST
    check_first_batch(template, opened.example, loss, chosen_step, all_labels(data), most_bad=most_bad)
    evaluator = None if validation is None else Evaluator(validation, loss, metrics, eval_batch_size)
    if evaluator is not None:
        check_first_batch(
            template,
            evaluator.first_batch(),
            loss,
            chosen_step,
            all_labels(validation),
            data="validation",
            most_bad=MOST_LOST,
        )
    blueprint = Blueprint(
        model=template,
        step=chosen_step,
        optimizer=optimizer,
        sync=sync,
        device=device,
        dispatch=dispatch,
        precision=precision,
        clip_norm=clip_norm,
        memory=memory,
        on_nan=on_nan,
        buffers=buffers,
        seed=seed,
        example=None if loss is None else opened.example,
    )
    tiled = None if placed is None else placed_step(placed, blueprint, opened, None if is_member() else count or 1)
    say = ProgressBar(enabled=progress and is_leader()).say
    schedule = decide(asked, blueprint, opened.example, say, 1 if learners == "auto" else learners)
    if schedule is not None:
        blueprint = dataclasses.replace(blueprint, schedule=schedule)
        engine = "graph"
        if learners == "auto":
            learners = rule = 1
    request = make_request(engine, learners, compile, opened, rule, epochs=epochs, steps=steps)
    chosen_tuner = check_tuner(tuner, request)
    restarted = run_dir is not None and (was_restarted() or _is_of_job(run_dir))
    resume = "auto" if restarted and resume is None else resume
    with contextlib.ExitStack() as at_the_end:
        lock = at_the_end.enter_context(RunLock())
        path, goes_on, state = None, False, None
        if is_leader():
            path, goes_on = _directory(run_dir, resume, meant(resume, run_dir))
            if path is not None:
                RunDirectory(path).check(goes_on)
            if path is not None and path.exists():
                lock.take(path, ENDING_S if restarted else 0.0)
            state = open_checkpoint(resume, run_dir)
        place = device.torch_device if isinstance(device, StreamDevice) else device
        if parcel is None:
            joined = join(place, count, bucket_mb, remedy=REMEDY)
        else:
            joined = start(count or 1, place, parcel, bucket_mb, remedy=REMEDY)
        world = at_the_end.enter_context(joined)
        threads = torch.get_num_threads()
        at_the_end.callback(torch.set_num_threads, threads)
        shown = ProgressBar(enabled=progress and world.leads)
        state, learned, epoch_losses = _divided(state, world)
        if not world.is_one:
            blueprint = dataclasses.replace(blueprint, is_several=True)
            request = part_of_training(request, world.size)
        if tiled is not None:
            tuned = Tuned("auto", tiled.strategy.learners, None, False, "given")
        elif state is None:
            tuned = tune(request, blueprint, opened, chosen_tuner, loss=loss or chosen_step, rule=rule, say=shown.say)
        else:
            tuned = tuned_before(state, request, blueprint, chosen_tuner)
        checked: Checked | None = None
        replicas: Learners
        if tiled is not None:
            team = ProcessGroup(place, tiled.strategy.learners)
            if strategy_check and state is None:
                checked = check_speed(blueprint, tiled, opened.example, team, world)
            note = f"strategy: {checked.summary}" if checked is not None and world.leads else None
            replicas = TileLearners(blueprint, tiled, team, world, note=note)
        else:
            tuned = balanced(tuned, request, world)
            asked_for = None if learners == "auto" and tuned.source != "pinned" else tuned.learners
            own = tuned.learners if state is None else learners_to_resume(state, asked_for, world)
            in_all = sum(world.everyone(own))
            rounds = steps if steps is not None else stream.rounds_left(in_all)
            replicas = build(tuned, blueprint, rounds, world, learners=own)
            replicas.reside(stream)
        at_the_end.callback(replicas.close)
        warn_of_first_come(dispatch, sync, tuned.learners)
        scheduler = make_scheduler(lr_scheduler, replicas.optimizer)
        started_with, given_trajectory = optimizer_settings(replicas.optimizer), trajectory(settings, opened)
        if state is not None:
            restore(state, learned, replicas, stream, scheduler, given_trajectory)
            started_with = state["started_with"]
        directory, fresh = _made_directory(path, type(template).__name__.lower(), goes_on, settings, world, lock)
        if checked is not None and world.leads:
            checked.save(directory.path)
        may_change = lr_interval == "epoch" and tiled is None
        most_learners = most_while_training(tuned, request, blueprint, chosen_tuner) if may_change else 0
        plan = Plan(
            epochs=epochs,
            steps=steps,
            lr_interval=lr_interval,
            target=dict(target or {}),
            metrics={metric.name: metric for metric in metrics},
            on_nan=on_nan,
            is_synthetic=isinstance(data, SyntheticSamples),
            checkpoint_every=checkpoint_every,
            keeps_checkpoints=checkpoint_every != "auto"
            or (goes_on and state is not None and not state.get("automatic")),
            evaluate_every=evaluate_every,
            evaluate=evaluator,
            recalibrate_on=data if buffers == "recalibrate" else None,
            directory=directory,
            tuned=tuned,
            most_learners=most_learners,
            tuner=chosen_tuner,
            fresh=fresh,
            seed=seed,
            threads=threads,
            started_with=started_with,
            trajectory=given_trajectory,
        )
        run = Run(replicas, stream, scheduler, plan, loggers, shown, Hooks(callbacks))
        if state is not None:
            run.load_state(state, epoch_losses)
            if world.leads:
                delete_checkpoints_after(directory.checkpoints, run.round)
        run.go()
        result = run.finish()
    number = run.asked_to_end_by
    if number is None:
        return result
    if on_interrupt == "raise":
        end_as_asked(number, run.way_on if world.leads and run.interrupted_by is not None else None)
    return dataclasses.replace(result, interrupted_by=signal.Signals(number))


def _packed(count: int | None, settings: Mapping[str, Any]) -> WorkerJob | None:
    """The same call for the other processes; None where this one starts none."""
    if count in (None, 1) or is_member():
        return None
    call = functools.partial(train, **{**settings, "loggers": (), "progress": False})
    return WorkerJob(functools.partial(_train_elsewhere, registered_rules(), call))


def _train_elsewhere(rules: Registered, call: Callable[[], object]) -> None:
    """Train in a process that knows only the rules that bow has."""
    take_over_rules(rules)
    call()


def _is_of_job(run_dir: Path) -> bool:
    """Whether the run there is of the same job of torchrun, which has started its processes again."""
    file = run_dir / JOB
    return file.exists() and file.read_text(encoding="utf-8") == job_name()


def _divided(
    state: dict[str, Any] | None, world: World
) -> tuple[dict[str, Any] | None, dict[str, Any] | None, torch.Tensor | None]:
    """A checkpoint's plain values, for all; the learners and their losses, which rank 0 keeps to hand them out."""
    parts = {} if state is None else dict(state)
    learned, losses = parts.pop("replicas", None), parts.pop("epoch_losses", None)
    shared = world.leaders(parts or None)
    return (shared, learned, losses) if world.leads else (shared, None, None)


def _made_directory(
    path: Path | None, name: str, goes_on: bool, settings: Mapping[str, Any], world: World, lock: RunLock
) -> tuple[RunDirectory, bool]:
    """The run directory, made by rank 0, and whether there was nothing of a run in it."""
    made = ("", False)
    if world.leads:
        directory = RunDirectory.create(path, name, resume=goes_on)
        lock.take(directory.path)
        directory.check(goes_on)  # another training may have come first
        directory.remove_leftovers()
        made = str(directory.path), not directory.holds_run
        directory.write_config(settings)
        if job := job_name():
            save_text("the name of torchrun's job", directory.path / JOB, job, RunDirectoryError)
    where, fresh = world.leaders(made)
    return RunDirectory(Path(where)), fresh


def _directory(
    run_dir: str | Path | None, resume: str | Path | None, checkpoints: Sequence[Path]
) -> tuple[Path | None, bool]:
    """Where the run is, None for a name of its own; and whether it is the very run that is resumed."""
    own = run_of(checkpoints[-1]) if checkpoints else None
    path = own if run_dir is None else Path(run_dir)
    if path is None:
        return None, False
    if checkpoints:
        return path, own is not None and path.resolve() == own.resolve()
    directory = RunDirectory(path)
    goes_on = resume == "auto" and directory.holds_run  # a run that ended before its first checkpoint begins again
    if goes_on and directory.model_path.exists():
        raise RunDirectoryError(
            f"run_dir {path} holds the model of a run that has ended, and no checkpoint to go on from; "
            "name another run_dir, or move the model away"
        )
    return path, goes_on
