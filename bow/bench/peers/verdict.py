"""Whether bow is as much faster as it claims to be, and if not, what is missing; from numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bow.bench.measure import Spread
from bow.bench.peers.contestants import BOW, PYTORCH
from bow.bench.peers.training import Training

LIMIT = 0.7
CLAIM = f"bow reaches the target in at most {LIMIT:g} of the time of the best setting of plain PyTorch"


@dataclass(frozen=True)
class Duel:
    """bow and plain PyTorch with the same seed, both at the target.

    The ratio of times is that of samples by that of throughputs, and the rest: what setting up takes.

    Attributes:
        bow: its training.
        plain: that of plain PyTorch.
    """

    bow: Training
    plain: Training

    @property
    def ratio(self) -> float:
        """Of the times to the target."""
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
    def setup(self) -> float:
        """What is left of the ratio of times: what setting up adds to it."""
        return self.ratio - self.samples / self.throughput

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        parts = {name: round(getattr(self, name), 4) for name in ("ratio", "samples", "throughput", "setup")}
        return {"seed": self.bow.seed, **parts}


@dataclass(frozen=True)
class Verdict:
    """What the finals say about the claim.

    Attributes:
        duels: of the seeds with which both reached the target.
        missed: who did not reach it, or was not there, with which seed.
    """

    duels: tuple[Duel, ...]
    missed: tuple[tuple[str, int], ...]

    @property
    def ratio(self) -> Spread | None:
        """Of the times, seed by seed; None where there is none."""
        return Spread.of([duel.ratio for duel in self.duels]) if self.duels else None

    @property
    def is_met(self) -> bool | None:
        """Whether the claim holds; None where bow and plain PyTorch did not both take part."""
        if not self.duels and not self.missed:
            return None
        return not self.missed and self.ratio is not None and self.ratio.median <= LIMIT

    @property
    def typical(self) -> Duel:
        """The duel of the median ratio; of an even number, that of the higher one of the middle two."""
        return sorted(self.duels, key=lambda duel: duel.ratio)[len(self.duels) // 2]

    def __str__(self) -> str:
        """One sentence."""
        if self.is_met is None:
            return "No verdict: bow and plain PyTorch did not both take part."
        outcome = "holds" if self.is_met else "does not hold"
        if self.ratio is None:
            return f"The claim {outcome}: with no seed did both reach the target."
        spread = f"{self.ratio.median:.2f} ({self.ratio.low:.2f} to {self.ratio.high:.2f}, n = {self.ratio.n})"
        rest = "".join(f"; {name} did not reach the target with seed {seed}" for name, seed in self.missed)
        return f"The claim {outcome}: bow takes {spread} of the time of plain PyTorch{rest}."

    def explanation(self) -> str:
        """Why, by the measured parts, in a few sentences; empty where nothing was measured."""
        if not self.duels:
            return ""
        duel = self.typical
        steady = duel.samples / duel.throughput
        text = (
            f"With seed {duel.bow.seed}, that of the median, bow sees {duel.samples:.2f} times the samples of plain "
            f"PyTorch until the target, at {duel.throughput:.2f} times its throughput: "
            f"{duel.samples:.2f} / {duel.throughput:.2f} = {steady:.2f}. Setting up ({duel.bow.setup_s:.1f} s, against "
            f"{duel.plain.setup_s:.1f} s) makes it {duel.ratio:.2f}."
        )
        if self.is_met:
            return text
        needed = (LIMIT - duel.setup) * duel.throughput
        reach = (
            f"{LIMIT:g} would take {needed:.2f} times the samples at this throughput"
            if needed > 0
            else f"no number of samples would make it {LIMIT:g} with this set-up"
        )
        return (
            f"{text} With as many samples as plain PyTorch it would be {1 / duel.throughput + duel.setup:.2f}, and "
            f"with no set-up {steady:.2f}; {reach}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "claim": CLAIM,
            "is_met": self.is_met,
            "ratio": None if self.ratio is None else self.ratio.as_dict(digits=3),
            "seeds": [duel.as_dict() for duel in self.duels],
            "missed": [list(miss) for miss in self.missed],
        }


def decide(finals: Sequence[Training]) -> Verdict:
    """Compare bow with plain PyTorch, seed by seed."""
    by_name = {name: {t.seed: t for t in finals if t.choice.contestant == name} for name in (BOW, PYTORCH)}
    if not all(by_name.values()):
        return Verdict((), ())
    duels, missed = [], []
    for seed, bow in by_name[BOW].items():
        plain = by_name[PYTORCH][seed]
        slow = [training.choice.contestant for training in (bow, plain) if training.time_s is None]
        missed += [(name, seed) for name in slow]
        if not slow:
            duels.append(Duel(bow, plain))
    return Verdict(tuple(duels), tuple(missed))
