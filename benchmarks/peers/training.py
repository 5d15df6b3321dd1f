"""What is tuned, and what came out of a training."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from benchmarks.harness import counted

# How a training ends
REACHED, EPOCHS, TIME, DIVERGED, FAILED = "reached", "epochs used up", "time used up", "diverged", "failed"

REHEARSAL, SWEEP, FINAL = "rehearsal", "sweep", "final"  # What it is for


@dataclass(frozen=True)
class Choice:
    """What is tuned."""

    contestant: str  # who trains, a key of `CONTESTANTS`
    batch_size: int  # samples in a step; of each learner, process or model where there are several
    lr: float  # learning rate
    threads: int  # torch's, of each process

    def __str__(self) -> str:
        """For people."""
        return f"{self.contestant}, batch {self.batch_size}, lr {self.lr:g}, {counted(self.threads, 'thread')}"


class Look(NamedTuple):
    """One evaluation."""

    seconds: float  # of training until then
    samples: int  # seen until then, by all learners or processes together; of an ensemble, by each model
    accuracy: float  # on the test images, as a share


@dataclass(frozen=True)
class Training:
    """One training."""

    choice: Choice  # what was tuned
    seed: int  # of weights and shuffling
    stage: str  # what it was for
    ending: str  # how it ended
    looks: tuple[Look, ...] = ()  # its evaluations, in their order
    ran_as: str | None = None  # what ran, where that does not follow from the choice
    why: str | None = None  # why it failed
    limit_s: float | None = None  # seconds after which it would have ended

    @property
    def time_s(self) -> float | None:
        """Seconds to the target; None where it was not reached."""
        return self.looks[-1].seconds if self.ending == REACHED else None

    @property
    def samples(self) -> int:
        """How many it took, or would not do."""
        return self.looks[-1].samples if self.looks else 0

    @property
    def best_accuracy(self) -> float:
        """The highest of all evaluations; 0 where there was none."""
        return max((look.accuracy for look in self.looks), default=0.0)

    @property
    def throughput(self) -> float:
        """Samples per second from the first to the last evaluation, or to the first where there is one only."""
        if not self.looks:
            return 0.0
        first, last = self.looks[0], self.looks[-1]
        if len(self.looks) == 1:
            first = Look(0.0, 0, 0.0)
        return (last.samples - first.samples) / max(last.seconds - first.seconds, 1e-9)

    @property
    def rest_s(self) -> float:
        """Seconds beyond what the samples take at that throughput: compilation, calibration, capture.

        What is left of a subtraction: below 0 where the beginning was faster than what came after it.
        """
        return self.looks[-1].seconds - self.samples / self.throughput if self.looks else 0.0

    def summary(self, target: float) -> str:
        """The training in a line."""
        head = f"{self.stage}, {self.choice}, seed {self.seed}"
        ran_as = "" if self.ran_as is None else f" [{self.ran_as}]"
        if not self.looks:
            return f"{head}{ran_as}: {self.ending}{'' if self.why is None else f', {self.why}'}"
        last = self.looks[-1]
        reached = f"{target:.1%} reached" if self.ending == REACHED else f"{self.ending}, best {self.best_accuracy:.1%}"
        return (
            f"{head}{ran_as}: {reached} after {last.seconds:.1f} s and {last.samples:,} samples, "
            f"{self.throughput:,.0f} samples/s, rest {self.rest_s:.1f} s"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "stage": self.stage,
            **asdict(self.choice),
            "seed": self.seed,
            "ending": self.ending,
            "time_to_target_s": None if self.time_s is None else round(self.time_s, 2),
            "samples": self.samples,
            "samples_per_s": round(self.throughput, 1),
            "rest_s": round(self.rest_s, 2),
            "ran_as": self.ran_as,
            "why": self.why,
            "limit_s": self.limit_s,
            "curve": [[round(look.seconds, 6), look.samples, round(look.accuracy, 6)] for look in self.looks],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Training":
        """The training of such values."""
        choice = Choice(*(values[name] for name in ("contestant", "batch_size", "lr", "threads")))
        looks = tuple(Look(*look) for look in values["curve"])
        others = {name: values[name] for name in ("seed", "stage", "ending", "ran_as", "why", "limit_s")}
        return cls(choice, looks=looks, **others)


def by_choice(trainings: Iterable[Training]) -> dict[Choice, list[Training]]:
    """The trainings of every choice, in their order."""
    groups: dict[Choice, list[Training]] = {}
    for training in trainings:
        groups.setdefault(training.choice, []).append(training)
    return groups
