"""Tasks on several streams that only events order: where a stream has to wait, and when memory can go back."""

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

START = -1
"""Stands for a task: the beginning of all, on stream 0."""


@dataclass(frozen=True)
class PlannedTask:
    """A task, and where it is issued."""

    task: int
    stream: int
    waits: tuple[int, ...]  # tasks of other streams, or `START`: the stream waits for the end of each first


@dataclass(frozen=True)
class StreamPlan:
    """Tasks in the order in which they are issued, and the waits that this takes.

    All begins and ends on stream 0: no task runs before what was issued there in front of the plan, and what is issued
    there behind the plan runs after all tasks. A stream runs its own tasks in order, so it waits for tasks of other
    streams only, and only where nothing that it has waited for says that they are over. The waits are those edges
    between streams that the transitive reduction of everything that has to be ordered keeps: none can be left out.
    """

    num_streams: int
    tasks: tuple[PlannedTask, ...]  # in the order of issue
    join: tuple[int, ...]  # tasks that stream 0 waits for in the end

    @classmethod
    def of(
        cls, order: Sequence[tuple[int, int]], dependencies: Mapping[int, Collection[int]], num_streams: int
    ) -> "StreamPlan":
        """The plan for tasks in an order."""
        known = _VectorClocks(num_streams)
        tasks = []
        for stream, task in order:
            tasks.append(PlannedTask(task, stream, known.still_open(stream, (START, *dependencies[task]))))
            known.issue(tasks[-1])
        return cls(num_streams, tuple(tasks), known.still_open(0, [issued.task for issued in tasks]))

    @property
    def awaited(self) -> frozenset[int]:
        """The tasks that some stream waits for: an event stands behind each."""
        return frozenset({*self.join, *(task for issued in self.tasks for task in issued.waits)})

    def releases(self, allocations: Sequence[Sequence[int]]) -> list[list[int]]:
        """Which memory can go back behind which task.

        Memory goes back to the stream that allocated it, whose next task may be given it without waiting.
        So this stream has to know by then that all others are done with it.
        """
        known = _VectorClocks(self.num_streams)
        clocks: list[list[tuple[int, ...]]] = [[] for _ in range(self.num_streams)]
        positions: list[list[int]] = [[] for _ in range(self.num_streams)]
        for position, issued in enumerate(self.tasks):
            clocks[issued.stream].append(known.issue(issued))
            positions[issued.stream].append(position)
        released: list[list[int]] = [[] for _ in self.tasks]
        for allocation, uses in enumerate(allocations):
            stream = known.stream_of(uses[0])
            first = bisect.bisect_left(clocks[stream], True, key=lambda clock: known.all_over(uses, clock))
            if first < len(clocks[stream]):
                released[positions[stream][first]].append(allocation)
        return released


class _VectorClocks:
    """What every stream knows to be over, as vector clocks: by stream, how many of its tasks."""

    def __init__(self, num_streams: int) -> None:
        self._clocks = [(0,) * num_streams for _ in range(num_streams)]
        self._ends: dict[int, tuple[int, int]] = {}  # by task: its stream, and how manieth it is there
        self._behind: dict[int, tuple[int, ...]] = {}  # by task: what a stream that waits for it knows
        self.issue(PlannedTask(START, 0, ()))

    def issue(self, issued: PlannedTask) -> tuple[int, ...]:
        """A stream waits and is given its next task; what it knows from then on."""
        own, *others = self._clocks[issued.stream], *(self._behind[task] for task in issued.waits)
        clock = [max(counts) for counts in zip(own, *others, strict=True)]
        clock[issued.stream] += 1
        self._ends[issued.task] = issued.stream, clock[issued.stream]
        self._behind[issued.task] = self._clocks[issued.stream] = tuple(clock)
        return tuple(clock)

    def still_open(self, stream: int, tasks: Iterable[int]) -> tuple[int, ...]:
        """The fewest of some tasks that a stream has to wait for, to know that all of them are over."""
        last: dict[int, int] = {}  # by stream
        for task in tasks:
            if not self._is_over(task, self._clocks[stream]):
                other = self.stream_of(task)
                last[other] = max(task, last.get(other, task), key=self._ends.__getitem__)
        return tuple(
            task
            for _, task in sorted(last.items())
            if not any(self._is_over(task, self._behind[other]) for other in last.values() if other != task)
        )

    def all_over(self, tasks: Iterable[int], clock: Sequence[int]) -> bool:
        """Whether a clock says that all these tasks are over."""
        return all(self._is_over(task, clock) for task in tasks)

    def stream_of(self, task: int) -> int:
        return self._ends[task][0]

    def _is_over(self, task: int, clock: Sequence[int]) -> bool:
        stream, count = self._ends[task]
        return clock[stream] >= count
