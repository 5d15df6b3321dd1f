"""Whether bow is as much faster as claimed, and an explanation if not; pure functions of numbers."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import whole_spread
from benchmarks.peers.contestants import BOW, CONTESTANTS, GOODPUT, PYTORCH
from benchmarks.peers.training import Choice, Training, by_choice

LIMIT = 0.7
LEAST_SEEDS = 3  # with fewer seeds there is no verdict

CLAIM = f"bow reaches the target in at most {LIMIT:g} of the time of the best setting of plain PyTorch"


@dataclass(frozen=True)
class Duel:
    """bow and plain PyTorch with the same seed, both having reached the target.

    The ratio of times is that of samples over that of throughputs, plus the rest: mainly set-up time.
    """

    bow: Training  # bow's training
    plain: Training  # the training of plain PyTorch

    @property
    def ratio(self) -> float:
        """Ratio of the times to the target."""
        return self.bow.looks[-1].seconds / self.plain.looks[-1].seconds

    @property
    def samples(self) -> float:
        """Ratio of the samples to the target."""
        return self.bow.samples / self.plain.samples

    @property
    def throughput(self) -> float:
        """Ratio of the samples per second."""
        return self.bow.throughput / self.plain.throughput

    @property
    def rest(self) -> float:
        """The remainder of the ratio of times; below 0 if bow's training started faster."""
        return self.ratio - self.samples / self.throughput

    def as_dict(self) -> dict[str, Any]:
        parts = {name: round(getattr(self, name), 4) for name in ("ratio", "samples", "throughput", "rest")}
        return {"seed": self.bow.seed, **parts}


@dataclass(frozen=True)
class Peer:
    """The fastest of all peers, including plain PyTorch."""

    choice: Choice  # its setting
    ratio: dict[str, Any]  # ratio of bow's time to its time, over the seeds with which both reached the target

    def __str__(self) -> str:
        choice = self.choice
        return f"{CONTESTANTS[choice.contestant].title} with batch {choice.batch_size} and lr {choice.lr:g}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.choice), "ratio": _rounded(self.ratio)}


