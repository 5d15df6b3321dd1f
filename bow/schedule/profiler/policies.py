"""Policies for running a step: schedules derived from operator times, alone and side by side."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bow.devices import available_cores, physical_first
from bow.devices.cores import cores_with_two_threads, hardware_threads
from bow.schedule import FirstComeSchedule, OrderedSchedule, PrioritySchedule, Schedule, Timeline
from bow.schedule.profiler.measuring import REPEATS, BoundStep, Profile, measure_schedule
from bow.schedule.scheduler import (
    CacheTimes,
    CoRunScheduler,
    DecisionRecorder,
    ListScheduler,
    OperatorScheduler,
    Start,
    critical_path,
    held_by_core,
    separation,
)
from bow.schedule.scheduler.corun import Strategy, pair
from bow.schedule.scheduler.protocol import simulate_operators

# At most the cost of passing an operator to another executor; interference of shorter operators is noise
SMALL_NS = 2_000
INTERFERENCE = 1.5  # an operator interferes that makes another one take this many times as long as predicted


@dataclass(frozen=True, eq=False)
class Policy:
    """A named schedule with its simulated timeline."""

    name: str
    schedule: Schedule
    predicted: Timeline

    @property
    def is_sequential(self) -> bool:
        return len(self.schedule.threads) == 1


def make_policies(step: BoundStep, profile: Profile, cores: int) -> list[Policy]:
    """Return bow's policies for a step on this many cores, as docs/scheduling.md lists them."""
    physical = cores_with_two_threads()
    return [
        *_sequential(step, profile),
        *_uniform(step, profile, cores),
        *(strategy_policy(step, profile, cores, number) for number in (1, 2, 3)),
        strategy_policy(step, profile, cores, 3, narrow=True),
        *([strategy_policy(step, profile, physical, 4)] if 2 * physical == cores else []),
    ]


