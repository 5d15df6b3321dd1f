"""`bow.sweep` and `bow.cross_validate`: train many independent models side by side."""

import contextlib
import dataclasses
import functools
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bow.cluster.config import Devices
from bow.data import as_torch_data, open_stream
from bow.devices import StreamDevice, num_threads
from bow.engines import EngineName, Loss, Step
from bow.engines.config import Engine
from bow.errors import RunDirectoryError, SettingError, reason, warn_user
from bow.forking import begin_to_compute
from bow.interruption import end_as_asked
from bow.members.checks import check_shared, checked
from bow.members.config import Dealing, SweepConfig
from bow.members.loop import SweepLoop
from bow.members.member import (
    FOLD,
    FOLDER,
    Member,
    MemberSearch,
    ModelFactory,
    Progress,
    Variant,
    check_proposed,
    check_variants,
)
from bow.members.progress import SweepProgress
from bow.members.result import Sweep
from bow.members.saving import MEMBERS, THREADS, SweepDirectory, folder_of
from bow.members.stopping import Stop, check_stop
from bow.observe import Record, RunDirectory, RunLock
from bow.observe.run_directory import readable
from bow.replicas import OptimizerFactory, num_trainable, prepare_template
from bow.training.checks import all_labels, choose_devices
from bow.training.config import PerRound, Run, SchedulerFactory, TrainConfig, Validation
from bow.training.replicas import DEFAULT_OPTIMIZER
from bow.training.run_records import provenance
from bow.values import shortened, whole

