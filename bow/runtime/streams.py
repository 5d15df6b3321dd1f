"""Run a step graph on several streams of a device: issue order and memory lifetimes."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bow.devices import Event, Stream, StreamDevice
from bow.errors import GraphError, ScheduleError
from bow.graph import Operator, StepGraph
from bow.graph.execution import inputs_of, lent_generator, outputs_of, run_operator
from bow.graph.learning_step import StepOutputs
from bow.runtime.local import Dependencies, dependencies_of, in_turn, operators_of
from bow.schedule import DynamicSchedule, OrderedSchedule, PrioritySchedule, Schedule
from bow.schedule.scheduler import DecisionRecorder, ListScheduler, Start
from bow.schedule.scheduler.protocol import followers, simulate_operators
from bow.schedule.scheduler.stream_plan import START, StreamPlan
from bow.seeds import derive_seed


def issue_order(schedule: Schedule, dependencies: Dependencies, free: Collection[int] = ()) -> list[tuple[int, int]]:
    """Return the order in which the host issues operators: (stream, operator)."""
    # A schedule with an order: capture order, subject to the order on each stream. Priorities, or neither: list
    # scheduling in simulated time assigns the streams, and operators are issued in the order of their simulated starts.
    # With critical-path levels as priorities this is Graphi's critical-path-first schedule (Tang et al.: Scheduling
    # computation graphs of deep learning models on manycore CPUs, 2018, section 4.3). Without priorities, all operators
    # are assumed to take equally long.
    if isinstance(schedule, OrderedSchedule):
        return _as_ordered(schedule, dependencies)
    assert isinstance(schedule, DynamicSchedule)
    return _in_simulated_time(schedule, dependencies, free)


def costs_behind(levels: Sequence[int], dependencies: Dependencies) -> list[int]:
    """Return the operators' costs, from critical-path levels; 1 for all if the numbers are not levels."""
    following = followers(dependencies)
    costs = [
        level - max((levels[later] for later in following[index]), default=0) for index, level in enumerate(levels)
    ]
    return costs if min(costs, default=0) >= 0 and any(costs) else [1] * len(levels)


def _in_simulated_time(
    schedule: DynamicSchedule, dependencies: Dependencies, free: Collection[int]
) -> list[tuple[int, int]]:
    """Assign streams by list scheduling; operators with equal starts stay in the scheduler's order."""
    levels = schedule.priority if isinstance(schedule, PrioritySchedule) else None
    costs = [1] * len(dependencies) if levels is None else costs_behind(levels, dependencies)
    scheduler = ListScheduler(dependencies, len(schedule.threads), levels, schedule.stay, small=schedule.small)
    recorder = DecisionRecorder(scheduler)

    def duration(start: Start) -> int:
        return 0 if start.operator in free else costs[start.operator]

    simulate_operators(recorder, duration)
    return [(start.executor, start.operator) for start in recorder.decisions]


def _as_ordered(schedule: OrderedSchedule, dependencies: Dependencies) -> list[tuple[int, int]]:
    orders, waits = schedule.on_executors()
    stream_of = {index: stream for stream, own in enumerate(orders) for index in own}
    before = [others.union(waits.get(index, ())) for index, others in enumerate(map(set, dependencies))]
    for own in orders:
        for earlier, later in itertools.pairwise(own):
            before[later].add(earlier)
    lowest_first = PrioritySchedule((1,), tuple(-index for index in range(len(before))))
    return [(stream_of[index], index) for _, index in in_turn(lowest_first, [frozenset(others) for others in before])]


