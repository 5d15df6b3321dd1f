"""`bow.sweep`: many models side by side that owe each other nothing."""

import contextlib
import dataclasses
import functools
import signal
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from bow.cluster.config import Devices
from bow.devices import StreamDevice
from bow.engines import EngineName, Loss, Step
from bow.engines.config import Engine
from bow.engines.thread_pool import num_threads
from bow.errors import SettingError, reason
from bow.forking import begin_to_compute
from bow.interruption import end_as_asked
from bow.members.checks import checked
from bow.members.config import Dealing, SweepConfig
from bow.members.loop import SweepLoop
from bow.members.member import Member, MemberSearch, Progress
from bow.members.progress import SweepProgress
from bow.members.result import Sweep
from bow.members.saving import FOLD, FOLDER, MEMBERS, THREADS, SweepDirectory, folder_of
from bow.members.stopping import Stop, check_stop
from bow.members.variant import ModelFactory, Variant, check_proposed, check_variants
from bow.observe import Record, RunDirectory, RunLock
from bow.observe.run_directory import readable
from bow.replicas import OptimizerFactory, num_trainable, prepare_template
from bow.training.checks import choose_devices
from bow.training.config import PerRound, Run, SchedulerFactory, TrainConfig
from bow.training.description import provenance
from bow.training.replicas import DEFAULT_OPTIMIZER
from bow.values import whole

OWN = ("variants", "at_once", "batches", "cluster", "stop")  # settings of a sweep; all others are each member's


def sweep(
    model: nn.Module | ModelFactory,
    data: Any,
    loss: Loss | None = None,
    *,
    variants: Iterable[Variant] | MemberSearch,
    step: Step | None = None,
    optimizer: OptimizerFactory = DEFAULT_OPTIMIZER,
    scheduler: SchedulerFactory | PerRound | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    steps: int | None = None,
    learners: int = 1,
    at_once: int | Literal["auto"] = "auto",
    batches: Dealing = "own",
    cluster: Literal["ray"] | None = None,
    stop: Stop | Sequence[Stop] | None = None,
    engine: EngineName | Engine = "auto",
    devices: int | Literal["auto", "cpu", "cuda"] | StreamDevice | Devices = "auto",
    clip_norm: float | None = None,
    validation: Any = None,
    run: str | Path | Run | None = None,
    seed: int = 0,
) -> Sweep:
    """Train many models side by side that owe each other nothing: seeds, settings, folds, ensembles.

    Each member is a training of its own: its initial weights, order of the data, random numbers, optimizer, schedule,
    early end and records. It becomes what `bow.train(learners=1, seed=...)` makes of its settings on the same engine
    with one thread: bit for bit in `eager`, and in `graph` where nothing is compiled, on a CPU; whoever trains beside
    it, in whatever order, and wherever the sweep was interrupted; with `batches="shared"`, what it makes of the order
    of `seed`. One that leaves the finite numbers ends alone.

    Args:
        model: a function that builds the model, with a member's seed; or a module, from whose weights all begin.
        data: as for `bow.train`; members may be given parts of them.
        loss: as for `bow.train`.
        variants: what sets the members apart, `bow.Variant` objects, for instance of `bow.grid(seed=range(4))`; or a
            `bow.members.MemberSearch`, with methods `ask()` and `tell(member)`, that proposes them one by one as rows
            become free. Such a sweep writes no checkpoints: what comes next depends on what is in the search.
        step: instead of `loss`, as for `bow.train`; all members share it, so it must keep no state of its own.
        optimizer: a factory; variants give it settings.
        scheduler: as for `bow.train`.
        batch_size: samples of a member's batch; None: 16, or the `DataLoader`'s own.
        epochs: passes of every member over its data.
        steps: rounds of every member; when given, `epochs` is not looked at.
        learners: of each member, which they average as `bow.train` does; with more than one, members train one after
            another, and each becomes what `bow.train(learners=...)` makes of its settings, with its threads.
        at_once: how many members train side by side on each device; the others wait for a row. Changes no result.
        batches: `"own"`: members see the data in orders of their own; `"shared"`: all in the order of `seed`, and
            batches that a `Dataset` has to decode are read once for all.
        cluster: `"ray"`: train on the machines of a Ray cluster (`pip install "bow-trainer[ray]"`), the one that
            `ray.init` has joined, else this machine; `at_once` members on each. Changes no result.
        stop: `bow.EarlyStopping`, `bow.Halving`, an object of yours with a method `why_over(member)` that is asked
            after every epoch (`bow.members.StopRule`), or a list of them.
        engine: as for `bow.train`; `"auto"` is `graph`.
        devices: as for `bow.train`; several GPUs take members from one queue.
        clip_norm: the largest gradient norm of a member.
        validation: like `data`, or a `bow.Validation`; members are evaluated on it after every epoch.
        run: the run directory, or a `bow.Run`; every member has a folder in it.
        seed: of the order of the data where all members see the same batches.

    Returns:
        The members, the best of them, their ensemble, comparisons.

    Raises:
        BowError: an argument that cannot be carried out; the message names the value and the remedy.

    Example:
        >>> import torch
        >>> inputs, targets = torch.randn(64, 8), torch.randint(0, 2, (64,))
        >>> result = sweep(
        ...     lambda: nn.Linear(8, 2), (inputs, targets), nn.functional.cross_entropy,
        ...     variants=[Variant(seed=0), Variant(seed=1)], engine="eager",
        ...     run=Run(getfixture("tmp_path") / "sweep", progress=False),
        ... )
        >>> [member.name for member in result.members]
        ['seed=0', 'seed=1']
    """
    given = {name: value for name, value in locals().items() if name not in OWN}
    train = TrainConfig(**{**given, "learners": whole("learners", learners)})
    search = variants if isinstance(variants, MemberSearch) and not isinstance(variants, type) else None
    result = run_sweep(
        SweepConfig(
            train=train,
            variants=check_variants(variants) if search is None else _first_of(search, train.run),
            search=search,
            at_once=at_once if at_once == "auto" else whole("at_once", at_once, also='"auto"'),
            batches=batches,
            cluster=cluster,
            stop=check_stop(stop),
        )
    )
    if all(member.stopped == "diverged" for member in result):
        warnings.warn("every member diverged; use a lower learning rate, or scale the data", stacklevel=2)
    return result