@dataclass(frozen=True)
class Verdict:
    """The result of the finals with respect to the claim."""

    duels: tuple[Duel, ...]  # for the seeds with which both reached the target
    missed: tuple[tuple[str, int], ...]  # contestants that did not reach it, with the seed
    best_peer: Peer | None = None  # the fastest one but bow; None if no seed has both at the target

    @property
    def ratio(self) -> dict[str, Any] | None:
        """Ratio of times, seed by seed; None if there is none."""
        return whole_spread([duel.ratio for duel in self.duels]) if self.duels else None

    @property
    def num_seeds(self) -> int:
        """Number of seeds with which both trained."""
        return len({duel.bow.seed for duel in self.duels} | {seed for _, seed in self.missed})

    @property
    def is_met(self) -> bool | None:
        """Whether the claim holds; None if bow and plain PyTorch did not both train with enough seeds."""
        if self.num_seeds < LEAST_SEEDS:
            return None
        return not self.missed and self.ratio is not None and self.ratio["median"] <= LIMIT

    @property
    def typical(self) -> Duel:
        """The duel with the median ratio; of an even number, the higher one of the middle two."""
        return sorted(self.duels, key=lambda duel: duel.ratio)[len(self.duels) // 2]

    def __str__(self) -> str:
        """Describe whether the claim holds, and the numbers, in one or two sentences."""
        if not self.num_seeds:
            return "No verdict: bow and plain PyTorch did not both take part."
        outcome = "The claim holds" if self.is_met else "The claim does not hold"
        if self.is_met is None:
            outcome = f"No verdict, for which {LEAST_SEEDS} seeds are needed (there is {self.num_seeds})"
        if self.ratio is None:
            return f"{outcome}: with no seed did both reach the target."
        missed = "".join(f"; {name} did not reach the target with seed {seed}" for name, seed in self.missed)
        text = f"{outcome}: bow takes {_spread(self.ratio)} of the time of plain PyTorch{missed}."
        if self.best_peer is None:
            return text
        return f"{text} Of the time of the fastest peer, {self.best_peer}, it takes {_spread(self.best_peer.ratio)}."

    def explanation(self) -> str:
        """Explain the ratio by its measured parts, in a few sentences; empty if nothing was measured."""
        if not self.duels:
            return ""
        duel = self.typical
        steady = duel.samples / duel.throughput
        text = (
            f"With seed {duel.bow.seed}, that of the median, bow sees {duel.samples:.2f} times the samples of plain "
            f"PyTorch until the target, at {duel.throughput:.2f} times its throughput: "
            f"{duel.samples:.2f} / {duel.throughput:.2f} = {steady:.2f}. The rest ({duel.bow.rest_s:.1f} s, against "
            f"{duel.plain.rest_s:.1f} s) makes it {duel.ratio:.2f}."
        )
        if self.is_met:
            return text
        needed = (LIMIT - duel.rest) * duel.throughput
        reach = (
            f"{LIMIT:g} would take {needed:.2f} times the samples at this throughput"
            if needed > 0
            else f"no number of samples would make it {LIMIT:g} with this rest"
        )
        return (
            f"{text} With as many samples as plain PyTorch it would be {1 / duel.throughput + duel.rest:.2f}, and "
            f"with no rest {steady:.2f}; {reach}."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "claim": CLAIM,
            "is_met": self.is_met,
            "ratio": None if self.ratio is None else _rounded(self.ratio),
            "seeds": [duel.as_dict() for duel in self.duels],
            "missed": [list(miss) for miss in self.missed],
            "settings": {side.choice.contestant: asdict(side.choice) for side in self._sides()},
            "best_peer": None if self.best_peer is None else self.best_peer.as_dict(),
        }

    def _sides(self) -> tuple[Training, ...]:
        return (self.duels[0].plain, self.duels[0].bow) if self.duels else ()


def decide(finals: Sequence[Training]) -> Verdict:
    """Compare bow with plain PyTorch, seed by seed, each with its best setting over the seeds."""
    bows, plains = (represent([t for t in finals if t.choice.contestant == name]) for name in (BOW, PYTORCH))
    plain_of = {training.seed: training for training in plains}
    duels, missed = [], []
    for bow in bows:
        if bow.seed not in plain_of:
            continue
        plain = plain_of[bow.seed]
        slow = [training.choice.contestant for training in (bow, plain) if training.time_s is None]
        missed += [(name, bow.seed) for name in slow]
        if not slow:
            duels.append(Duel(bow, plain))
    peers = represent([training for training in finals if training.choice.contestant not in (BOW, GOODPUT)])
    ratios = time_ratios(bows, peers)
    return Verdict(tuple(duels), tuple(missed), Peer(peers[0].choice, whole_spread(ratios)) if ratios else None)


def represent(finals: Sequence[Training]) -> list[Training]:
    """Return the trainings of the setting with the shortest median time over its seeds; empty if there are none."""
    return min(by_choice(finals).values(), key=median_time_s, default=[])


def median_time_s(trainings: Sequence[Training]) -> float:
    """Median over the seeds; infinite for seeds that did not reach the target."""
    return statistics.median(math.inf if training.time_s is None else training.time_s for training in trainings)


def time_ratios(trainings: Sequence[Training], bases: Sequence[Training]) -> list[float]:
    """Ratios of times, for every seed with which both reached the target."""
    base_of = {training.seed: training.time_s for training in bases}
    pairs = [(training.time_s, base_of.get(training.seed)) for training in trainings]
    return [time_s / base_s for time_s, base_s in pairs if time_s is not None and base_s is not None]


def _spread(ratio: Mapping[str, Any]) -> str:
    return "{median:.2f} ({low:.2f} to {high:.2f}, n = {n})".format(**ratio)


def _rounded(ratio: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) for name, value in ratio.items()}
