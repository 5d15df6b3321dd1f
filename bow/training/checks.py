"""Validation of users' arguments, before anything is written."""

import contextlib
import copy
import functools
import math
import os
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bow.cluster import is_member
from bow.data import Batch
from bow.devices import StreamDevice, available_cores, prepare_environment
from bow.engines import Loss, Step, check_loss, choose_engine, own_loss, step_from_loss
from bow.engines.config import ROUND_CAPTURED, Engine
from bow.errors import BowError, DataError, GraphError, ModelError, ScheduleError, SettingError, reason, warn_user
from bow.graph.outside import OutsideTensors
from bow.replicas import buffer_state, extra_state, has_lazy_modules, in_mode, load_buffers
from bow.schedule import DynamicSchedule
from bow.sync import Synchroniser
from bow.training.metrics import IGNORED_LABEL, Metric, reached
from bow.values import number, parameter_names, processes, whole


def check_step(loss: Loss | None, step: Step | None) -> Step:
    """Return the step function: the given one, one made from `loss`, or the model's own loss."""
    if loss is None and step is None:
        return own_loss
    if loss is not None and step is not None:
        raise SettingError("give either loss= or step=, got both; loss(outputs, targets) suits most models")
    name, function = ("step", step) if loss is None else ("loss", loss)
    if not callable(function):
        raise SettingError(f"{name} must be a function, got {type(function).__name__}")
    if isinstance(function, type):
        raise SettingError(f"{name} must be a function, got the class {function.__name__}; write {function.__name__}()")
    return step_from_loss(loss) if loss is not None else step  # type: ignore[return-value]


def check_has_values(batch: Any, data: str) -> None:
    if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves(batch)):
        raise DataError(f"a batch of {data} is on the meta device, where tensors have no values; give it on the CPU")


def check_stacked(batches: Any, learners: int) -> None:
    for leaf in tree_leaves(batches) or [batches]:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != learners:
            got = f"one of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise SettingError(
                f"a round takes a list of {learners} batches, or tensors [{learners}, batch, ...], got {got}; "
                "give one batch per learner"
            )


def check_sync(sync: object) -> None:
    if not isinstance(sync, Synchroniser):
        raise SettingError(f"sync must be a synchroniser such as bow.SMA(), got {sync!r}")


def check_schedule(schedule: object, engine: Engine, on_cpu: bool, runners: Sequence[str] = ("graph",)) -> None:
    if on_cpu and isinstance(schedule, DynamicSchedule):
        raise ScheduleError(
            "a training's schedule needs an order for every executor, got one that decides while it runs; "
            "bow schedule compare writes one with an order"
        )
    if engine.runner not in runners:
        raise SettingError(
            f'a schedule is carried out by engine="graph", got engine={engine.runner!r}; name that engine, or leave '
            "the schedule out"
        )
    if engine.dispatch != "fixed":
        raise SettingError(f'a schedule needs dispatch="fixed", got {engine.dispatch!r}; leave one of them out')
    if engine.compile:
        raise SettingError(
            "a compiled learning task is one operator, so that no schedule applies; leave one of them out"
        )


def engine_for(engine: Engine, rounds: int | None, place: torch.device | StreamDevice, is_one: bool = False) -> str:
    """Return the runner of a named engine, or choose one for `"auto"` that supports the settings."""
    has_streams = isinstance(place, StreamDevice) or place.type == "cuda"
    is_plain = engine.schedule is None and engine.dispatch == "fixed"
    # One learner's round is its whole step, which one CUDA graph captures, optimizer included.
    if engine.name == "graph" and engine.capture == "auto" and is_one and has_streams and is_plain:
        return ROUND_CAPTURED
    if engine.name != "auto":
        return engine.runner
    device = place.torch_device if isinstance(place, StreamDevice) else place
    return "eager" if engine.offload and has_streams else choose_engine(rounds, device)


def resolve_device(device: str | torch.device) -> torch.device:
    prepare_environment()  # must precede any use of CUDA
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        resolved = None
    if resolved is None or resolved.type not in ("cpu", "cuda"):
        raise SettingError(f'device must be "auto", "cpu" or "cuda", got {device!r}')
    if resolved.type == "cpu":
        return resolved
    count, index = torch.cuda.device_count() if torch.cuda.is_available() else 0, resolved.index or 0
    if index >= count:
        raise SettingError(f'device={str(device)!r} is not available ({count} CUDA devices); use device="cpu"')
    return torch.device("cuda", index)