class MemoryUse:
    """Groups values that share memory, and the operators that use each group."""

    # A view is no use: the device does nothing for it. Capture has decomposed operators that are only sometimes views,
    # such as `reshape`; the remaining ones are always views of the first value that they read.

    def __init__(self, graph: StepGraph, operators: Sequence[Operator]) -> None:
        self._kernels = [operator for operator in operators if not operator.is_view]
        self._maker = {value: op.index for op in self._kernels for value in op.results if value is not None}
        self._viewed: dict[int, int] = {}
        # By operator: the views of its results, in capture order; and the views of inputs.
        self.views_of: dict[int, list[Operator]] = {operator.index: [] for operator in self._kernels}
        self.views_of_inputs: list[Operator] = []
        for view in operators:
            if view.is_view:
                source = self._root(view.reads[0])
                self._viewed.update({value: source for value in view.results if value is not None})
                (self.views_of[self._maker[source]] if source in self._maker else self.views_of_inputs).append(view)
        # By value that is no view: itself and its views.
        self.aliases: dict[int, list[int]] = {value: [value] for value in self._maker}
        for value, source in self._viewed.items():
            self.aliases.setdefault(source, [source]).append(value)
        # By value that an operator makes and that shares no memory with a result: the operators that use it, maker
        # first.
        self.uses = {
            value: [maker] for value, maker in self._maker.items() if graph.results.isdisjoint(self.aliases[value])
        }
        for operator in self._kernels:
            for value in {self._root(value) for value in operator.reads} & self.uses.keys():
                self.uses[value].append(operator.index)

    def dependencies(self) -> dict[int, set[int]]:
        return {
            operator.index: {self._maker[root] for root in map(self._root, operator.reads) if root in self._maker}
            for operator in self._kernels
        }

    def _root(self, value: int) -> int:
        return self._viewed.get(value, value)


