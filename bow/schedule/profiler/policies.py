"""The policies that can run a step: one schedule each, made from what operators cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bow.devices import available_cores, physical_first
from bow.devices.topology import read_topology
from bow.runtime.issue import operators_of
from bow.schedule import Schedule, Timeline
from bow.schedule.profiler.profile import Profile
from bow.schedule.profiler.subject import Subject
from bow.schedule.scheduler import (
    CacheTimes,
    CoRunScheduler,
    Disturbances,
    ListScheduler,
    Recorder,
    Scheduler,
    Start,
    critical_path,
    held_by_core,
    kept_apart,
)
from bow.schedule.simulator import simulate_operators

SMALL_NS = 2_000
"""An operator that takes no longer than this runs where it becomes ready: handing it over would take as long."""


STRATEGIES: tuple[Literal[1, 2, 3], ...] = (1, 2, 3)


@dataclass(frozen=True, eq=False)
class Policy:
    """A way of running a step.

    Attributes:
        name: for people.
        schedule: what carries it out.
        predicted: the simulated timeline.
    """

    name: str
    schedule: Schedule
    predicted: Timeline

    @property
    def is_sequential(self) -> bool:
        """Whether operators run one after another."""
        return len(self.schedule.threads) == 1


def make_policies(subject: Subject, profile: Profile, cores: int) -> list[Policy]:
    """Every policy that bow knows, for a step on so many cores.

    * sequential: one executor, with each number of threads;
    * first come: one queue for all executors, as TensorFlow and MXNet have it, with each uniform number of executors
      and threads;
    * critical path: Graphi's, the same; and its order as it is simulated, carried out without asking again;
    * strategies 1 to 3 of Liu et al., their decisions reused from step to step.
    """
    return [
        *_sequential(subject, profile),
        *_uniform(subject, profile, cores),
        *(strategy_policy(subject, profile, cores, number) for number in STRATEGIES),
    ]


def configurations(cores: int) -> list[tuple[int, int]]:
    """Numbers of executors, and of threads for each, that fill the cores as far as they can (Graphi, section 4.2).

    Example:
        >>> configurations(8)
        [(1, 8), (2, 4), (4, 2), (8, 1)]
    """
    counts = [2**power for power in range(cores.bit_length()) if 2**power <= cores]
    return [(count, cores // count) for count in sorted({*counts, cores})]


def _sequential(subject: Subject, profile: Profile) -> Iterator[Policy]:
    for threads in profile.threads:
        times = profile.nanoseconds(threads)
        name = f"sequential, {_count(threads, 'thread')}"
        scheduler = ListScheduler(subject.dependencies, executors=1, priority=[-index for index in range(len(times))])
        yield Policy(name, Schedule.sequential(len(times), threads), _simulated(subject, scheduler, times))


def _uniform(subject: Subject, profile: Profile, cores: int) -> Iterator[Policy]:
    before = subject.dependencies
    for executors, threads in configurations(cores):
        if executors == 1:
            continue
        times = profile.nanoseconds(threads)
        levels = [round(level) for level in critical_path(before, times).levels]
        shape = f"{executors} executors of {_count(threads, 'thread')}"
        teams = (threads,) * executors
        queue = _simulated(subject, ListScheduler(before, executors), times)
        yield Policy(f"first come, {shape}", Schedule(teams, first_come=True), queue)
        first = _simulated(subject, ListScheduler(before, executors, levels), times)
        yield Policy(f"critical path, {shape}", Schedule(teams, priority=tuple(levels)), first)
        small = tuple(index for index, time in enumerate(times) if time <= SMALL_NS)
        variants = {
            "small at once": Schedule(teams, priority=tuple(levels), small=small),
            "stay": Schedule(teams, priority=tuple(levels), stay=True, small=small),
        }
        for name, schedule in variants.items():
            scheduler = ListScheduler(before, executors, levels, stay=schedule.stay, small=small)
            yield Policy(f"critical path, {name}, {shape}", schedule, _simulated(subject, scheduler, times))
        recorder = Recorder(ListScheduler(before, executors, levels))
        repeated = _simulated(subject, recorder, times)
        order = held_by_core(recorder.turns, executors)
        yield Policy(f"critical path, fixed order, {shape}", Schedule(teams, order=order), repeated)


def strategy_policy(
    subject: Subject,
    profile: Profile,
    cores: int,
    number: Literal[1, 2, 3],
    disturbances: Disturbances | None = None,
) -> Policy:
    """One of Liu et al.'s strategies, by its decisions in simulated time."""
    curves, before = profile.curves(), subject.dependencies
    kinds = [op.kind for op in operators_of(subject.graph)]
    pairs = frozenset[tuple[str, str]]() if disturbances is None else disturbances.pairs
    caches = shared_by_neighbours(cores)
    alone = [{threads: time for threads, time in own.items() if threads == 1} for own in curves]
    times = curves if caches is None else CacheTimes(curves, alone, caches)
    recorder = Recorder(CoRunScheduler(before, times, kinds, cores, strategy=number, disturbances=disturbances))
    predicted = simulate_operators(recorder, lambda start: curves[start.operator][start.threads], names=kinds)
    order, after = held_by_core(recorder.turns, cores), kept_apart(recorder.turns, before, kinds, pairs)
    name = f"strategy {number}, disturbing types apart" if pairs else f"strategy {number}"
    return Policy(name, Schedule((1,) * cores, order=order, after=after), predicted)


def shared_by_neighbours(cores: int) -> tuple[int, ...] | None:
    """By executor: the cache of its core, where every two neighbours share one; else None.

    Times are measured on neighbouring cores, so that threads of an operator shall share caches when it runs, too.
    """
    places = physical_first(available_cores())[:cores]
    threads = {thread.number: thread for thread in read_topology().threads}
    caches = tuple(threads[place].cache for place in places)
    each_a_core = len({threads[place].core for place in places}) == cores
    in_pairs = caches[::2] == caches[1::2] and len(set(caches)) == cores // 2 > 1
    return caches if each_a_core and in_pairs else None


def _simulated(subject: Subject, scheduler: Scheduler, times: Sequence[int]) -> Timeline:
    kinds = [op.kind for op in operators_of(subject.graph)]

    def duration(start: Start) -> int:
        return times[start.operator]

    return simulate_operators(scheduler, duration, names=kinds)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
