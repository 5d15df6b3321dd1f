"""Save and restore the state of the learners of all devices."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from bow.cluster import World
from bow.engines import Loop
from bow.errors import BowError, CheckpointError, reason
from bow.replicas import LearnerGroup
from bow.replicas.layout import MEMORY_ORDER, ParameterLayout, other_order
from bow.sync import Timing

STATE_VERSION = 3

RESUME_REMEDY = "resume from an older one, or another file of a run's checkpoints directory"


@contextlib.contextmanager
def refusing_damage() -> Iterator[None]:
    try:
        yield
    except (BowError, torch.OutOfMemoryError):
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"the state to resume from is damaged ({reason(error)}); {RESUME_REMEDY}") from error


def read_state(group: LearnerGroup, loop: Loop) -> dict[str, Any] | None:
    """Return the complete state of the learners at rank 0; None elsewhere."""
    loop.catch_up()
    restarts = int(group.world.sum_numbers([loop.num_restarts])[0])
    own = {name: kept for name, kept in group.matrix.state.items() if name in loop.sync.own_state}
    before = {name: kept.clone() for name, kept in own.items()}
    try:
        loop.sync.grow(group.matrix, loop.context.averaging.num_averaged)  # what is saved may go on with more learners
        rows, engines = group.state(loop.sync.own_state), group.world.gather(loop.engine_state)
    finally:
        for name, kept in own.items():
            kept.copy_(before[name])
    if rows is None:
        return None
    return {
        **_identity(group, loop),
        MEMORY_ORDER: group.layout.memory_order,
        "round": loop.round_index,
        "restarts": restarts,
        "drop": vars(loop.context.restarts.drop).copy(),
        "engines": engines,
        "group": rows,
    }


@refusing_damage()
def load_state(group: LearnerGroup, loop: Loop, state: Mapping[str, Any] | None, learners: int | None) -> None:
    """Restore rank 0's state, with `learners` on this device; None: as many as it had, or an even share."""
    world = group.world
    problem = None if state is None else _mismatch(state, _identity(group, loop), group.layout)
    outline: dict[str, Any] = {}
    if state is not None and not problem:
        outline = {name: state[name] for name in ("round", "restarts", "drop", "engines")}
        outline["by_device"] = state["group"]["by_device"]
    outline = world.broadcast(outline)
    if problem or not outline:
        raise CheckpointError(problem or "rank 0's state does not match this training; see rank 0's error")
    loop.catch_up()
    loop.resize(part_of(outline["by_device"], world) if learners is None else learners)
    alike = loop.sync.timing is Timing.BEFORE_STEP
    num_loaded, has_own = group.load_state(None if state is None else state["group"], alike)
    if not has_own:
        loop.sync.start_own(group.matrix)
    group.matrix.weights[num_loaded:].copy_(loop.sync.center(group.matrix))
    engines = outline["engines"]
    own = engines[world.rank if len(engines) == world.size else 0] if engines else None
    loop.resume(outline["round"], outline["restarts"] if world.leads else 0, outline["drop"], own)
    if loop.sync.follows(sum(outline["by_device"])) and not loop.sync.follows(group.num_all):
        loop.context.start_averaging()


def _identity(group: LearnerGroup, loop: Loop) -> dict[str, Any]:
    """Return what must match when a state is loaded; `alpha`, the learning rate and the like may differ."""
    layout = group.layout
    return {
        "version": STATE_VERSION,
        "parameters": layout.num_parameters,
        "model": [[f"{slot.names[0]} {list(slot.shape)}" for slot in slots] for slots in layout.group_slots],
        "optimizer": type(group.optimizer.optimizer).__name__,
        "sync": loop.sync.kind,
    }


def _mismatch(state: Any, identity: Mapping[str, Any], layout: ParameterLayout) -> str | None:
    if not isinstance(state, Mapping):
        return f"the state to resume from must be a result of training_state(), got {type(state).__name__}"
    if "strategy" in state:
        return "the checkpoint is of a training by a partition of bow.plan; resume with that partition"
    for part, own in identity.items():
        if state.get(part) != own:
            return (
                f"the state was made with {part} {state.get(part)!r}, this training has {own!r}; "
                f"resume with the same {part}"
            )
    return other_order(state, layout)


def part_of(by_device: Sequence[int], world: World) -> int:
    """Return this device's number of learners of a state: its own, or an even share if devices differ."""
    if len(by_device) == world.size:
        return by_device[world.rank]
    each, more = divmod(sum(by_device), world.size)
    return max(1, each + (world.rank < more))
