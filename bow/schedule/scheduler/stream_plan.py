"""Plan tasks on streams ordered by events: necessary waits, and points at which memory can be released."""

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

START = -1  # pseudo-task: the beginning, on stream 0


@dataclass(frozen=True)
class PlannedTask:
    """A task with its stream and waits."""

    task: int
    stream: int
    waits: tuple[int, ...]  # tasks of other streams, or `START`, that the stream waits for first


@dataclass(frozen=True)
class StreamPlan:
    """Tasks in issue order; everything begins and ends on stream 0."""

    # A stream runs its own tasks in order, so it waits only for tasks of other streams, and only if no earlier wait
    # implies that they have finished: the cross-stream edges of the transitive reduction of the required order.

    num_streams: int
    tasks: tuple[PlannedTask, ...]  # in issue order
    join: tuple[int, ...]  # tasks that stream 0 waits for at the end

    @classmethod
    def of(
        cls, order: Sequence[tuple[int, int]], dependencies: Mapping[int, Collection[int]], num_streams: int
    ) -> "StreamPlan":
        known = _VectorClocks(num_streams)
        tasks = []
        for stream, task in order:
            tasks.append(PlannedTask(task, stream, known.minimal_waits(stream, (START, *dependencies[task]))))
            known.issue(tasks[-1])
        return cls(num_streams, tuple(tasks), known.minimal_waits(0, [issued.task for issued in tasks]))

    @property
    def awaited(self) -> frozenset[int]:
        """The tasks that some stream waits for: an event is recorded after each."""
        return frozenset({*self.join, *(task for issued in self.tasks for task in issued.waits)})

    def releases(self, allocations: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return by task the allocations that can be released after it."""
        # Memory returns to the stream that allocated it, whose next task may reuse it without waiting. So this stream
        # must know by then that all other streams have finished with it.
        known = _VectorClocks(self.num_streams)
        clocks: list[list[tuple[int, ...]]] = [[] for _ in range(self.num_streams)]
        positions: list[list[int]] = [[] for _ in range(self.num_streams)]
        for position, issued in enumerate(self.tasks):
            clocks[issued.stream].append(known.issue(issued))
            positions[issued.stream].append(position)
        released: list[list[int]] = [[] for _ in self.tasks]
        for allocation, uses in enumerate(allocations):
            stream = known.stream_of(uses[0])
            first = bisect.bisect_left(
                clocks[stream], True, key=lambda clock: all(known.is_over(task, clock) for task in uses)
            )
            if first < len(clocks[stream]):
                released[positions[stream][first]].append(allocation)
        return released


class _VectorClocks:
    """The finished tasks known to each stream, as vector clocks: number of tasks by stream."""

    def __init__(self, num_streams: int) -> None:
        self._clocks = [(0,) * num_streams for _ in range(num_streams)]
        self._ends: dict[int, tuple[int, int]] = {}  # by task: its stream, and its position there (from 1)
        self._clock_after: dict[int, tuple[int, ...]] = {}  # by task: clock of a stream that waits for it
        self.issue(PlannedTask(START, 0, ()))

    def issue(self, issued: PlannedTask) -> tuple[int, ...]:
        """Issue a task after its waits; return the stream's new clock."""
        own, *others = self._clocks[issued.stream], *(self._clock_after[task] for task in issued.waits)
        clock = [max(counts) for counts in zip(own, *others, strict=True)]
        clock[issued.stream] += 1
        self._ends[issued.task] = issued.stream, clock[issued.stream]
        self._clock_after[issued.task] = self._clocks[issued.stream] = tuple(clock)
        return tuple(clock)

    def minimal_waits(self, stream: int, tasks: Iterable[int]) -> tuple[int, ...]:
        """Return the minimal subset of tasks to wait for so that all of them have finished."""
        last: dict[int, int] = {}  # by stream
        for task in tasks:
            if not self.is_over(task, self._clocks[stream]):
                other = self.stream_of(task)
                last[other] = max(task, last.get(other, task), key=self._ends.__getitem__)
        return tuple(
            task
            for _, task in sorted(last.items())
            if not any(self.is_over(task, self._clock_after[other]) for other in last.values() if other != task)
        )

    def stream_of(self, task: int) -> int:
        return self._ends[task][0]

    def is_over(self, task: int, clock: Sequence[int]) -> bool:
        stream, count = self._ends[task]
        return clock[stream] >= count
