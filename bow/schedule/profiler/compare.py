"""Times policies, and numbers of executors, against each other on this machine, in turns, and chooses the best."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bow.devices import available_cores
from bow.errors import SettingError
from bow.runtime.loading import native
from bow.schedule import OrderedSchedule, PrioritySchedule, Schedule
from bow.schedule.profiler.measuring import REPEATS, BoundStep, ScheduledStep, measure, measure_schedule
from bow.schedule.profiler.operator_times import Profile
from bow.schedule.profiler.policies import Policy, configurations, policies_here
from bow.schedule.scheduler import CriticalPath, critical_path
from bow.timing import ratio_in_turns, time_in_turns

TURNS = 10
WINDOW_S = 0.05
"""A policy runs for so long in each of its turns, one step at least."""

CLEAR = 0.02
"""What runs operators side by side has to win by more than this part: schedules are worth no trouble for less."""

FINALISTS = 3
"""So many of the best are timed again, for twice as many turns, and with them the best one of every sort."""


@dataclass(frozen=True)
class Comparison:
    """What came of timing policies in turns, and of timing the best of them again among themselves."""

    policies: tuple[Policy, ...]
    seconds: Mapping[str, tuple[float, ...]]  # by name: of a step, in every turn
    path: CriticalPath  # with one thread for each operator
    again: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The same as `seconds` for those that were timed again. What is best is found among them, so that luck in the
    first race does not count; empty: none were."""

    @property
    def best(self) -> Policy:
        return self._fastest(self.policies)

    @property
    def best_sequential(self) -> Policy:
        return self._fastest([policy for policy in self.policies if policy.is_sequential])

    @property
    def choice(self) -> Policy:
        """The fastest if it clearly beats running operators one after another, and otherwise the best of those."""
        best, plain = self.best, self.best_sequential
        return best if self.ratio(best, plain) < 1 - CLEAR else plain

    def median_s(self, policy: Policy) -> float:
        """Seconds of a step."""
        return statistics.median(self.again.get(policy.name) or self.seconds[policy.name])

    def ratio(self, policy: Policy, over: Policy) -> float:
        """A policy's seconds over another's, the median over the turns that both had."""
        both = {policy.name, over.name}
        seconds = self.again if both <= self.again.keys() else self.seconds
        return ratio_in_turns(seconds[policy.name], seconds[over.name])

    def _fastest(self, policies: Sequence[Policy]) -> Policy:
        timed_again = [policy for policy in policies if policy.name in self.again]
        return min(timed_again or policies, key=self.median_s)

    @property
    def summary(self) -> str:
        """The choice, in a sentence."""
        best, plain = self.best, self.best_sequential
        gain = 1 / self.ratio(best, plain)
        if self.choice is plain and best is not plain:
            return f"{plain.name}: {best.name} is {gain:.2f} times as fast, which is not worth a schedule"
        if best is plain:
            return f"{plain.name}: nothing that runs operators side by side is faster"
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
    """Time every policy on this machine; `Policy.schedule` of the choice is the one to train with."""
    native()  # without it, every policy would run operators one after another, in Python
    cores = len(available_cores())
    profile = measure(step, progress=progress) if profile is None else profile
    made = tuple(policies_here(step, profile, cores) if policies is None else policies)
    if not any(policy.is_sequential for policy in made):
        raise SettingError("policies are compared with running operators one after another; add such a policy")
    path = critical_path(step.dependencies, profile.nanoseconds(1))
    found = Comparison(made, timed_in_turns(step, made, turns, window_s, progress), path)
    finalists = _finalists(found)
    return replace(found, again=timed_in_turns(step, finalists, 2 * turns, window_s, progress))


def _finalists(found: Comparison) -> list[Policy]:
    """The best of all, of those that run operators one after another, and of those that a training can use."""
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
    """By policy: seconds of a step, in every turn."""
    cases = {policy.name: ScheduledStep(step, policy.schedule) for policy in policies}
    return time_in_turns(cases, turns=turns, window_s=window_s, progress=progress)


@dataclass(frozen=True)
class Symmetric:
    """What came of timing the step with every number of executors, all with equally many threads."""

    seconds: Mapping[tuple[int, int], tuple[float, ...]]  # by (executors, threads of each): of a step, in every turn
    best: tuple[int, int]  # the pair with the least median
    nanoseconds: tuple[int, ...]  # by operator: what it takes in that configuration, beside others

    def median_s(self, pair: tuple[int, int]) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds[pair])


def symmetric(
    step: BoundStep,
    profile: Profile,
    cores: int,
    *,
    turns: int = TURNS,
    window_s: float = WINDOW_S,
    repeats: int = REPEATS,
    progress: Callable[[str], None] | None = None,
) -> Symmetric:
    """Time the step itself with every number of executors that fills the cores, and operators in the best of them.

    Executors take operators by critical path; one executor runs them in the order of capture.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.2.
    """
    native()  # without it, operators run one after another in any configuration
    schedules = {pair: _schedule(step, profile, *pair) for pair in configurations(cores)}
    named = {f"{executors} x {threads}": (executors, threads) for executors, threads in schedules}
    cases = {name: ScheduledStep(step, schedules[pair]) for name, pair in named.items()}
    found = time_in_turns(cases, turns=turns, window_s=window_s, progress=progress)
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