def warn_of_first_come(dispatch: str, sync: Synchroniser, learners: int) -> None:
    if dispatch == "first_come" and all(sync.due(t, learners) for t in range(2)):
        warn_user(
            f'dispatch="first_come" has no effect with {sync!r}, which synchronises the learners in every round; '
            "use a synchroniser with every=2 or more, or leave it out",
        )


def check_target(target: Mapping[str, float] | None, validation: object, metrics: Sequence[Metric] | None) -> None:
    if not target:
        return
    if not isinstance(target, Mapping):
        raise SettingError(f'target must be values by name such as {{"accuracy": 0.99}}, got {target!r}')
    if validation is None:
        raise SettingError(f"target={dict(target)!r} needs validation data to be measured on; give validation=")
    by_name = {metric.name: metric for metric in metrics or ()}
    bests = {name: vars(type(metric)).get("best") for name, metric in by_name.items()}  # a subclass may differ
    names = None if metrics is None else ["loss", *by_name]
    for name, value in target.items():
        if names is not None and name not in names:
            raise SettingError(f"target names {name!r}, which is not measured; choose from {', '.join(names)}")
        number(f"the target for {name}", value)
        best = bests.get(name)
        if best is not None and value != best and reached({name: value}, {name: best}, by_name):
            raise SettingError(f"the target for {name} can never be reached, got {value:g}; the best value is {best:g}")


def check_objects(setting: str, values: Any, kind: type) -> None:
    for value in values if isinstance(values, Sequence) else [values]:
        if isinstance(value, type) or not isinstance(value, kind) or not isinstance(values, Sequence):
            remedy = "" if isinstance(value, type) or not callable(value) else "; pass a loss function as loss="
            raise SettingError(f"{setting} must be a list of {kind.__name__} objects, got {values!r}{remedy}")


def make_scheduler(
    factory: Callable[..., LRScheduler] | None, optimizer: Optimizer, rounds: int | None
) -> LRScheduler | None:
    """Build the learning-rate scheduler, passing the number of rounds if the factory takes it."""
    if factory is None:
        return None
    if asks_for_rounds(factory):
        if rounds is None:
            raise SettingError(
                f"scheduler {factory!r} needs the number of rounds, which is unknown for these data; set steps="
            )
        factory = functools.partial(factory, rounds=rounds)
    try:
        scheduler = factory(optimizer)
    except Exception as error:
        raise SettingError(
            f"scheduler must be a function that makes a scheduler from the optimizer, got {factory!r}, which fails "
            f"({reason(error)}); pass functools.partial(torch.optim.lr_scheduler.StepLR, step_size=...)"
        ) from error
    if not isinstance(scheduler, LRScheduler):
        raise SettingError(
            f"scheduler must return a torch.optim.lr_scheduler.LRScheduler, it returned {type(scheduler).__name__}"
        )
    if isinstance(scheduler, ReduceLROnPlateau) and scheduler.mode == "max":
        raise SettingError('scheduler ReduceLROnPlateau receives the loss, got mode="max"; use mode="min"')
    _try_scheduler(factory, optimizer)
    return scheduler


