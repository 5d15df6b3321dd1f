"""What `Replicas` and `bow.train` are given: a step, batches, a synchroniser, an engine and a device."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bow.devices import StreamDevice, prepare_environment
from bow.engines import Loss, Step, choose_engine, step_from_loss
from bow.engines.config import Engine
from bow.errors import DataError, ScheduleError, SettingError
from bow.schedule import OrderedSchedule, Schedule
from bow.sync import Synchroniser
from bow.values import whole


def check_learners(learners: Any) -> int:
    """The number of learners as a plain integer."""
    return whole("learners", learners, also='"auto"')


def check_step(loss: Loss | None, step: Step | None) -> Step:
    """The step that was given, or the one that `loss` stands for."""
    if (loss is None) == (step is None):
        given = "neither" if loss is None else "both"
        raise SettingError(f"give either loss= or step=, got {given}; loss(outputs, targets) suits most models")
    function = step if loss is None else loss
    if not callable(function):
        name = "step" if loss is None else "loss"
        raise SettingError(f"{name} must be a function, got {type(function).__name__}")
    if isinstance(function, type):
        name = "step" if loss is None else "loss"
        raise SettingError(f"{name} must be a function, got the class {function.__name__}; write {function.__name__}()")
    return step_from_loss(loss) if loss is not None else step  # type: ignore[return-value]


def check_has_values(batch: Any, data: str) -> None:
    """Refuse tensors that have a shape only."""
    if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves(batch)):
        raise DataError(f"a batch of {data} is on the meta device, where tensors have no values; give it on the CPU")


def check_stacked(batches: Any, learners: int) -> None:
    """Refuse what are no batches of all learners, such as the batch of one."""
    for leaf in tree_leaves(batches) or [batches]:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != learners:
            got = f"one of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise SettingError(
                f"a round takes a list of {learners} batches, or tensors [{learners}, batch, ...], got {got}; "
                "give one batch per learner"
            )


def check_sync(sync: object) -> None:
    """Refuse what is no synchroniser, such as its class or its name."""
    if not isinstance(sync, Synchroniser):
        raise SettingError(f"sync must be a synchroniser such as bow.SMA(), got {sync!r}")


def check_schedule(engine: Engine) -> Engine:
    """The engine, if it carries out the schedule that was given."""
    schedule = engine.schedule
    if schedule is None:
        return engine
    if not isinstance(schedule, Schedule):
        raise SettingError(
            f"schedule must be a bow.Schedule in bow.Replicas, got {schedule!r}; read a file with "
            "bow.Schedule.from_json, or use bow.train"
        )
    if engine.runner != "graph":
        raise SettingError(
            f'a schedule is carried out by engine="graph", got engine={engine.runner!r}; name that engine'
        )
    if not isinstance(schedule, OrderedSchedule):
        raise ScheduleError(
            "a training's schedule needs an order for every executor, got one that decides while it runs"
        )
    return engine


def engine_for(engine: Engine, model: nn.Module, rounds: int | None, place: torch.device | StreamDevice) -> str:
    """What runs the engine that was named, or the one for `"auto"`: where tensors are offloaded, one that can."""
    if engine.name != "auto":
        return engine.runner
    device = place.torch_device if isinstance(place, StreamDevice) else place
    offloads = engine.offload and (isinstance(place, StreamDevice) or place.type == "cuda")
    return "eager" if offloads else choose_engine(model, rounds, device)


def resolve_device(device: str | torch.device) -> torch.device:
    """The device for `"auto"`, `"cpu"`, `"cuda"` or `"cuda:N"`."""
    prepare_environment()  # before CUDA is asked for anything
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SettingError(f'device must be "auto", "cpu" or "cuda", got {device!r}') from error
    if resolved.type not in ("cpu", "cuda"):
        raise SettingError(f'device must be "auto", "cpu" or "cuda", got {device!r}')
    if resolved.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = resolved.index or 0
        if index >= count:
            raise SettingError(f'device={str(device)!r} is not here ({count} CUDA devices); use device="cpu"')
        return torch.device("cuda", index)
    return resolved