class StreamRuntime:
    """Runs the operators of one learner's step graph on several streams of a device."""

    # A stream is an executor of the schedule; thread numbers are ignored. A step begins and ends on the first stream:
    # parameters, buffers and batch must be ready on it, and so are the results. Other streams wait for it, and for each
    # other, only where an operator needs another stream's result and no earlier wait covers it. The host issues
    # operators in the order of `issue_order`, so that no stream waits for work that the host issues much later. A view
    # costs the device nothing: it belongs to the stream that made its memory, whatever the schedule says, and is never
    # waited for. Runtimes that run concurrently need separate streams, in captured steps too: cuBLAS has one workspace
    # per stream.

    def __init__(self, graph: StepGraph, schedule: Schedule, device: StreamDevice, streams: Sequence[Stream]) -> None:
        if torch.device(graph.device) != device.torch_device:
            raise GraphError(
                f"the graph was captured for {graph.device}, the device is {device.torch_device}; capture it there"
            )
        operators = operators_of(graph)
        dependencies = dependencies_of(operators)
        schedule.check(dependencies)
        if len(streams) != len(schedule.threads):
            raise ScheduleError(
                f"the schedule has {len(schedule.threads)} executors, got {len(streams)} streams; "
                "give one stream for each executor"
            )
        self._graph = graph
        self._device = device
        self._streams = tuple(streams)
        memory = MemoryUse(graph, operators)
        views = {operator.index for operator in operators if operator.is_view}
        order = [pair for pair in issue_order(schedule, dependencies, free=views) if pair[1] not in views]
        before = memory.dependencies()
        for operator, other in schedule.after if isinstance(schedule, OrderedSchedule) else ():
            if views.isdisjoint((operator, other)):  # a view is no work for the device
                before[operator].add(other)
        self.plan = StreamPlan.of(order, before, len(streams))  # of operators that are no views
        place = {issued.task: streams[issued.stream].name for issued in self.plan.tasks} | {START: streams[0].name}
        self._events = {
            task: device.event(f"start of {place[task]}" if task == START else f"operator {task} of {place[task]}")
            for task in sorted(self.plan.awaited)
        }
        self._first_views = memory.views_of_inputs
        self._stretches = [
            (stream, list(steps))
            for stream, steps in itertools.groupby(self._steps(operators, memory), key=lambda step: step.stream)
        ]
        self._stream_of = {value: step.stream for _, steps in self._stretches for step in steps for value in step.makes}
        self._held: dict[int, list[Tensor]] = {}

    def run(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, *, seed: int | None = None
    ) -> StepOutputs:
        """Issue a step: bit for bit the result of `StepGraph.run` with this seed, whatever the schedule."""
        # It may be called within a capture, without a seed; call `close` before the capture if it ran outside of one.
        with torch.no_grad(), self._device.issuing(), self._device.on(self._streams[0]):
            live = inputs_of(self._graph, parameters, buffers, batch)
            try:
                self._issue(live, seed)
                return outputs_of(self._graph, live.__getitem__)
            finally:
                self._hold(live)

    def close(self) -> None:
        """Free the memory that a run left, once every stream waits for the work issued so far on the first one."""
        if not self._held:
            return
        over = self._device.event(f"end of {self._streams[0].name}")
        self._streams[0].record(over)
        for stream in self._held:
            self._streams[stream].wait(over)
        self._held.clear()

    def _steps(self, operators: Sequence[Operator], memory: MemoryUse) -> list["_IssuedOperator"]:
        allocations = list(memory.uses)
        steps = []
        begun: set[int] = set()
        for issued, gone in zip(self.plan.tasks, self.plan.releases(list(memory.uses.values())), strict=True):
            steps.append(
                _IssuedOperator(
                    operator=operators[issued.task],
                    views=tuple(memory.views_of[issued.task]),
                    stream=issued.stream,
                    is_first=issued.stream not in begun,
                    waits=tuple(self._events[task] for task in issued.waits),
                    over=self._events.get(issued.task),
                    finished=tuple(value for index in gone for value in memory.aliases[allocations[index]]),
                )
            )
            begun.add(issued.stream)
        return steps

    def _issue(self, live: dict[int, Tensor], seed: int | None) -> None:
        first = self._streams[0]
        begun: set[int] = set()
        if START in self._events:  # orders the inputs, and all earlier uses of memory, before the other streams
            first.record(self._events[START])
        try:
            self._issue_operators(live, seed, begun)
        except BaseException:
            self._abandon(begun)
            raise
        for task in self.plan.join:  # orders the results, and all uses of the inputs, before later work
            first.wait(self._events[task])

    def _issue_operators(self, live: dict[int, Tensor], seed: int | None, begun: set[int]) -> None:
        for view in self._first_views:
            run_operator(view, live, self._graph)
        with lent_generator(self._graph.device, seed is not None) as generator:
            for number, steps in self._stretches:
                stream = self._streams[number]
                with self._device.on(stream):
                    for step in steps:
                        for event in step.waits:
                            stream.wait(event)
                        if step.is_first:
                            begun.add(number)
                            self._held.pop(number, None)
                        if step.operator.is_random and seed is not None:
                            generator.manual_seed(derive_seed(seed, step.operator.index))
                        step.run(live, self._graph)
                        if step.over is not None:
                            stream.record(step.over)

    def _abandon(self, begun: set[int]) -> None:
        """Join the streams after a failed step: they may still read memory that the caller is going to change."""
        for number in begun - {0}:
            over = self._device.event(f"end of {self._streams[number].name}")
            self._streams[number].record(over)
            self._streams[0].wait(over)

    def _hold(self, live: Mapping[int, Tensor]) -> None:
        """Keep results of other streams than the first until those streams have waited for it."""
        # Freed memory returns to the stream that allocated it, which would reuse it at once. Only after the first wait
        # of the next step is it ordered after the other streams, and after the readers of the results.
        for value, tensor in live.items():
            stream = self._stream_of.get(value, 0)
            if stream:
                self._held.setdefault(stream, []).append(tensor)


@dataclass(frozen=True)
class _IssuedOperator:
    operator: Operator
    views: tuple[Operator, ...]  # of its results
    stream: int
    is_first: bool  # first on its stream
    waits: tuple[Event, ...]  # events its stream waits for first
    over: Event | None  # recorded after it, if another stream waits for it
    finished: tuple[int, ...]  # values not read any more, whose memory its stream may reuse

    @property
    def makes(self) -> list[int]:
        return [value for operator in (self.operator, *self.views) for value in operator.results if value is not None]

    def run(self, live: dict[int, Tensor], graph: StepGraph) -> None:
        run_operator(self.operator, live, graph)
        for view in self.views:
            run_operator(view, live, graph)
        for value in self.finished:
            del live[value]