def step_scheduler(scheduler: LRScheduler | None, loss: float, epochs: int = 1) -> None:
    """Step a scheduler once for each epoch that has ended, at least once; one that follows a loss, once."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(loss)
    elif scheduler is not None:
        for _ in range(max(epochs, 1)):
            scheduler.step()


def asks_for_rounds(factory: Callable[..., Any] | None) -> bool:
    return "rounds" in parameter_names(factory) and "rounds" not in getattr(factory, "keywords", ())


def _try_scheduler(factory: Callable[[Optimizer], LRScheduler], optimizer: Optimizer) -> None:
    """Step a scheduler on a copy of the optimizer, so that mistakes surface now and not after an epoch."""
    trial = copy.copy(optimizer)
    trial.param_groups = [
        {name: value if name == "params" else copy.deepcopy(value) for name, value in group.items()}
        for group in optimizer.param_groups
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the optimizer does not step
        try:
            scheduler = factory(trial)
        except Exception:  # a factory that works only once
            return
        if not type(scheduler).__module__.startswith("torch."):  # a custom one may record its calls
            return
        try:
            step_scheduler(scheduler, 1.0)
        except Exception as error:
            raise SettingError(
                f"scheduler {type(scheduler).__name__} fails at its first step "
                f"({type(error).__name__}: {reason(error)}); correct its settings"
            ) from error


def choose_devices(devices: int | str | StreamDevice) -> tuple[torch.device | StreamDevice, int | None]:
    """Return this process's device and the total number of devices; None: one per process."""
    if isinstance(devices, StreamDevice):
        return devices, None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not isinstance(devices, str):
        also = '"auto", "cpu" or "cuda"'
        devices = whole("devices", devices, also=also)
        if not gpus and not is_member():
            processes("devices", devices, len(available_cores()), also)
        if gpus and devices > gpus and not is_member():
            raise SettingError(f"devices={devices} is more than the {gpus} GPUs here; use devices={gpus}")
        count: int | None = devices
        device = resolve_device("auto")
    else:
        device = resolve_device(devices)
        wants_all = device.type == "cuda" and ":" not in devices and not is_member()
        count = gpus if wants_all and gpus > 1 else None
    if device.type == "cuda" and is_member():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % max(gpus, 1))
    return device, count


def check_sampler(data: Any, name: str, count: int | None) -> None:
    """Reject a loader that gives each process a share: bow would deal each device a share of it again."""
    if not isinstance(data, DataLoader) or ((count or 1) == 1 and not is_member()):
        return
    inner = getattr(data.batch_sampler, "sampler", None)
    for sampler in (data.sampler, data.batch_sampler, inner):
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            raise DataError(
                f"the DataLoader of {name} has a DistributedSampler with num_replicas={sampler.num_replicas}, and bow "
                "deals the batches to the devices itself; use shuffle=True or an ordinary sampler"
            )


@contextlib.contextmanager
def changes_told(model: nn.Module, tell: Callable[[str, str], None]) -> Iterator[None]:
    """Tell of a change by the step that is not saved; not for the first rounds, which may fill caches."""
    before = _unsaved(model)
    yield
    for what in [name for name, value in _unsaved(model).items() if before.get(name) != value][:1]:
        tell("not saved", f"the step {what}")


def _unsaved(model: nn.Module) -> dict[str, Any]:
    """Return what a step may change that neither the central model nor a checkpoint has, by what is said of it."""
    extra = extra_state(model)  # holds what its modules change, as in plain PyTorch
    numbers = {
        f"changes attribute {name!r} of {f'module {path!r}' if path else 'the model'} in Python, which the central "
        "model, its evaluation and checkpoints do not have; keep it in a buffer": repr(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float) and path not in extra
    }
    drawn = "draws from {} random, which neither the seed nor checkpoints cover; draw from torch".format
    numpy = pickle.dumps(np.random.get_state(legacy=False))
    return {**numbers, drawn("Python's"): random.getstate(), drawn("NumPy's"): numpy}


def all_labels(data: Any) -> Tensor | None:
    pair = data.tensors if type(data) is TensorDataset else data
    if isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[1], Tensor):
        return pair[1]
    return None


