"""Step graphs as nodes of a native job."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bow.graph import Operator, Ref, StepGraph
from bow.graph.kinds import is_update
from bow.graph.operator import map_refs
from bow.runtime.loading import NativeJob, native
from bow.runtime.region import Region

ALONE = -1
"""Stands for a learner where a node belongs to none."""


@dataclass(frozen=True)
class Label:
    """What a node is, for messages and timelines."""

    name: str
    category: str
    learner: int = ALONE
    operator: Operator | None = None


@dataclass(frozen=True)
class Program:
    """One learner's copy of a step graph in a job.

    The values of all learners lie in one list of slots: a learner's are the graph's, moved up by `base`.
    """

    graph: StepGraph
    learner: int
    group: int
    """The learner's number in the job."""
    base: int
    nodes: list[int] = field(default_factory=list)
    """In an order in which they can run."""

    def slot(self, value: int) -> int:
        """Where a value of the graph lies."""
        return value + self.base

    def slots(self, values: Sequence[int]) -> list[int]:
        """Where several values lie."""
        return [value + self.base for value in values]


class JobBuilder:
    """Builds a native job from copies of step graphs.

    Args:
        graphs: by learner.
        regions: by learner: what runs in the place of the graph's operators; None: one by one.
        learners: the numbers of these learners, for messages and timelines; None: 0, 1, 2, ...

    Raises:
        RuntimeUnavailableError: there is no native runtime.
    """

    def __init__(
        self,
        graphs: Sequence[StepGraph],
        regions: Sequence[Region | None],
        learners: Sequence[int] | None = None,
    ) -> None:
        sizes = [max(graph.values) + 1 for graph in graphs]
        bases = [0, *itertools.accumulate(sizes)]
        self.job: NativeJob = native().Job(bases[-1])
        self.labels: list[Label] = []
        """By node."""
        numbers = range(len(graphs)) if learners is None else learners
        self.programs = [
            Program(graph, learner, group, base)
            for group, (graph, learner, base) in enumerate(zip(graphs, numbers, bases, strict=False))
        ]
        for program, region in zip(self.programs, regions, strict=True):
            self._add_program(program, region)

    def note(self, node: int, label: Label) -> int:
        """Remember what a node is that was added to the job."""
        assert node == len(self.labels)
        self.labels.append(label)
        return node

    def program_of(self, node: int) -> Program | None:
        """Whose learning task a node belongs to, if to one."""
        learner = self.labels[node].learner
        return next((program for program in self.programs if program.learner == learner), None)

    def bind(self, program: Program, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Give a learner its parameters and buffers: what these tensors hold when the job runs is what is read."""
        graph = program.graph
        for names, tensors in ((graph.parameters, parameters), (graph.buffers, buffers)):
            for name, value in names.items():
                self.job.bind(program.slot(value), tensors[name].detach())
        for value, constant in graph.constants.items():
            self.job.bind(program.slot(value), constant)
        self.job.keep(program.slots([*graph.batch.values(), *graph.results]))

    def _add_program(self, program: Program, region: Region | None) -> None:
        if region is None:
            for op in program.graph.operators:
                if not is_update(op.kind):
                    self._add_operator(program, op)
            return
        for draw in region.draws:
            for value in draw.reads:
                self.job.bind(program.slot(value), _shape_of(program.graph, value))
            self._add_operator(program, draw)
        node = self.job.add_region(
            str(region.library), program.slots(region.reads), program.slots(region.makes), program.group
        )
        program.nodes.append(self.note(node, Label("compiled region", "region", program.learner)))

    def _add_operator(self, program: Program, op: Operator) -> None:
        slot = native().Slot

        def moved(ref: Ref) -> Any:
            return slot(program.slot(ref.value))

        namespace, name, overload = op.kind.split(".")
        node = self.job.add_operator(
            name=f"{namespace}::{name}",
            overload="" if overload == "default" else overload,
            arguments=list(map_refs(moved, op.arguments)),
            keywords={name: map_refs(moved, value) for name, value in op.keywords.items()},
            makes=[ALONE if value is None else program.slot(value) for value in op.results],
            is_view=op.is_view and name != "as_strided",  # whose offset counts from the beginning of the memory
            group=program.group,
            random_index=op.index if op.is_random else ALONE,
        )
        program.nodes.append(self.note(node, Label(op.kind, op.phase, program.learner, op)))


def _shape_of(graph: StepGraph, value: int) -> Tensor:
    """A tensor that is never written to, which costs no memory: only its shape is read."""
    spec = graph.values[value]
    return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype)
