"""Going on from a checkpoint: learners, stream and scheduler as they were."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bow.cluster import World
from bow.data import BatchStream
from bow.errors import BowError, CheckpointError, reason
from bow.training.learners import Learners
from bow.training.replicas import part_of


def learners_to_resume(state: Mapping[str, Any], asked_for: int | None, world: World) -> int:
    """With how many learners this device goes on.

    As many as it had; or an even part of all, where there are other devices than before. Where a number is asked for
    that the training was not started with, or that is for other devices, it is that.

    Args:
        state: the plain values that the checkpoint holds.
        asked_for: on each device; None: nothing is.
        world: the processes.
    """
    by_device = state.get("by_device", [state["learners"]])
    if asked_for is not None and (asked_for != state["learners"] or len(by_device) != world.size):
        return asked_for
    return part_of(by_device, world)


def restore(
    state: Mapping[str, Any],
    learned: Mapping[str, Any] | None,
    replicas: Learners,
    stream: BatchStream,
    scheduler: LRScheduler | None,
) -> None:
    """Put learners, stream and scheduler where a checkpoint's training was.

    Args:
        state: the plain values that the checkpoint holds.
        learned: the state of the learners; on several devices rank 0 has it, and the others None.
        replicas: of the same model, optimizer and synchroniser; those that the checkpoint does not have start from its
            central model.
        stream: over the same data.
        scheduler: of the same kind.

    Warns:
        UserWarning: the optimizer was made with other settings than the checkpoint's; those of the checkpoint, which
            scheduler and callbacks may have changed since, are used.

    Raises:
        BowError: the checkpoint is of another model, optimizer, synchroniser, seed or data.
    """
    given = optimizer_settings(replicas.optimizer)
    with _damage_explained():
        replicas.load_training_state(learned, replicas.learners)
        _warn_of_other_settings(state["started_with"], given)
        stream.load_state_dict(state["stream"])
        if scheduler is not None and state["scheduler"] is not None:
            scheduler.load_state_dict(state["scheduler"])


@contextlib.contextmanager
def _damage_explained() -> Iterator[None]:
    try:
        yield
    except BowError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint is damaged ({type(error).__name__}: {reason(error)}); resume from another one"
        ) from error


def optimizer_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The plain hyper-parameters of every group, such as `{"lr": 0.1, "momentum": 0.9}`."""
    settings = []
    for group in optimizer.param_groups:
        values = {k: v.item() if isinstance(v, Tensor) and v.numel() == 1 else v for k, v in group.items()}
        settings.append({k: v for k, v in values.items() if isinstance(v, (int, float, str, tuple))})
    return settings


def _warn_of_other_settings(saved: list[dict[str, Any]], given: list[dict[str, Any]]) -> None:
    for old, new in zip(saved, given, strict=False):
        names = [name for name in old if name in new and old[name] != new[name]]
        if names:
            was, now = (", ".join(f"{name}={values[name]}" for name in names) for values in (old, new))
            warnings.warn(
                f"the training to be resumed was started with {was}, got {now}; it goes on with the optimizer settings "
                "of its checkpoint, start a new training to change them",
                stacklevel=4,
            )
