"""Learning tasks as step graphs: which shapes of batches have one, and which are compiled."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from bow.engine.frozen import FrozenValues
from bow.engine.outcome import TaskSettings
from bow.engine.task import Batch, Step, autocast
from bow.errors import CaptureError, DataError, RuntimeUnavailableError, reason
from bow.graph import StepGraph, capture
from bow.replica import LearnerGroup
from bow.runtime import Region, compile_region, is_compiled

MAX_SHAPES = 8
"""Batches of so many different shapes are captured, each when it comes for the second time; others run in `eager`."""

MAX_CHANGES = 8
"""Values in Python that are frozen into a graph may change so often; then the training goes on in `eager`."""

MAX_SEEN = 1000
"""So many shapes that came once are remembered."""

COMPILING_PAYS_S = 120
"""A learning task is compiled, which takes half a minute, when running it operator by operator would take so long in
all: by FLOPs and operators at the rates below, and not by the clock, so that the same training always runs alike."""

COMPILE_S, COMPILE_OPERATOR_S, COMPILE_REPEATED_S, MOST_DIFFERENT = 10.0, 0.1, 0.0085, 100
"""What compiling takes at all, and for each operator, on two cores of 2026 (LeNet 14 s, ResNet-8 23 s, an LSTM 34 s):
an expectation for those who plan. In large graphs most operators are repetitions, which take less."""

FLOPS_PER_S = 20e9
OPERATOR_S = 5e-6

Shape: TypeAlias = tuple[Any, ...]
"""How a batch is made up; whether the caller has autocast on; shape, strides and dtype of every tensor."""

NO_SHAPE: Shape = ()


@dataclass(frozen=True)
class CapturedTask:
    """A learning task for batches of certain shapes."""

    graph: StepGraph
    region: Region | None
    """What runs it as a whole; None: operator by operator."""


class CapturedTasks:
    """The learning task of a training as step graphs, one for each shape of batch that is worth it.

    Args:
        group: the learners, which have one model.
        settings: what their learning tasks have in common.
        tell: says what a user should know.
    """

    def __init__(self, group: LearnerGroup, settings: TaskSettings, tell: Callable[[str], None]) -> None:
        self._group = group
        self._settings = settings
        self._tell = tell
        self._step = with_autocast(settings.step, group.device, settings.precision)
        self._frozen: FrozenValues | None = None
        self._num_changes = 0
        self._unstable: str | None = None
        self._tasks: dict[Shape, CapturedTask] = {}
        self._seen: dict[Shape, int] = {}  # in which round first
        self.refusal: str | None = None
        """Why capturing has failed since somebody put None here."""

    def __iter__(self) -> Iterator[Shape]:
        return iter(self._tasks)

    def __contains__(self, shape: object) -> bool:
        return shape in self._tasks

    def __getitem__(self, shape: Shape) -> CapturedTask:
        return self._tasks[shape]

    def forget_if_changed(self) -> bool:
        """Whether a value in Python that the graphs have frozen has changed; then there are none any more."""
        name = self._frozen.changed() if self._frozen is not None else None
        if name is None:
            return False
        self._tasks.clear()
        self._frozen = None
        self._num_changes += 1
        if self._num_changes > MAX_CHANGES:
            self._unstable = (
                f"{name!r} changes in Python again and again, and the step would be captured anew each time"
            )
        return True

    @property
    def any_compiled(self) -> bool:
        """Whether one of them is a compiled region."""
        return any(task.region is not None for task in self._tasks.values())

    @property
    def compile_s(self) -> float | None:
        """Seconds that compiling may take, 0 where it was done before; None where nothing is captured that could be."""
        task = next(iter(self._tasks.values()), None)
        if task is None:
            return None
        if is_compiled(task.graph):
            return 0.0
        count = len(task.graph.operators)
        return COMPILE_S + COMPILE_OPERATOR_S * min(count, MOST_DIFFERENT) + COMPILE_REPEATED_S * count

    def by_learner(
        self, batches: Sequence[Batch | None], shapes: Sequence[Shape | None], round_index: int
    ) -> list[CapturedTask] | None:
        """The learning task of every learner, any other's where it has no batch; None if one has to run in `eager`."""
        present = {shape: batch for shape, batch in zip(shapes, batches, strict=True) if shape is not None}
        tasks = {shape: self._task(shape, batch, round_index) for shape, batch in present.items()}
        found = [task for task in tasks.values() if task is not None]
        if len(found) < len(tasks) or not found:
            return None
        return [found[0] if shape is None else self._tasks[shape] for shape in shapes]

    def _task(self, shape: Shape, batch: Batch, round_index: int) -> CapturedTask | None:
        if shape in self._tasks:
            return self._tasks[shape]
        if shape is NO_SHAPE or self._unstable is not None:
            self.refusal = self._unstable or "a batch holds something that is no dense tensor"
            return None
        first = not self._tasks
        if len(self._seen) > MAX_SEEN:
            self._seen.clear()
        seen = self._seen.setdefault(shape, round_index) < round_index
        if not first and (not seen or len(self._tasks) == MAX_SHAPES):
            return None
        try:
            graph = self._capture(batch)
        except (CaptureError, DataError) as error:
            self.refusal = reason(error)
            return None
        self._tasks[shape] = CapturedTask(graph, self._region(graph) if first and not self._num_changes else None)
        return self._tasks[shape]

    def _capture(self, batch: Batch) -> StepGraph:
        """The step graph for a batch.

        Raises:
            CaptureError: the step cannot be captured, or a graph would not do what it does.
        """
        model = self._group.learners[0].module
        frozen = self._frozen or FrozenValues(self._settings.step, model)
        graph = capture(model, batch, step=self._step)
        if name := frozen.changed():
            raise CaptureError(f"the step changes {name!r} in Python, which a graph would not repeat; use a buffer")
        _check_buffers(graph)
        self._frozen = frozen
        return graph

    def _region(self, graph: StepGraph) -> Region | None:
        if self._settings.schedule is not None:  # a region is one operator
            return None
        if not (self._settings.compile or compiling_pays(graph, self._settings.rounds)):
            return None
        try:
            return compile_region(graph)
        except RuntimeUnavailableError as error:
            self._tell(f"the learning task is not compiled ({reason(error)}); it runs operator by operator")
            return None