def run_sweep(config: SweepConfig) -> Sweep:
    begin_to_compute("bow.sweep")
    config = checked(config)
    train = config.train
    devices = devices_of(config)
    with contextlib.ExitStack() as at_the_end:
        if not config.has_learners:
            at_the_end.enter_context(num_threads(THREADS))
        lock = at_the_end.enter_context(RunLock())
        directory = _directory(config, lock)
        at_the_end.callback(directory.close)
        members, waiting, elapsed_s, num_rounds = _members(config, directory)
        directory.write_config(_settings(config))  # behind what refuses to go on from another sweep's
        progress = SweepProgress(config, members, enabled=train.run.progress)
        ask = None if config.search is None else functools.partial(_ask, config, members, directory.path)
        loop = _loop_of(config)(config, members, waiting, devices, directory, progress, elapsed_s, num_rounds, ask)
        directory.log(_start(config, devices, directory))
        loop.go()
        if config.search is not None:
            proposed = dataclasses.replace(config, variants=[member.variant for member in members])
            directory.write_config(_settings(proposed))
        seconds = loop.elapsed_s
        directory.log({"kind": "members", "time_s": seconds, "engine": loop.engine, "at_once": loop.at_once})
        directory.log({"kind": "end", "time_s": seconds, "seconds": seconds, "samples_per_s": loop.throughput})
        directory.write_table(members)
        report_path = _report(directory) if config.has_report else None
        progress.last(seconds, loop.throughput)
    number = loop.interrupted_by
    if number is not None and train.run.on_interrupt == "raise":
        go_on = config.go_on if config.search is None else "members that have ended are in {path}"
        end_as_asked(number, go_on.replace("{path}", str(directory.path)))
    return Sweep(
        members=members,
        run_dir=directory.path,
        report_path=report_path,
        seconds=seconds,
        engine=loop.engine,
        at_once=loop.at_once,
        throughput=loop.throughput,
        loss=train.loss,
        metrics=train.validation.metrics,
        interrupted_by=None if number is None else signal.Signals(number),
    )


def devices_of(config: SweepConfig) -> list[torch.device | StreamDevice]:
    """The devices that take members from the queue; without GPUs one, as members share the cores anyway."""
    device, count = choose_devices(config.train.devices.count)
    if count in (None, 1):
        return [device]
    if config.cluster is not None or config.has_learners:
        what = "on a cluster" if config.cluster else "of several learners"
        raise SettingError(f"devices={count}: members {what} train on one device each; use devices=1")
    assert count is not None
    is_gpu = isinstance(device, torch.device) and device.type == "cuda"
    return [torch.device("cuda", index) for index in range(count)] if is_gpu else [device]


def _loop_of(config: SweepConfig) -> type[SweepLoop]:
    if config.cluster is not None:
        from bow.members.on_ray import RayLoop

        return RayLoop
    if not config.has_learners:
        return SweepLoop
    from bow.members.trainings import TrainingsLoop  # which few sweeps need

    return TrainingsLoop