@torch.no_grad()
def check_first_batch(
    template: nn.Module,
    batch: Batch,
    loss: Loss | None,
    step: Step,
    labels: Tensor | None = None,
    *,
    data: str = "data",
    most_bad: float,
    is_training: bool = False,
) -> None:
    """Run one batch through the model without side effects, except to initialise lazy modules; raise on misfits."""
    check_has_values(batch, data)
    outside = OutsideTensors(step, template)
    # A step may keep state, and is called only where necessary.
    if loss is None and step is not own_loss and not has_lazy_modules(template) and not outside.may_matter:
        return
    device = next((p.device for p in template.parameters()), torch.device("cpu"))
    batch = tree_map_only(Tensor, lambda t: t.to(device, copy=True), batch)  # a step may change it in place
    is_lazy = has_lazy_modules(template)
    buffers = {} if is_lazy else buffer_state(template)  # some models count their calls
    attributes = [
        (own, {name: copy.copy(value) if type(value) in (dict, list) else value for name, value in own.items()})
        for own in map(vars, template.modules())
    ]
    trained = {} if is_lazy else {n: p for n, p in template.named_parameters() if p.requires_grad}
    versions = {name: parameter._version for name, parameter in trained.items()}
    try:
        with in_mode(template, is_training), torch.random.fork_rng(devices=[]):
            with torch.set_grad_enabled(data == "data"):
                if loss is None:
                    result = step(template, batch)
                    made = result[0] if isinstance(result, tuple) else result
                else:
                    made = _loss_on(template, batch, loss, labels, data)
            if written := [name for name, parameter in trained.items() if parameter._version != versions[name]]:
                raise _changed_in_place(written[0])
            if isinstance(made, Tensor):
                outside.check(made, [batch, *template.parameters()])
                if made.dim() == 0 and not math.isfinite(value := float(made.detach())):
                    _check_finite(batch, value, data, most_bad)
    except BowError:
        raise
    except Exception as error:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        raise ModelError(
            f"the model or its loss fails on the first batch of {data}, of shapes {shapes} "
            f"({type(error).__name__}: {reason(error)}); {remedy_of(error, template)}"
        ) from error
    finally:
        load_buffers(template, buffers)
        for now, before in attributes:
            _forget_graphs(now, before)


LABELS = "give the labels as .long()"
CASTS = {torch.float32: ".float()", torch.float64: ".double()", torch.float16: ".half()"}


def remedy_of(error: Exception, model: nn.Module) -> str:
    return remedy_of_dtype(error, model) or "check that they fit the data"


def remedy_of_dtype(error: Exception, model: nn.Module) -> str | None:
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    wanted = str(error).partition(" but ")[0]
    if "to be Long" in wanted or "scalar type Long" in wanted:
        return LABELS
    if "dtype" in str(error) or "result type" in str(error):
        return f"give the data as the model has it: {CASTS.get(dtype, f'.to({dtype})')}"
    return None


@contextlib.contextmanager
def dtypes_explained(model: nn.Module, batches: Any) -> Iterator[None]:
    """Name the remedy of batches of another dtype than the model's."""
    try:
        yield
    except (RuntimeError, GraphError) as error:
        remedy = remedy_of_dtype(error, model)
        dtypes = dict.fromkeys(leaf.dtype for leaf in tree_leaves(batches) if isinstance(leaf, Tensor))
        fits = next((p.dtype for p in model.parameters()), None) in dtypes  # the step itself mixes dtypes
        is_own = isinstance(error, BowError) and not isinstance(error, GraphError)
        if is_own or remedy is None or (fits and remedy != LABELS):
            raise
        found = ", ".join(map(str, dtypes))
        raise DataError(f"the model or its loss fails on batches of {found} ({reason(error)}); {remedy}") from error


def check_embeddings(model: nn.Module) -> None:
    for name, module in model.named_modules():
        scales = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
        if scales and module.weight.requires_grad:
            raise _changed_in_place(f"{name}.weight".lstrip("."))


def _changed_in_place(parameter: str) -> ModelError:
    return ModelError(
        f"the model changes its parameter {parameter!r} in place, as nn.Embedding does with max_norm, and learners' "
        "parameters are views of a row, which cannot be; scale the value that is used instead"
    )