OWN = ("variants", "at_once", "batches", "cluster", "stop")  # settings of the sweep; all others are each member's


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
    """Train many independent models side by side: seeds, settings, folds, ensembles.

    Each member is an independent training with its own initial weights, order of the data, random numbers, optimizer,
    schedule, early stopping and records. Its result equals that of `bow.train(learners=1, seed=...)` with its settings
    on the same engine with one thread: bit for bit on a CPU in `eager`, and in `graph` if nothing is compiled;
    independent of the other members, of their order, and of interruptions. With `batches="shared"`, the order of the
    data is that of `seed`. A member whose loss, gradient or weights are not finite (NaN or infinite) in any step ends
    alone, also where `bow.train` would discard the step; members of several learners do as `bow.train`.

    Args:
        model: a function that builds the model, run under a member's seed; or a module, the initial state of all.
        data: as for `bow.train`; variants can select parts of them.
        loss: as for `bow.train`.
        variants: how the members differ: `bow.Variant` objects, such as those of `bow.grid(seed=range(4))`; or a
            `bow.members.MemberSearch`, with methods `ask()` and `tell(member)`, that proposes them one by one as rows
            become free. Such a sweep writes no checkpoints, as its next members depend on the state of the search.
        step: instead of `loss`, as for `bow.train`; all members share it, so it must be stateless.
        optimizer: a factory; variants can set its arguments.
        scheduler: as for `bow.train`.
        batch_size: samples of a member's batch; None: 16, or the `DataLoader`'s own.
        epochs: passes of every member over its data.
        steps: rounds of every member; if given, `epochs` is ignored.
        learners: of each member, averaged as by `bow.train`; with more than one, members train one after another, each
            as by `bow.train(learners=...)` with its settings and threads.
        at_once: number of members that train side by side on each device; the others wait. Affects only
            the results of a search and of `bow.Halving(asynchronous=True)`.
        batches: `"own"`: each member has its own order of the data; `"shared"`: all have the order of `seed`, and
            batches that a `Dataset` has to decode are read only once.
        cluster: `"ray"`: train on the machines of a Ray cluster (`pip install "bow-trainer[ray]"`), the one that
            `ray.init` has joined, else this machine; `at_once` members on each. Does not affect results.
        stop: `bow.EarlyStopping`, `bow.Halving`, an object with a method `why_over(member)` that is called after every
            epoch (`bow.members.StopRule`), or a list of them.
        engine: as for `bow.train`; `"auto"` is `graph`.
        devices: as for `bow.train`; several GPUs take members from one queue.
        clip_norm: maximum gradient norm of a member.
        validation: like `data`, or a `bow.Validation`; members are evaluated after every epoch.
        run: the run directory, or a `bow.Run`; every member has a subfolder.
        seed: of the order of the data with `batches="shared"`.

    Returns:
        The members, with the best one, their ensemble and comparisons.

    Raises:
        BowError: an argument is invalid; the message names the value and the remedy.

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
    if train.seed and batches == "own":
        warn_user(
            f'seed={train.seed} has no effect with batches="own", as every member has the seed of its variant; give '
            "bow.Variant(seed=...), bow.grid(seed=...) or bow.cross_validate(seeds=...)"
        )
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
        warn_user("every member diverged; use a lower learning rate, scale the data, or look for NaN in them")
    return result


def run_sweep(config: SweepConfig) -> Sweep:
    begin_to_compute("bow.sweep")
    config = checked(config)
    check_shared(config)
    train = config.train
    devices = devices_of(config)
    with contextlib.ExitStack() as at_the_end:
        if not config.has_learners:
            at_the_end.enter_context(num_threads(THREADS))
        lock = at_the_end.enter_context(RunLock())
        directory = _directory(config, lock)
        at_the_end.callback(directory.close)
        members, waiting, elapsed_s, num_rounds = _members(config, directory)
        directory.write_config(_settings(config))  # after the check that refuses to resume another sweep
        progress = SweepProgress(config, members, enabled=train.run.progress)
        ask = None if config.search is None else functools.partial(_ask, config, members, directory.path)
        loop = _loop_of(config)(config, members, waiting, devices, directory, progress, elapsed_s, num_rounds, ask)
        directory.log(_start(config, devices, directory))
        loop.go()
        if config.search is not None:
            proposed = dataclasses.replace(config, variants=[member.variant for member in members])
            settings = _settings(proposed)
            directory.attempt(lambda: directory.write_config(settings), "settings")
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
    """Return the devices that take members from the queue: one without GPUs, as members share the cores."""
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
    if config.has_learners:
        from bow.members.trainings import TrainingsLoop

        return TrainingsLoop
    return SweepLoop


def _first_of(search: MemberSearch, run: Run) -> list[Variant]:
    if run.resume is not None or run.checkpoint_every not in (None, "auto"):
        raise SettingError(
            "a sweep with a search writes no checkpoints, as its next members depend on the state of the search; "
            "leave out resume and checkpoint_every"
        )
    if (first := search.ask()) is None:
        raise SettingError("the search proposed no member, its first ask() returned None; let it propose at least one")
    return [check_proposed(first, ())]


def _ask(config: SweepConfig, members: list[Member], path: Path) -> Progress | None:
    assert config.search is not None
    if (proposed := config.search.ask()) is None:
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
        settings = RunDirectory(path).read_config() if goes_on and path is not None else {}
    if settings and "variants" not in settings:
        raise RunDirectoryError(f"run directory {path} holds a run of bow.train, not a sweep; name another directory")
    if run.resume not in (None, "auto"):
        raise SettingError(f'resume={str(run.resume)!r}: a sweep resumes in its own run directory; use resume="auto"')
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
    """Return names and settings of the variants, with their parts of the data and directories outside the sweep's."""
    parts = list(dict.fromkeys((id(variant.train_on), id(variant.validate_on)) for variant in config.variants))
    listed = []
    for variant in config.variants:
        own = {FOLD: parts.index((id(variant.train_on), id(variant.validate_on)))} if len(parts) > 1 else {}
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
    from bow.members.report import write_sweep_report  # imported only at the end

    try:
        return write_sweep_report(directory)
    except Exception as error:
        warn_user(f"the report cannot be written ({reason(error)}); run bow report to write it again")
        return None


def _members(config: SweepConfig, directory: SweepDirectory) -> tuple[list[Member], list[Progress], float, int]:
    members = [_member(config, number, variant, directory.path) for number, variant in enumerate(config.variants)]
    state = directory.load_checkpoint(config.train.run.resume)
    if state is None:
        return members, [Progress(member, config.kind_of(member.variant)) for member in members], 0.0, 0
    saved = {each["name"]: each for each in state["members"]}
    waiting = {}
    for member in members:
        each = saved[member.name]
        member.history, member.events = list(each["history"]), list(each["events"])
        member.stopped, member.engine = each["stopped"], each["engine"]
        template = prepare_template(config.of(member.variant).model, member.variant.seed)
        directory.load_models(member, template, each["best"])
        if at := each["at"]:
            waiting[member.name] = Progress(member, config.kind_of(member.variant), **at)
    return members, [waiting[name] for name in state["waiting"]], float(state["elapsed_s"]), state["round"]


