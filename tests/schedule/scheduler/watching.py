"""What a scheduler heard and said, and whether that can be carried out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from bow.schedule import Timeline
from bow.schedule.scheduler import OperatorScheduler, Start
from tests.schedule.scheduler.graphs import Dependencies


@dataclass
class Event:
    """An operator has finished, or none: the step begins."""

    now_ns: int
    finished: int | None
    starts: list[Start]


@dataclass
class Watched:
    """A scheduler, and all events of its last step."""

    scheduler: OperatorScheduler
    events: list[Event] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.scheduler.done

    @property
    def starts(self) -> list[Start]:
        return [start for event in self.events for start in event.starts]

    def start(self, now_ns: int = 0) -> list[Start]:
        self.events = [Event(now_ns, None, self.scheduler.start(now_ns))]
        return self.events[-1].starts

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        self.events.append(Event(now_ns, operator, self.scheduler.finished(operator, now_ns)))
        return self.events[-1].starts


@dataclass
class Moment:
    """Where a step stands: rebuilt from what was heard and said, by nothing else."""

    before: Dependencies
    finished: set[int] = field(default_factory=set)
    running: dict[int, Start] = field(default_factory=dict)
    ready: list[int] = field(default_factory=list)
    """As they became ready; of several at once, the lowest number first."""

    def __post_init__(self) -> None:
        self._found: set[int] = set()
        self._find_ready()

    def hear(self, finished: int | None) -> None:
        if finished is not None:
            del self.running[finished]
            self.finished.add(finished)
            self._find_ready()

    def carry_out(self, start: Start) -> None:
        self.ready.remove(start.operator)  # fails for one that waits for others, or was started before
        self.running[start.operator] = start

    def _find_ready(self) -> None:
        left = [index for index in range(len(self.before)) if index not in self._found]
        new = [index for index in left if self.finished.issuperset(self.before[index])]
        self._found.update(new)
        self.ready += new


def check_carried_out(timeline: Timeline, before: Dependencies) -> None:
    """Nothing too early, nothing twice, nothing lost, and nothing on a place where something else runs."""
    times: dict[int, set[tuple[int, int]]] = {}
    for span in timeline.spans:
        times.setdefault(int(span.details["operator"]), set()).add((span.start_ns, span.end_ns))
    assert sorted(times) == list(range(len(before)))
    assert all(len(each) == 1 for each in times.values())  # on all its cores at the same time
    starts = {index: start for index, ((start, _),) in ((index, tuple(each)) for index, each in times.items())}
    ends = {index: end for index, ((_, end),) in ((index, tuple(each)) for index, each in times.items())}
    for index, earlier in enumerate(before):
        assert all(ends[each] <= starts[index] for each in earlier)
    for place in timeline.places:
        own = sorted((span.start_ns, span.end_ns) for span in timeline.spans if span.place == place)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(own))
    places: Sequence[tuple[str, int]] = [(span.place, int(span.details["operator"])) for span in timeline.spans]
    assert len(set(places)) == len(places)
