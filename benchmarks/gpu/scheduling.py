"""Operators of one learner on several streams, critical path first, against one stream; alone and beside others.

The paper runs operators of one network side by side on the cores of a CPU; here executors are streams of a GPU, and
the schedule is issued under capture, so that streams are branches of one graph.

* pytorch, whole step as a CUDA graph: autograd's operators, one stream.
* one stream: the operators of the step graph, one after another. Recurrent layers are matrix products there.
* critical path on n streams: the same, from a profile of this GPU.
* graph, k: bow's engine with k learners, each on one stream, as it is without a schedule.
* graph, k, critical path on n streams: each learner on n streams, by the fastest of the schedules above.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.parts import Context
from benchmarks.gpu.racing import GRAPHED, Race, bow_name, gain
from benchmarks.gpu.spreading import spread, subject_of
from bow.schedule.profiler import BoundStep, Policy, Profile
from bow.schedule.profiler.device import device_policies, measure_on
from bow.schedule.scheduler import critical_path

BATCH = 16
MOST_LEARNERS = 4
LEARNERS_S = 10.0  # Less time than this is not enough for learners: capturing their steps takes most of it


def measure(context: Context, network: str) -> None:
    """Profile the operators, let schedules race, and let learners race with the best of these."""
    config = context.config
    race = Race(context, network, BATCH)
    subject = subject_of(race)
    profile = measure_on(context.machine.device, subject, repeats=config.repeats, cache=False)
    policies = device_policies(subject, profile)
    context.record(model=network, batch_size=BATCH, profile=_facts(subject, profile, policies))
    race.graphed(GRAPHED)
    for policy in policies:
        race.other(policy.name, 1, spread(race, subject.graph, policy.schedule, captured=True))
    first = race.run(config.repeats, config.stint_s)
    one, several = policies[0], [policy for policy in policies[1:] if policy.name in first]
    best = max(several, key=lambda policy: sum(first[policy.name]), default=None)
    gains = _gains(first, {policy.name: one.name for policy in several})
    context.record(schedules=context.findings["contestants"], gains=gains)
    race.close()
    if best is None:
        return
    if context.time.allows(LEARNERS_S) or config.fake:
        _race_learners(context, network, best)
    else:
        context.cut("learners by schedules: left out")


def _race_learners(context: Context, network: str, policy: Policy) -> None:
    """Engine `graph` with and without a schedule."""
    config = context.config
    race = Race(context, network, BATCH)
    pairs = {}
    for count in sorted({1, min(MOST_LEARNERS, max(config.learners))}):
        usual = bow_name("graph", count)
        scheduled = f"{usual}, {policy.name}"
        race.bow(usual, count, engine="graph")
        race.bow(scheduled, count, engine="graph", schedule=policy.schedule)
        pairs[scheduled] = usual
    rates = race.run(config.repeats, config.stint_s)
    context.record(gains={**context.findings["gains"], **_gains(rates, pairs)})
    race.close()


def _gains(rates: Mapping[str, Sequence[float]], pairs: Mapping[str, str]) -> dict[str, Any]:
    """How much faster contestants are than those that they are held against, repeat by repeat."""
    found = {name: gain(rates, name, over) for name, over in pairs.items()}
    return {name: value for name, value in found.items() if value is not None}


def _facts(subject: BoundStep, profile: Profile, policies: Sequence[Policy]) -> dict[str, Any]:
    """What the profile says before anything runs: operators, their time, the parallelism, and what was predicted."""
    times = profile.nanoseconds(1)
    path = critical_path(subject.dependencies, times)
    return {
        "kernels": sum(not operator.is_view for operator in subject.graph.operators),
        "operators_us": round(sum(times) / 1e3, 1),
        "critical_path_us": round(path.length / 1e3, 1),
        "parallelism": round(path.parallelism, 3),
        "predicted_us": {policy.name: round(1e6 * policy.predicted.makespan, 1) for policy in policies},
    }