def configurations(cores: int) -> list[tuple[int, int]]:
    """Return (executors, threads of each) pairs that fill the cores as far as possible (Graphi, section 4.2)."""
    counts = [2**power for power in range(cores.bit_length()) if 2**power <= cores]
    return [(count, cores // count) for count in sorted({*counts, cores})]


def _sequential(step: BoundStep, profile: Profile) -> Iterator[Policy]:
    for threads in profile.threads:
        times = profile.nanoseconds(threads)
        name = f"sequential, {_count(threads, 'thread')}"
        scheduler = ListScheduler(step.dependencies, executors=1, priority=[-index for index in range(len(times))])
        yield Policy(name, Schedule.sequential(len(times), threads), _simulated(step, scheduler, times))


def _uniform(step: BoundStep, profile: Profile, cores: int) -> Iterator[Policy]:
    before = step.dependencies
    for executors, threads in configurations(cores):
        if executors == 1:
            continue
        times = profile.nanoseconds(threads)
        levels = [round(level) for level in critical_path(before, times).levels]
        shape = f"{executors} executors of {_count(threads, 'thread')}"
        teams = (threads,) * executors
        queue = _simulated(step, ListScheduler(before, executors), times)
        yield Policy(f"first come, {shape}", FirstComeSchedule(teams), queue)
        first = _simulated(step, ListScheduler(before, executors, levels), times)
        yield Policy(f"critical path, {shape}", PrioritySchedule(teams, tuple(levels)), first)
        small = tuple(index for index, time in enumerate(times) if time <= SMALL_NS)
        variants = {
            "small at once": PrioritySchedule(teams, tuple(levels), small=small),
            "stay": PrioritySchedule(teams, tuple(levels), stay=True, small=small),
        }
        for name, schedule in variants.items():
            scheduler = ListScheduler(before, executors, levels, stay=schedule.stay, small=small)
            yield Policy(f"critical path, {name}, {shape}", schedule, _simulated(step, scheduler, times))
        recorder = DecisionRecorder(ListScheduler(before, executors, levels))
        repeated = _simulated(step, recorder, times)
        order = held_by_core(recorder.decisions, executors)
        yield Policy(f"critical path, fixed order, {shape}", OrderedSchedule(teams, order), repeated)


def strategy_policy(
    step: BoundStep,
    profile: Profile,
    cores: int,
    number: Strategy,
    pairs: Collection[tuple[str, str]] = (),  # types that interfere, to be kept apart
    *,
    narrow: bool = False,
) -> Policy:
    """Build one of Liu et al.'s strategies from its decisions in simulated time."""
    curves, before = profile.curves(), step.dependencies
    kinds = step.kinds
    caches = shared_by_neighbours(cores)
    alone = [{threads: time for threads, time in own.items() if threads == 1} for own in curves]
    times = curves if caches is None else CacheTimes(curves, alone, caches)
    recorder = DecisionRecorder(
        CoRunScheduler(before, times, kinds, cores, strategy=number, narrow=narrow, avoid=pairs)
    )
    predicted = simulate_operators(recorder, lambda start: _on_core(curves[start.operator], start), names=kinds)
    order, after = held_by_core(recorder.decisions, cores), separation(recorder.decisions, before, kinds, pairs)
    name = f"strategy {number}{', narrow' if narrow else ''}{', interfering types separate' if pairs else ''}"
    return Policy(name, OrderedSchedule((1,) * len(order), order, after), predicted)


def _on_core(times: Mapping[int, int], start: Start) -> int:
    # Two operators on the threads of a core take about as long as one after the other (Liu et al., Table III).
    return (2 if start.sibling else 1) * times[start.threads]


def policies_here(step: BoundStep, profile: Profile, cores: int, repeats: int = REPEATS) -> list[Policy]:
    """Return `make_policies` and, if types interfere on this machine, strategy 3 with those types kept apart."""
    # Cost models describe operators that run alone. So strategy 3 is run with its usual decisions, and an operator that
    # takes far longer than predicted blames those that ran alongside it. A training's "auto" omits this policy: it was
    # slower than strategy 3 in all measurements, since a pair of types that was slow once never runs side by side
    # again. Liu et al., 2019, section III-D, discussion.
    made = make_policies(step, profile, cores)
    usual = next(policy.schedule for policy in made if policy.name == "strategy 3")
    assert isinstance(usual, OrderedSchedule)
    took_ns, timeline = measure_schedule(step, usual, repeats)
    curves = profile.curves()
    held = usual.executors_of(len(curves))
    predicted_ns = [curve[len(own)] for curve, own in zip(curves, held, strict=True)]
    found = observed(step.kinds, predicted_ns, took_ns, timeline)
    return [*made, strategy_policy(step, profile, cores, 3, found)] if found else made


def observed(
    kinds: Sequence[str], predicted_ns: Sequence[int], took_ns: Sequence[int], timeline: Timeline
) -> set[tuple[str, str]]:
    """Return pairs of operator types of which one took far longer alongside the other than predicted alone."""
    # A slow operator blames every operator that ran alongside it, as a single time cannot tell which one it was:
    # harmless pairs are kept apart as well. Liu et al., 2019, section III-D, discussion.
    large = {operator for operator, time in enumerate(predicted_ns) if time > SMALL_NS}
    slow = {operator for operator in large if took_ns[operator] > INTERFERENCE * predicted_ns[operator]}
    beside = {operator: others & large for operator, others in _beside(timeline).items() if operator in slow}
    return {pair(kinds[operator], kinds[other]) for operator, others in beside.items() for other in others}


def shared_by_neighbours(cores: int) -> tuple[int, ...] | None:
    """Return by executor the cache of its core if every two neighbours share one, else None."""
    # Times are measured on neighbouring cores, so threads of an operator should share caches when it runs, too.
    places = physical_first(available_cores())[:cores]
    threads = {thread.number: thread for thread in hardware_threads()}
    caches = tuple(threads[place].cache for place in places)
    each_a_core = len({threads[place].core for place in places}) == cores
    in_pairs = caches[::2] == caches[1::2] and len(set(caches)) == cores // 2 > 1
    return caches if each_a_core and in_pairs else None


def _beside(timeline: Timeline) -> Mapping[int, set[int]]:
    """By operator: those that overlapped with it."""
    found: dict[int, set[int]] = {}
    running: dict[int, int] = {}  # by operator: its end
    for span in sorted(timeline.spans, key=lambda span: span.start_ns):
        operator = int(span.details["operator"])
        running = {other: end for other, end in running.items() if end > span.start_ns}
        found[operator] = set(running)
        for other in running:
            found[other].add(operator)
        running[operator] = span.end_ns
    return found


def _simulated(step: BoundStep, scheduler: OperatorScheduler, times: Sequence[int]) -> Timeline:
    return simulate_operators(scheduler, lambda start: times[start.operator], names=step.kinds)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