def _forget_graphs(now: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Restore attributes that hold tensors with an autograd graph, which `copy.deepcopy` rejects."""
    for name in list(now):
        if any(isinstance(leaf, Tensor) and leaf.grad_fn is not None for leaf in tree_leaves(now[name])):
            if name in before:
                now[name] = before[name]
            else:
                del now[name]


def _check_finite(batch: Batch, loss: float, data: str, most_bad: float) -> None:
    bad = [each.flatten(1).any(1) if each.dim() > 1 else each for each in _not_finite(batch)]
    if any(float(each.float().mean()) > most_bad for each in bad if each.numel()):
        count = num_not_finite(batch)
        raise DataError(
            f"the first batch of {data} has {count} values that are not finite, and the loss is {loss}; correct them"
        )


def num_not_finite(batch: Batch) -> int:
    return sum(int(each.sum()) for each in _not_finite(batch))


def _not_finite(batch: Batch) -> list[Tensor]:
    leaves = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
    return [~torch.isfinite(leaf) for leaf in leaves if leaf.is_floating_point() or leaf.is_complex()]


def _loss_on(template: nn.Module, batch: Batch, loss: Loss, labels: Tensor | None, data: str) -> Tensor:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise DataError(
            f"loss= needs batches of {data} that are pairs (inputs, targets), got {type(batch).__name__}{size}; "
            "use step= instead"
        )
    inputs, targets = batch
    outputs = template(inputs)
    check_labels(loss, outputs, targets if labels is None else labels)
    made = loss(outputs, targets)
    check_loss(made)
    return made


def check_labels(loss: Loss, outputs: Any, targets: Any) -> None:
    dimension, ignored = _classes_of(loss)
    if dimension is None or not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return
    if targets.is_floating_point() or not targets.numel() or outputs.dim() != targets.dim() + 1:
        return
    classes = outputs.shape[dimension]
    labels = targets[targets != ignored]
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"labels run from {int(labels.min())} to {int(labels.max())} and the model has {classes} outputs "
            f"(0 to {classes - 1}); correct the labels or give the model more outputs"
        )


def _classes_of(loss: Loss) -> tuple[int | None, int]:
    """Return the class dimension of the outputs (None: unknown) and the ignored label."""
    ignored = IGNORED_LABEL
    if isinstance(loss, functools.partial):  # nested partials are flattened by functools
        ignored = loss.keywords.get("ignore_index", ignored)
        loss = loss.func
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)):
        return 1, loss.ignore_index
    if loss in (nn.functional.cross_entropy, nn.functional.nll_loss):
        return 1, ignored
    return (-1 if getattr(loss, "__name__", "") == "sequence_cross_entropy" else None), ignored


P = ParamSpec("P")
R = TypeVar("R")

MOVED: Mapping[str, tuple[str, str]] = {  # former name: (new name in Python, on the command line)
    "lr_scheduler": ("scheduler=...", "scheduler=..."),
    "lr_interval": ("scheduler=bow.PerRound(...)", "scheduler={_target_: bow.PerRound, factory: {_target_: ...}}"),
    "tuner": ("learners=bow.Tuner(...)", "tuner.NAME=..."),
    "dispatch": ("engine=bow.Engine(..., dispatch=...)", "engine.dispatch=..."),
    "compile": ("engine=bow.Engine(..., compile=...)", "engine.compile=..."),
    "precision": ("engine=bow.Engine(..., precision=...)", "engine.precision=..."),
    "memory": ("engine=bow.Engine(..., offload=True)", "engine.offload=true"),
    "schedule": ('engine=bow.Engine("graph", schedule=...)', "engine.schedule=..."),
    "strategy": (
        'engine=bow.Engine("graph", schedule=...), or found.train(data, ...) of what bow.plan returns',
        "engine.schedule=..., or bow plan train FILE",
    ),
    "strategy_check": ("found.train(data, check=...)", "bow plan train FILE check=..."),
    "eval_batch_size": ("validation=bow.Validation(..., batch_size=...)", "validation.batch_size=..."),
    "evaluate_every": ("validation=bow.Validation(..., every=...)", "validation.every=..."),
    "metrics": ("validation=bow.Validation(..., metrics=...)", "validation.metrics=..."),
    "target": ("validation=bow.Validation(..., target=...)", "validation.target=..."),
    "buffers": ("validation=bow.Validation(..., buffers=...)", "validation.buffers=..."),
    "loggers": ("run=bow.Run(..., loggers=...)", "run.loggers=..."),
    "run_dir": ("run=...", "run.path=..."),
    "checkpoint_every": ("run=bow.Run(..., checkpoint_every=...)", "run.checkpoint_every=..."),
    "resume": ("run=bow.Run(..., resume=...)", "run.resume=..."),
    "on_interrupt": ("run=bow.Run(..., on_interrupt=...)", "run.on_interrupt=..."),
    "progress": ("run=bow.Run(..., progress=...)", "run.progress=..."),
    "bucket_mb": ("devices=bow.Devices(..., bucket_mb=...)", "devices.bucket_mb=..."),
}


def refuses_moved(caller: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to reject renamed keywords with their new names."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = function.__kwdefaults__ or {}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            name = next((name for name in kwargs if name in MOVED and name not in known), None)
            if name is not None:
                raise SettingError(f"{caller} has no {name}=; it is {MOVED[name][0]} now")
            return function(*args, **kwargs)

        return checked

    return decorate
