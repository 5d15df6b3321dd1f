"""Which operators disturb each other on this machine, seen when they run side by side."""

from collections.abc import Mapping, Sequence

from bow.runtime.issue import operators_of
from bow.schedule import Timeline
from bow.schedule.profiler.policies import SMALL_NS, Policy, make_policies, strategy_policy
from bow.schedule.profiler.profile import Profile
from bow.schedule.profiler.profiling import REPEATS, under
from bow.schedule.profiler.subject import Subject
from bow.schedule.scheduler import Disturbances


def policies_here(subject: Subject, profile: Profile, cores: int, repeats: int = REPEATS) -> list[Policy]:
    """Every policy of `make_policies`, and strategy 3 with those types apart that disturb each other on this machine.

    A cost model knows operators that run alone. So strategy 3 is run as it decides by that, and an operator that then
    takes far longer blames those that ran beside it. What the strategy decides with these types apart is one more
    policy; there is none where nobody was disturbed. Operators that take no longer than handing them over are neither
    blamed nor heard: their times are noise.

    References:
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D, discussion.
    """
    made = make_policies(subject, profile, cores)
    usual = made[-1]
    took_ns, timeline = under(subject, usual.schedule, repeats)
    curves = profile.curves()
    held = usual.schedule.executors_of(len(curves))
    predicted_ns = [curve[len(own)] for curve, own in zip(curves, held, strict=True)]
    kinds = [operator.kind for operator in operators_of(subject.graph)]
    found = observed(kinds, predicted_ns, took_ns, timeline)
    return [*made, strategy_policy(subject, profile, cores, 3, found)] if found.pairs else made


def observed(
    kinds: Sequence[str], predicted_ns: Sequence[int], took_ns: Sequence[int], timeline: Timeline
) -> Disturbances:
    """The types that disturbed each other.

    Example:
        >>> from bow.schedule import Span
        >>> spans = [Span("", f"executor {n}", 0, 9_000, details={"operator": n}) for n in range(2)]
        >>> observed(["conv", "pool"], [9_000, 5_000], [9_000, 9_000], Timeline(spans)).pairs
        frozenset({('conv', 'pool')})
    """
    found = Disturbances(kinds)
    large = {operator for operator, time in enumerate(predicted_ns) if time > SMALL_NS}
    for operator, others in _beside(timeline).items():
        if operator in large:
            found.observe(operator, predicted_ns[operator], took_ns[operator], others & large)
    return found


def _beside(timeline: Timeline) -> Mapping[int, set[int]]:
    """By operator: those that ran at some time while it ran."""
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
