"""Which operators interfere, from made-up timelines; and a real schedule that keeps them separate."""

import pytest

from bow.devices import available_cores
from bow.runtime.local import LocalRuntime, operators_of
from bow.schedule import Span, Timeline
from bow.schedule.profiler import make_policies, policies, policies_here
from bow.schedule.profiler.policies import SMALL_NS, observed, strategy_policy
from tests.schedule.profiler.steps import branches, made_up

KINDS = ["conv", "pool", "add"]


def timeline(*times: tuple[int, int]) -> Timeline:
    """Of operators with these starts and ends."""
    spans = [Span("", f"executor {n}", *each, details={"operator": n}) for n, each in enumerate(times)]
    return Timeline(spans)


@pytest.mark.parametrize(
    ("times", "pairs"),
    [
        ([(0, 20_000), (19_000, 29_000), (30_000, 50_000)], {("conv", "pool")}),
        ([(0, 20_000), (20_000, 30_000), (20_000, 40_000)], {("add", "pool")}),
        ([(0, 14_000), (0, 10_000), (0, 10_000)], set()),
        ([(0, 20_000), (5_000, 15_000), (19_000, 39_000)], {("conv", "pool"), ("add", "conv")}),
    ],
)
def test_an_operator_that_takes_half_as_long_again_blames_those_beside_it(
    times: list[tuple[int, int]], pairs: set[tuple[str, str]]
) -> None:
    took = [end - start for start, end in times]
    assert observed(KINDS, [10_000] * 3, took, timeline(*times)) == pairs


def test_small_operators_are_neither_blamed_nor_counted() -> None:
    side_by_side = timeline((0, 90_000), (0, 90_000), (0, 90_000))
    took = [90_000] * 3
    assert observed(KINDS, [SMALL_NS, 10_000, 10_000], took, side_by_side) == {("add", "pool")}
    assert observed(KINDS, [SMALL_NS] * 3, took, side_by_side) == set()


@pytest.mark.skipif(len(available_cores()) < 2, reason="policies for two cores")
def test_types_that_interfere_are_one_more_policy_and_run_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, profile = branches(), made_up(branches(), threads=(1,))
    kinds = [operator.kind for operator in operators_of(subject.graph)]
    usual = next(policy for policy in make_policies(subject, profile, 2) if policy.name == "strategy 3")
    found: set[tuple[str, str]] = set()
    monkeypatch.setattr(policies, "observed", lambda *_: found)
    assert len(policies_here(subject, profile, 2, repeats=1)) == len(make_policies(subject, profile, 2))
    both = next(pair for pair in _side_by_side(usual.predicted, kinds) if pair[0] != pair[1])
    found.add(both)
    apart = policies_here(subject, profile, 2, repeats=1)[-1]
    assert apart.name == "strategy 3, interfering types separate"
    assert apart.schedule == strategy_policy(subject, profile, 2, 3, found).schedule
    assert both not in _side_by_side(apart.predicted, kinds)
    with LocalRuntime(subject.graph, apart.schedule) as runtime:
        for _ in range(5):
            subject.run(runtime, record=True)
            assert runtime.timeline is not None
            assert both not in _side_by_side(runtime.timeline, kinds)


def _side_by_side(timeline: Timeline, kinds: list[str]) -> list[tuple[str, str]]:
    """Types of which two operators ran at the same time."""
    found = policies._beside(timeline).items()
    pairs = {tuple(sorted((kinds[one], kinds[other]))) for one, others in found for other in others}
    return [(one, other) for one, other in sorted(pairs)]
