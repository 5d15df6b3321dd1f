"""The measurements of `python -m benchmarks engines` with one model and one batch size, and what follows from them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.line_up import BOW, GRAPH, GRAPH_COMPILED, PLAIN, PYTORCH, Lane
from benchmarks.measure import Spread, ratios
from benchmarks.workloads import WORKLOADS


@dataclass(frozen=True)
class Group:
    """Everybody's measurements with one model and one batch size."""

    model: str  # its name
    batch_size: int  # per learner
    lanes: tuple[Lane, ...]  # the contestants; those of plain PyTorch are among them
    notes: tuple[str, ...] = ()  # what was left out, and what ran as something else
    seconds: float = 0.0  # how long it took, compiling included
    final: tuple[tuple[float, ...], ...] = ()

    @property
    def title(self) -> str:
        """The model's name, for people."""
        return WORKLOADS[self.model].title

    @property
    def baseline(self) -> Lane | None:
        """Plain PyTorch with its better number of threads; None where it did not run."""
        return self.best([PLAIN])

    @property
    def best_of_pytorch(self) -> Lane | None:
        """The fastest of plain and compiled PyTorch in the race."""
        return self.best(PYTORCH)

    @property
    def best_of_bow(self) -> Lane | None:
        """The fastest setting of bow in the race."""
        return self.best(BOW)

    @property
    def finalists(self) -> tuple[Lane | None, Lane | None]:
        """The best of PyTorch and the best of bow, with what they reached when they raced again alone.

        Who is chosen as the fastest of many was lucky as well; the repeats of the final know nothing of that choice.
        """
        pytorch, bow = self.best_of_pytorch, self.best_of_bow
        if pytorch is None or bow is None or not self.final:
            return pytorch, bow
        return replace(pytorch, rates=self.final[0]), replace(bow, rates=self.final[1])

    @property
    def contest(self) -> Spread | None:
        """How much faster the best of bow is than the best of PyTorch, in the final; None where there was none."""
        return ratios(self.final[1], self.final[0]) if self.final else None

    def best(self, implementations: Sequence[str], learners: int | None = None) -> Lane | None:
        """The fastest lane of some implementations over thread counts, and over learners where they are left open."""
        own = [lane for lane in self.lanes if lane.implementation in implementations]
        fitting = [lane for lane in own if learners is None or lane.learners == learners]
        return max(fitting, key=lambda lane: lane.speed.median, default=None)

    def find(self, implementation: str, learners: int | None, threads: int = 1) -> Lane | None:
        """A contestant."""
        wanted = (implementation, learners, threads)
        return next((lane for lane in self.lanes if (lane.implementation, lane.learners, lane.threads) == wanted), None)

    def ratio(self, lane: Lane) -> Spread | None:
        """How much faster than plain PyTorch; None where that did not run."""
        baseline = self.baseline
        return None if baseline is None else ratios(lane.rates, baseline.rates)

    def gain(self, implementation: str) -> Spread | None:
        """How much faster two learners are than one learner on one thread, in the same engine of bow."""
        two, one = self.find(implementation, 2), self.find(implementation, 1)
        return None if one is None or two is None else ratios(two.rates, one.rates)

    def as_dict(self) -> dict[str, Any]:
        """All measurements as plain values."""
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
            "contestants": [self._lane_dict(lane) for lane in self.lanes],
        }

    def contest_dict(self) -> dict[str, Any]:
        """Best against best in the final, as plain values."""
        (pytorch, bow), contest = self.finalists, self.contest
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            "pytorch": _brief(pytorch),
            "bow": _brief(bow),
            "ratio": None if contest is None else contest.as_dict(digits=3),
        }

    def gains_dict(self) -> dict[str, Any]:
        """Two learners over one, as plain values."""
        gains = {implementation: self.gain(implementation) for implementation in (GRAPH, GRAPH_COMPILED)}
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            **{name: None if gain is None else gain.as_dict(digits=3) for name, gain in gains.items()},
        }

    def _lane_dict(self, lane: Lane) -> dict[str, Any]:
        ratio = self.ratio(lane)
        return {
            "implementation": lane.implementation,
            "learners": lane.learners,
            "threads": lane.threads,
            "samples_per_s": lane.speed.as_dict(digits=1),
            "ratio": None if ratio is None else ratio.as_dict(digits=3),
            "first_call_s": round(lane.first_call_s, 2),
        }


def geometric_mean(groups: Iterable[Group]) -> float | None:
    """Of the medians of best against best, over all groups in which both ran."""
    logarithms = [math.log(contest.median) for group in groups if (contest := group.contest) is not None]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def _brief(lane: Lane | None) -> dict[str, Any] | None:
    return None if lane is None else {"setting": lane.short, "samples_per_s": round(lane.speed.median, 1)}
