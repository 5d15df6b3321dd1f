"""How many executors, with how many threads each, run a step fastest where all have equally many."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bow.runtime.loading import native
from bow.schedule import Schedule
from bow.schedule.profiler.compare import STINT_S, TURNS
from bow.schedule.profiler.policies import configurations
from bow.schedule.profiler.profile import Profile
from bow.schedule.profiler.profiling import REPEATS, under
from bow.schedule.profiler.subject import Executors, Subject
from bow.schedule.profiler.turns import take_turns
from bow.schedule.scheduler import critical_path


@dataclass(frozen=True)
class Symmetric:
    """What came of timing the step with every number of executors.

    Attributes:
        seconds: by (executors, threads of each): of a step, in every turn.
        best: the pair with the least median.
        nanoseconds: by operator: what it takes in that configuration, beside others.
    """

    seconds: Mapping[tuple[int, int], tuple[float, ...]]
    best: tuple[int, int]
    nanoseconds: tuple[int, ...]

    def median_s(self, pair: tuple[int, int]) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds[pair])


def symmetric(
    subject: Subject,
    profile: Profile,
    cores: int,
    *,
    turns: int = TURNS,
    stint_s: float = STINT_S,
    repeats: int = REPEATS,
    progress: Callable[[str], None] | None = None,
) -> Symmetric:
    """Time the step itself with every number of executors that fills the cores, and operators in the best of them.

    Executors take operators by critical path; one executor runs them in the order of capture.

    Example:
        >>> import torch
        >>> from bow.schedule.profiler.profiling import measure
        >>> batch = torch.randn(4, 3), torch.randn(4, 1)
        >>> subject = Subject.of(torch.nn.Linear(3, 1), batch, torch.nn.functional.mse_loss)
        >>> profile = measure(subject, threads=[1], repeats=2, cache=False)
        >>> symmetric(subject, profile, cores=1, turns=1, stint_s=0.0, repeats=1).best
        (1, 1)

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.2.
    """
    native()  # without it, operators run one after another in any configuration
    schedules = {pair: _schedule(subject, profile, *pair) for pair in configurations(cores)}
    named = {f"{executors} x {threads}": (executors, threads) for executors, threads in schedules}
    contestants = {name: Executors(subject, schedules[pair]) for name, pair in named.items()}
    found = take_turns(contestants, turns=turns, stint_s=stint_s, progress=progress)
    seconds = {named[name]: own for name, own in found.items()}
    best = min(seconds, key=lambda pair: statistics.median(seconds[pair]))
    took_ns, _ = under(subject, schedules[best], repeats)
    return Symmetric(seconds, best, tuple(took_ns))


def _schedule(subject: Subject, profile: Profile, executors: int, threads: int) -> Schedule:
    times = profile.nanoseconds(threads)
    if executors == 1:
        return Schedule.sequential(len(times), threads)
    levels = critical_path(subject.dependencies, times).levels
    return Schedule((threads,) * executors, priority=tuple(map(round, levels)))