def leaves_of(batch: Batch) -> list[Any]:
    """The tensors of a batch, in the order that the step graph has them."""
    if type(batch) is tuple and all(type(leaf) is Tensor for leaf in batch):  # almost always, and in no time
        return list(batch)
    return tree_leaves(batch)


def structure_of(batch: Batch) -> Any:
    """How a batch is made up of tensors; None where it holds something else."""
    if type(batch) is tuple and all(type(leaf) is Tensor for leaf in batch):
        return len(batch)
    leaves, spec = tree_flatten(batch)
    return spec if leaves and all(isinstance(leaf, Tensor) for leaf in leaves) else None


def shape_of(batch: Batch) -> Shape:
    """What sets batches apart for a step graph; `NO_SHAPE` where it cannot take one."""
    structure = structure_of(batch)
    if structure is None or any(leaf.layout is not torch.strided for leaf in leaves_of(batch)):
        return NO_SHAPE
    name = structure if isinstance(structure, int) else str(structure)
    return (
        name,
        torch.is_autocast_enabled("cpu"),
        *((leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves_of(batch)),
    )


def _check_buffers(graph: StepGraph) -> None:
    """Refuse a step that makes something else of a buffer than a tensor of its kind.

    Raises:
        CaptureError: it does.
    """
    for name, value in graph.new_buffers.items():
        before, after = graph.values[graph.buffers[name]], graph.values[value]
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise CaptureError(
                f"the step makes {after} of buffer {name!r}, which was {before}; keep its shape and dtype"
            )


def compiling_pays(graph: StepGraph, rounds: int | None) -> bool:
    """Whether compiling a learning task will have been worth its time.

    Args:
        graph: the learning task.
        rounds: how many the training has; None where that is unknown.
    """
    if rounds is None:
        return False
    seconds = graph.flops / FLOPS_PER_S + len(graph.operators) * OPERATOR_S
    return rounds * seconds >= COMPILING_PAYS_S


def with_autocast(step: Step, device: torch.device, precision: str | None) -> Step:
    """A step that computes in the precision that was asked for, however it is captured."""
    if precision is None:
        return step

    def run(model: nn.Module, batch: Batch) -> Any:
        with autocast(device, precision):
            return step(model, batch)

    return run
