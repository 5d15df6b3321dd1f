"""The policies that can run a step on the streams of a device."""

from collections.abc import Sequence

from bow.runtime.issue import operators_of
from bow.schedule import Schedule
from bow.schedule.profiler.policies import Policy
from bow.schedule.profiler.profile import Profile
from bow.schedule.profiler.subject import Subject
from bow.schedule.scheduler import ListScheduler, Recorder, Start, critical_path, held_by_core
from bow.schedule.simulator import simulate_operators

STREAMS = (2, 3, 4)
"""Numbers of streams that are worth a try."""


def device_policies(subject: Subject, profile: Profile, streams: Sequence[int] = STREAMS) -> list[Policy]:
    """One stream, and critical path first on several, as it comes out in simulated time.

    An operator stays on a stream that made something it reads, if that stream is free: who follows on the same stream
    needs no event. A further stream is left out where it would shorten nothing.

    Example:
        The gradients of weight and bias do not depend on each other:

        >>> import torch
        >>> from bow.schedule.profiler import OperatorTime
        >>> model = torch.nn.Linear(3, 1)
        >>> subject = Subject.of(model, (torch.randn(4, 3), torch.randn(4, 1)), torch.nn.functional.mse_loss)
        >>> count = subject.num_operators
        >>> times = {1: (OperatorTime(1e-6, 0.0, 1),) * count}
        >>> found = device_policies(subject, Profile(("",) * count, ("",) * count, times, "a device"))
        >>> [policy.name for policy in found]
        ['one stream', 'critical path on 2 streams']

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, sections 4.3 and 6.
    """
    policies = [_critical_path(subject, profile, 1)]
    for count in streams:
        policy = _critical_path(subject, profile, count)
        if policy.predicted.makespan < policies[-1].predicted.makespan:
            policies.append(policy)
    return policies


def _critical_path(subject: Subject, profile: Profile, streams: int) -> Policy:
    times, before = profile.nanoseconds(1), subject.dependencies
    levels = critical_path(before, times).levels
    recorder = Recorder(ListScheduler(before, streams, levels, stay=True))

    def duration(start: Start) -> int:
        return times[start.operator]

    predicted = simulate_operators(recorder, duration, names=[op.kind for op in operators_of(subject.graph)])
    name = "one stream" if streams == 1 else f"critical path on {streams} streams"
    return Policy(name, Schedule((1,) * streams, order=held_by_core(recorder.turns, streams)), predicted)