def _first_of(search: MemberSearch, run: Run) -> list[Variant]:
    """The first member that a search proposes, with which a mistake shows before anything is written."""
    if run.resume is not None or run.checkpoint_every not in (None, "auto"):
        raise SettingError(
            "a sweep whose members a search proposes has no checkpoints, as what comes next depends on the search; "
            "leave out resume and checkpoint_every"
        )
    first = search.ask()
    if first is None:
        raise SettingError("the search proposes no member, its ask() returned None; let it propose at least one")
    return [check_proposed(first, ())]


def _ask(config: SweepConfig, members: list[Member], path: Path) -> Progress | None:
    assert config.search is not None
    proposed = config.search.ask()
    if proposed is None:
        return None
    variant = check_proposed(proposed, [member.name for member in members])
    (variant,) = checked(dataclasses.replace(config, variants=[variant])).variants
    members.append(_member(config, len(members), variant, path))
    return Progress(members[-1], config.kind_of(members[-1].variant))


def _member(config: SweepConfig, number: int, variant: Variant, path: Path) -> Member:
    own = config.run_dir_of(variant)
    return Member(number, variant, own or path / MEMBERS / folder_of(number, variant.name or ""))


def _directory(config: SweepConfig, lock: RunLock) -> SweepDirectory:
    run = config.train.run
    path = None if run.path is None else Path(run.path)
    with readable(path or Path()):
        goes_on = run.resume == "auto" and path is not None and RunDirectory(path).holds_run
    if run.resume not in (None, "auto"):
        raise SettingError(f'resume={str(run.resume)!r}: a sweep goes on in its own run directory; use resume="auto"')
    directory = RunDirectory.create(path, "sweep", resume=goes_on)
    lock.take(directory.path)
    directory.check(goes_on)
    directory.remove_leftovers()
    return SweepDirectory(directory.path, config)


def _settings(config: SweepConfig) -> dict[str, Any]:
    return {
        **config.train.as_settings(),
        "variants": _listed(config),
        "at_once": config.at_once,
        "batches": config.batches,
        "stop": [repr(rule) for rule in config.stop],
    }


def _listed(config: SweepConfig) -> list[dict[str, Any]]:
    """Names and settings of the variants, which part of the data each has, and a directory that is elsewhere."""
    parts = list(dict.fromkeys(id(variant.train_on) for variant in config.variants))
    listed = []
    for variant in config.variants:
        own = {FOLD: parts.index(id(variant.train_on))} if len(parts) > 1 else {}
        elsewhere = {} if (path := config.run_dir_of(variant)) is None else {FOLDER: str(path.absolute())}
        listed.append({"name": variant.name, **variant.values, **own, **elsewhere})
    return listed


def _start(config: SweepConfig, devices: Sequence[torch.device | StreamDevice], directory: SweepDirectory) -> Record:
    train, first = config.train, config.variants[0]
    model = prepare_template(config.of(first).model, first.seed)
    return {
        "kind": "start",
        "time_s": 0.0,
        "members": config.num_members,
        **({"learners": train.num_learners} if config.has_learners else {}),
        **({"cluster": config.cluster} if config.cluster else {}),
        "batch_size": config.batch_size_of(first),
        "epochs": None if train.steps is not None else train.epochs,
        "steps": train.steps,
        "device": ", ".join(str(each.torch_device if isinstance(each, StreamDevice) else each) for each in devices),
        "model": type(model).__name__,
        "parameters": num_trainable(model),
        "metrics": {each.name: each.higher_is_better for each in train.validation.metrics},
        "run_dir": str(directory.path),
        **provenance(),
    }


def _report(directory: SweepDirectory) -> Path | None:
    from bow.members.report import write_sweep_report  # what is needed when all is over

    try:
        return write_sweep_report(directory)
    except Exception as error:
        warnings.warn(f"the report cannot be written ({reason(error)}); bow report writes it anew", stacklevel=3)
        return None


def _members(config: SweepConfig, directory: SweepDirectory) -> tuple[list[Member], list[Progress], float, int]:
    """All members, those of them that are to train, and the seconds and rounds before."""
    members = [_member(config, number, variant, directory.path) for number, variant in enumerate(config.variants)]
    state = directory.load_checkpoint(config.train.run.resume)
    if state is None:
        return members, [Progress(member, config.kind_of(member.variant)) for member in members], 0.0, 0
    saved = {each["name"]: each for each in state["members"]}
    waiting = {}
    for member in members:
        each = saved[member.name]
        member.history = list(each["history"])
        member.stopped, member.engine = each["stopped"], each.get("engine", "")
        template = prepare_template(config.of(member.variant).model, member.variant.seed)
        directory.load_models(member, template, each["best"])
        if at := each["at"]:
            waiting[member.name] = Progress(member, config.kind_of(member.variant), **at)
    return members, [waiting[name] for name in state["waiting"]], float(state["elapsed_s"]), state["round"]
