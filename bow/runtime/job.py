"""Step graphs as nodes of a native job, and the mapping of a schedule to executors and cores."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bow.devices import core_sets
from bow.graph import Operator, Ref, StepGraph
from bow.graph.kinds import is_update
from bow.graph.operator import map_refs
from bow.runtime.loading import NativeJob, native
from bow.runtime.region import Region
from bow.schedule import OrderedSchedule, Schedule

ALONE = -1  # the "learner" of nodes that belong to none


@dataclass(frozen=True)
class Label:
    """Description of a node, for messages and timelines."""

    name: str
    category: str
    learner: int = ALONE
    operator: Operator | None = None


@dataclass(frozen=True)
class GraphCopy:
    """One learner's copy of a step graph in a job; its slots are the graph's values, shifted by `base`."""

    graph: StepGraph
    learner: int
    group: int  # the learner's number in the job
    base: int
    nodes: list[int] = field(default_factory=list)  # in an order in which they can run

    def slot(self, value: int) -> int:
        return value + self.base

    def slots(self, values: Sequence[int]) -> list[int]:
        return [value + self.base for value in values]


class JobBuilder:
    """Builds a native job from copies of step graphs."""

    def __init__(
        self,
        graphs: Sequence[StepGraph],
        regions: Sequence[Region | None],
        learners: Sequence[int] | None = None,
    ) -> None:
        sizes = [max(graph.values) + 1 for graph in graphs]
        bases = [0, *itertools.accumulate(sizes)]
        self.job: NativeJob = native().Job(bases[-1])
        self.labels: list[Label] = []  # by node
        numbers = range(len(graphs)) if learners is None else learners
        self.copies = [
            GraphCopy(graph, learner, group, base)
            for group, (graph, learner, base) in enumerate(zip(graphs, numbers, bases, strict=False))
        ]
        for copy, region in zip(self.copies, regions, strict=True):
            self._add_copy(copy, region)

    def note(self, node: int, label: Label) -> int:
        assert node == len(self.labels)
        self.labels.append(label)
        return node

    def copy_of(self, node: int) -> GraphCopy | None:
        learner = self.labels[node].learner
        return next((copy for copy in self.copies if copy.learner == learner), None)

    def bind(self, copy: GraphCopy, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Bind a learner's parameters and buffers; the job reads these tensors' values at run time."""
        graph = copy.graph
        for names, tensors in ((graph.parameters, parameters), (graph.buffers, buffers)):
            for name, value in names.items():
                self.job.bind(copy.slot(value), tensors[name].detach())
        for value, constant in graph.constants.items():
            self.job.bind(copy.slot(value), constant)
        self.job.keep(copy.slots([*graph.batch.values(), *graph.results]))

    def _add_copy(self, copy: GraphCopy, region: Region | None) -> None:
        if region is None:
            for op in copy.graph.operators:
                if not is_update(op.kind):
                    self._add_operator(copy, op)
            return
        for draw in region.draws:
            for value in draw.reads:  # its shape alone is read
                self.job.bind(copy.slot(value), copy.graph.values[value].empty())
            self._add_operator(copy, draw)
        node = self.job.add_region(str(region.library), copy.slots(region.reads), copy.slots(region.makes), copy.group)
        copy.nodes.append(self.note(node, Label("compiled region", "region", copy.learner)))

    def _add_operator(self, copy: GraphCopy, op: Operator) -> None:
        slot = native().Slot

        def moved(ref: Ref) -> Any:
            return slot(copy.slot(ref.value))

        namespace, name, overload = op.kind.split(".")
        node = self.job.add_operator(
            name=f"{namespace}::{name}",
            overload="" if overload == "default" else overload,
            arguments=list(map_refs(moved, op.arguments)),
            keywords={name: map_refs(moved, value) for name, value in op.keywords.items()},
            makes=[ALONE if value is None else copy.slot(value) for value in op.results],
            is_view=op.is_view and name != "as_strided",  # its offset counts from the start of the memory
            group=copy.group,
            random_index=op.index if op.is_random else ALONE,
        )
        copy.nodes.append(self.note(node, Label(op.kind, op.phase, copy.learner, op)))


@dataclass(frozen=True)
class Affinity:
    """Placement of operators on the executors of a native job, and of executors on cores."""

    # By executor: its operators, each on one executor only; empty: no order.
    order: tuple[tuple[int, ...], ...]
    waits: dict[int, list[int]]  # by operator: others to wait for without reading their results
    operator_threads: tuple[int, ...]  # by operator; empty: its executor's number
    cores: tuple[tuple[int, ...], ...]  # by executor: affinity of its thread and of those it starts
    threads: tuple[int, ...]  # by executor: maximum of its operators

    @classmethod
    def of(cls, schedule: Schedule, operators: int, cores: Sequence[Sequence[int]] | None = None) -> "Affinity":
        own = tuple(map(tuple, core_sets(list(schedule.threads)) if cores is None else cores))
        if not isinstance(schedule, OrderedSchedule):
            return cls((), {}, (), own, schedule.threads)
        order, waits = schedule.on_executors()
        holds = schedule.executors_of(operators)
        if all(len(held) <= 1 for held in holds):
            return cls(tuple(map(tuple, order)), waits, (), own, schedule.threads)
        threads = tuple(sum(schedule.threads[each] for each in held) for held in holds)
        # The threads that an operator is divided among keep to the cores of the executor that starts them.
        reach = [
            {*mine, *(core for index in listed for each in holds[index] for core in own[each])}
            for mine, listed in zip(own, order, strict=True)
        ]
        most = tuple(
            max((threads[index] for index in listed), default=least)
            for listed, least in zip(order, schedule.threads, strict=True)
        )
        return cls(tuple(map(tuple, order)), waits, threads, tuple(tuple(sorted(cores)) for cores in reach), most)
