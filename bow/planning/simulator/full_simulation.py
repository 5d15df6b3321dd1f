"""When every task of a task graph runs, worked out from nothing."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from bow.planning.simulator.task_graph import TaskGraph
from bow.planning.simulator.tasks import Identity


@dataclass(frozen=True)
class TaskTime:
    """When a task runs, in nanoseconds since the step began.

    Attributes:
        ready_ns: when all that it waits for was over.
        start_ns: when everything that it occupies was free as well.
        end_ns: when it was over.
    """

    ready_ns: int
    start_ns: int
    end_ns: int


def simulate_tasks(graph: TaskGraph) -> list[TaskTime]:
    """When every task runs.

    Every device and every channel takes tasks in the order in which they became ready; a task that occupies several
    places starts when all of them are free. Tasks come out of one queue in the order of (ready time, identity): what
    a task waits for comes out before it, and whatever comes out later is later in the queue of every place, too.

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, Algorithm 1.
    """
    missing = [len(before) for before in graph.predecessors]
    after = successors(graph)
    ready_ns = [0] * len(graph.tasks)
    free_ns: dict[int, int] = {}
    times: list[TaskTime | None] = [None] * len(graph.tasks)
    queue: list[tuple[int, Identity, int]] = [
        (0, task.identity, number) for number, task in enumerate(graph.tasks) if not missing[number]
    ]
    heapq.heapify(queue)
    while queue:
        ready, _, number = heapq.heappop(queue)
        task = graph.tasks[number]
        start = max([ready, *(free_ns.get(place, 0) for place in task.places)])
        end = start + task.duration_ns
        times[number] = TaskTime(ready, start, end)
        free_ns.update(dict.fromkeys(task.places, end))
        for later in after[number]:
            ready_ns[later] = max(ready_ns[later], end)
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(queue, (ready_ns[later], graph.tasks[later].identity, later))
    done = [time for time in times if time is not None]
    assert len(done) == len(times), "tasks wait for each other"
    return done


def successors(graph: TaskGraph) -> list[list[int]]:
    """By task: those that wait for it."""
    after: list[list[int]] = [[] for _ in graph.tasks]
    for number, before in enumerate(graph.predecessors):
        for earlier in before:
            after[earlier].append(number)
    return after


def makespan_ns(times: Sequence[TaskTime]) -> int:
    """When the last task is over."""
    return max((time.end_ns for time in times), default=0)
