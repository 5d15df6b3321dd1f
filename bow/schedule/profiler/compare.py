"""Times policies against each other on this machine, in turns, and chooses one."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bow.devices import available_cores
from bow.errors import SettingError
from bow.runtime.loading import native
from bow.schedule.profiler.disturbing import policies_here
from bow.schedule.profiler.policies import Policy
from bow.schedule.profiler.profile import Profile
from bow.schedule.profiler.profiling import measure
from bow.schedule.profiler.subject import Executors, Subject
from bow.schedule.profiler.turns import take_turns
from bow.schedule.scheduler import CriticalPath, critical_path

TURNS = 10
STINT_S = 0.05
"""A policy runs for so long in each of its turns, one step at least."""

CLEAR = 0.02
"""What runs operators side by side has to win by more than this part: schedules are worth no trouble for less."""

FINALISTS = 3
"""So many of the best are timed again, for twice as many turns, and with them the best one of every sort."""


@dataclass(frozen=True)
class Comparison:
    """What came of timing policies in turns, and of timing the best of them again among themselves.

    Attributes:
        policies: all, in the order in which they were made.
        seconds: by name: of a step, in every turn.
        path: the critical path, with one thread for each operator.
        again: the same as `seconds` for those that were timed again. What is best is found among them, so that
            luck in the first race does not count; empty: none were.
    """

    policies: tuple[Policy, ...]
    seconds: Mapping[str, tuple[float, ...]]
    path: CriticalPath
    again: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def best(self) -> Policy:
        """The fastest."""
        return self._fastest(self.policies)

    @property
    def best_sequential(self) -> Policy:
        """The fastest that runs operators one after another."""
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
        """A policy's seconds over another's, the median over the turns that both had: noise of a moment meets both."""
        both = {policy.name, over.name}
        seconds = self.again if both <= self.again.keys() else self.seconds
        pairs = zip(seconds[policy.name], seconds[over.name], strict=True)
        return statistics.median(own / other for own, other in pairs)

    def _fastest(self, policies: Sequence[Policy]) -> Policy:
        timed_again = [policy for policy in policies if policy.name in self.again]
        return min(timed_again or policies, key=self.median_s)

    @property
    def verdict(self) -> str:
        """The choice, in a sentence."""
        best, plain = self.best, self.best_sequential
        gain = 1 / self.ratio(best, plain)
        if self.choice is plain and best is not plain:
            return f"{plain.name}: {best.name} is {gain:.2f} times as fast, which is not worth a schedule"
        if best is plain:
            return f"{plain.name}: nothing that runs operators side by side is faster"
        return f"{best.name}: {gain:.2f} times as fast as {plain.name}"


def compare(
    subject: Subject,
    profile: Profile | None = None,
    *,
    policies: Sequence[Policy] | None = None,
    turns: int = TURNS,
    stint_s: float = STINT_S,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Time every policy on this machine.

    Example:
        >>> import torch
        >>> batch = torch.randn(4, 3), torch.randn(4, 1)
        >>> from bow.schedule.profiler import make_policies
        >>> subject = Subject.of(torch.nn.Linear(3, 1), batch, torch.nn.functional.mse_loss)
        >>> profile = measure(subject, threads=[1], repeats=2, cache=False)
        >>> found = compare(subject, profile, policies=make_policies(subject, profile, cores=1), turns=1, stint_s=0.0)
        >>> found.choice.is_sequential
        True
    """
    native()  # without it, every policy would run operators one after another, in Python
    cores = len(available_cores())
    profile = measure(subject, progress=progress) if profile is None else profile
    made = tuple(policies_here(subject, profile, cores) if policies is None else policies)
    if not any(policy.is_sequential for policy in made):
        raise SettingError("policies are compared with running operators one after another; add such a policy")
    path = critical_path(subject.dependencies, profile.nanoseconds(1))
    found = Comparison(made, timed_in_turns(subject, made, turns, stint_s, progress), path)
    finalists = _finalists(found)
    return replace(found, again=timed_in_turns(subject, finalists, 2 * turns, stint_s, progress))


def _finalists(found: Comparison) -> list[Policy]:
    """The best of all, of those that run operators one after another, and of those that a training can use."""
    ranked = sorted(found.policies, key=found.median_s)
    in_order = [policy for policy in ranked if policy.schedule.order is not None and not policy.is_sequential]
    return list(dict.fromkeys([*ranked[:FINALISTS], found.best_sequential, *in_order[:1]]))


def timed_in_turns(
    subject: Subject,
    policies: Sequence[Policy],
    turns: int,
    stint_s: float,
    progress: Callable[[str], None] | None = None,
) -> dict[str, tuple[float, ...]]:
    """By policy: seconds of a step, in every turn."""
    contestants = {policy.name: Executors(subject, policy.schedule) for policy in policies}
    return take_turns(contestants, turns=turns, stint_s=stint_s, progress=progress)
