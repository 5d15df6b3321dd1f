"""Interleaved timing of policies and executor counts on this machine, and choice of the best."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bow.devices import available_cores
from bow.errors import SettingError
from bow.runtime.loading import native
from bow.schedule import OrderedSchedule, PrioritySchedule, Schedule
from bow.schedule.profiler.measuring import REPEATS, BoundStep, Profile, ScheduledStep, measure, measure_schedule
from bow.schedule.profiler.policies import Policy, configurations, policies_here
from bow.schedule.scheduler import CriticalPath, critical_path
from bow.timing import ratio_in_turns, time_in_turns

TURNS = 10
WINDOW_S = 0.05  # measurement window of a policy in each turn, at least one step
MIN_GAIN = 0.02  # least relative gain of a parallel schedule over a sequential one
FINALISTS = 3
"""Fastest policies that are timed again, with twice as many turns, along with the best one of each kind."""


@dataclass(frozen=True)
class Comparison:
    """Results of timing policies in turns, and of timing the best of them again."""

    policies: tuple[Policy, ...]
    seconds: Mapping[str, tuple[float, ...]]  # by name: step times, by turn
    path: CriticalPath  # with one thread per operator
    finalist_seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """As `seconds`, for the finalists. The best is chosen among them, so that luck in the first race does not count."""

    @property
    def best(self) -> Policy:
        return self._fastest(self.policies)

    @property
    def best_sequential(self) -> Policy:
        return self._fastest([policy for policy in self.policies if policy.is_sequential])

    @property
    def choice(self) -> Policy:
        """The fastest policy if it clearly beats the best sequential one, else the latter."""
        best, plain = self.best, self.best_sequential
        return best if self.ratio(best, plain) < 1 - MIN_GAIN else plain

    def median_s(self, policy: Policy) -> float:
        return statistics.median(self.finalist_seconds.get(policy.name) or self.seconds[policy.name])

    def ratio(self, policy: Policy, over: Policy) -> float:
        """Return a policy's step time relative to another's: the median over their common turns."""
        both = {policy.name, over.name}
        seconds = self.finalist_seconds if both <= self.finalist_seconds.keys() else self.seconds
        return ratio_in_turns(seconds[policy.name], seconds[over.name])

    def _fastest(self, policies: Sequence[Policy]) -> Policy:
        timed_again = [policy for policy in policies if policy.name in self.finalist_seconds]
        return min(timed_again or policies, key=self.median_s)

    @property
    def summary(self) -> str:
        best, plain = self.best, self.best_sequential
        gain = 1 / self.ratio(best, plain)
        if self.choice is plain and best is not plain:
            least = f"below the {MIN_GAIN:.0%} threshold for using a schedule"
            return f"{plain.name}: {best.name} is {gain:.2f} times as fast, {least}"
        if best is plain:
            return f"{plain.name}: no policy that runs operators in parallel is faster"
        return f"{best.name}: {gain:.2f} times as fast as {plain.name}"


def compare(
    step: BoundStep,
    profile: Profile | None = None,
    *,
    policies: Sequence[Policy] | None = None,
    turns: int = TURNS,
    window_s: float = WINDOW_S,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Time all policies on this machine; train with `Policy.schedule` of the choice."""
    native()  # without it, every policy would run sequentially in Python
    cores = len(available_cores())
    profile = measure(step, progress=progress) if profile is None else profile
    made = tuple(policies_here(step, profile, cores) if policies is None else policies)
    if not any(policy.is_sequential for policy in made):
        raise SettingError("policies are compared with a sequential one, and there is none; add a sequential policy")
    path = critical_path(step.dependencies, profile.nanoseconds(1))
    found = Comparison(made, timed_in_turns(step, made, turns, window_s, progress), path)
    finalists = _finalists(found)
    return replace(found, finalist_seconds=timed_in_turns(step, finalists, 2 * turns, window_s, progress))


def _finalists(found: Comparison) -> list[Policy]:
    """Return the best overall, the best sequential, and the best that a training can use."""
    ranked = sorted(found.policies, key=found.median_s)
    in_order = [
        policy for policy in ranked if isinstance(policy.schedule, OrderedSchedule) and not policy.is_sequential
    ]
    return list(dict.fromkeys([*ranked[:FINALISTS], found.best_sequential, *in_order[:1]]))


def timed_in_turns(
    step: BoundStep,
    policies: Sequence[Policy],
    turns: int,
    window_s: float,
    progress: Callable[[str], None] | None = None,
) -> dict[str, tuple[float, ...]]:
    cases = {policy.name: ScheduledStep(step, policy.schedule) for policy in policies}
    return time_in_turns(cases, turns=turns, window_s=window_s, progress=progress)


@dataclass(frozen=True)
class Symmetric:
    """Results of timing the step with every number of executors of equally many threads."""

    seconds: Mapping[tuple[int, int], tuple[float, ...]]  # by (executors, threads of each): step times, by turn
    best: tuple[int, int]  # least median
    nanoseconds: tuple[int, ...]  # by operator: its time in the best configuration, alongside others

    def median_s(self, pair: tuple[int, int]) -> float:
        return statistics.median(self.seconds[pair])


def symmetric(
    step: BoundStep,
    profile: Profile,
    cores: int,
    *,
    turns: int = TURNS,
    window_s: float = WINDOW_S,
    repeats: int = REPEATS,
) -> Symmetric:
    """Time the step with every number of executors that fills the cores (Tang et al., 2018, section 4.2)."""
    native()  # without it, every configuration would run sequentially
    schedules = {pair: _schedule(step, profile, *pair) for pair in configurations(cores)}
    named = {f"{executors} x {threads}": (executors, threads) for executors, threads in schedules}
    cases = {name: ScheduledStep(step, schedules[pair]) for name, pair in named.items()}
    found = time_in_turns(cases, turns=turns, window_s=window_s)
    seconds = {named[name]: own for name, own in found.items()}
    best = min(seconds, key=lambda pair: statistics.median(seconds[pair]))
    took_ns, _ = measure_schedule(step, schedules[best], repeats)
    return Symmetric(seconds, best, tuple(took_ns))


def _schedule(step: BoundStep, profile: Profile, executors: int, threads: int) -> Schedule:
    times = profile.nanoseconds(threads)
    if executors == 1:
        return Schedule.sequential(len(times), threads)
    levels = critical_path(step.dependencies, times).levels
    return PrioritySchedule((threads,) * executors, tuple(map(round, levels)))