def cross_validate(
    model: nn.Module | ModelFactory,
    data: Any,
    loss: Loss | None = None,
    *,
    folds: int | Sequence[tuple[Any, Any]] = 5,
    seeds: Iterable[int] = (0,),
    stratify: bool | None = None,
    **settings: Any,
) -> Sweep:
    """Train a model on every fold of the data concurrently, and evaluate each on its held-out samples.

    Args:
        model: as for `bow.sweep`.
        data: tensors or a `Dataset`; it is not copied.
        loss: as for `bow.sweep`.
        folds: number of folds, or pairs (train, test) of sample indices.
        seeds: seeds that each fold is trained with.
        stratify: keep the class proportions in every fold; None: if the data are tensors (inputs, targets) with classes
            as targets, not for other data sets, whose targets are not read beforehand.
        settings: other arguments of `bow.sweep`.

    Returns:
        The members, named `fold=0 seed=0` and so on, with their values on the held-out samples.

    Raises:
        BowError: as `bow.sweep`, or the folds are not valid.

    Example:
        >>> import bow, torch
        >>> inputs, targets = torch.randn(60, 8), torch.arange(60) % 2
        >>> result = cross_validate(
        ...     lambda: nn.Linear(8, 2), (inputs, targets), nn.functional.cross_entropy, folds=3, engine="eager",
        ...     run=bow.Run(getfixture("tmp_path") / "folds", progress=False),
        ... )
        >>> [round(member.epochs) for member in result.members]
        [1, 1, 1]
    """
    for name in ("variants", "validation"):
        if isinstance(settings.get(name), Validation) and settings[name].data is None:
            continue
        if name in settings:
            raise SettingError(f"cross_validate sets {name} itself; use bow.sweep(...) to pass it")
    return sweep(model, data, loss, variants=fold_variants(data, folds, seeds, stratify), **settings)


def fold_variants(data: Any, count: Any, seeds: Any, stratify: bool | None) -> list[Variant]:
    if not isinstance(seeds, Iterable):
        raise SettingError(f"seeds must be a list of seeds, got {shortened(seeds)}; give for instance range(4)")
    seeds = list(seeds)  # an iterator would end after the first fold
    if not seeds or len(set(map(repr, seeds))) < len(seeds):
        raise SettingError(
            f"seeds must be one or more different seeds, got {shortened(seeds)}; give for instance range(4)"
        )
    if not isinstance(stratify, bool | None):
        raise SettingError(f"stratify must be True, False or None, got {shortened(stratify)}")
    if not isinstance(count, Iterable):
        data = as_torch_data(data)
        labels = all_labels(data)
        is_classes = labels is not None and labels.dim() == 1 and not labels.is_floating_point()
        if stratify and not is_classes:
            raise SettingError("stratify=True needs data (inputs, targets) with classes as targets; leave it out")
        by_class = labels.cpu() if labels is not None and is_classes and stratify is not False else None
        samples = None if isinstance(data, DataLoader) else open_stream(data, steps=1).samples_per_epoch
        if samples is None:
            raise SettingError(f"folds need tensors or a Dataset as data, got {type(data).__name__}")
        pairs: Sequence[tuple[Any, Any]] = folds(samples, count, labels=by_class)
    else:
        pairs = list(count)
        if not pairs or any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
            raise SettingError(
                f"folds must be a number, or pairs (train, test) of sample indices, got {shortened(count)}"
            )
    return [
        Variant(seed=seed, train_on=train, validate_on=test, name=f"fold={fold} seed={seed}")
        for fold, (train, test) in enumerate(pairs)
        for seed in seeds
    ]


def folds(num_samples: int, count: int, *, seed: int = 0, labels: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """Return the indices of training and held-out samples by fold of a cross-validation (Stone, 1974).

    With `labels`, classes `[samples]`, folds are stratified.

    Example:
        >>> train, test = folds(10, 5)[0]
        >>> len(train), len(test)
        (8, 2)
    """
    count = whole("folds", count, least=2, also="pairs (train, test) of sample indices such as KFold(5).split(data)")
    if num_samples < count:
        raise SettingError(f"folds={count} are more than the {num_samples} samples; use fewer folds")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(num_samples, generator=generator)
    fold = torch.empty(num_samples, dtype=torch.int64)
    if labels is None:
        fold[order] = torch.arange(num_samples) % count
    else:
        start = 0
        for label in torch.unique(labels):
            own = order[labels[order] == label]
            if len(own) < count:
                raise SettingError(
                    f"class {label.item()} has {len(own)} samples and there are {count} folds, so some folds would "
                    "have none of it; use fewer folds, or stratify=False"
                )
            fold[own] = (torch.arange(len(own)) + start) % count
            start += len(own)
    return [((fold != number).nonzero().flatten(), (fold == number).nonzero().flatten()) for number in range(count)]
