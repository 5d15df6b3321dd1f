"""Tuned settings, and outcomes of trainings."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from benchmarks.harness import counted

# Outcomes of a training
REACHED, EPOCHS, TIME, DIVERGED, FAILED = "reached", "epochs used up", "time used up", "diverged", "failed"

REHEARSAL, SWEEP, FINAL = "rehearsal", "sweep", "final"  # stages


@dataclass(frozen=True)
class Choice:
    contestant: str  # a key of `CONTESTANTS`
    batch_size: int  # per learner, process or model, if there are several
    lr: float  # learning rate
    threads: int  # torch's threads per process

    def __str__(self) -> str:
        return f"{self.contestant}, batch {self.batch_size}, lr {self.lr:g}, {counted(self.threads, 'thread')}"


class Look(NamedTuple):
    seconds: float  # training time so far
    samples: int  # so far, by all learners or processes together; for an ensemble, by each model
    accuracy: float  # on the test images, as a fraction


@dataclass(frozen=True)
class Training:
    choice: Choice  # tuned settings
    seed: int  # of weights and shuffling
    stage: str
    ending: str
    looks: tuple[Look, ...] = ()  # evaluations, in order
    ran_as: str | None = None  # actual mode, if the choice does not determine it
    why: str | None = None  # reason of a failure
    limit_s: float | None = None  # maximum training time

    @property
    def time_s(self) -> float | None:
        """Seconds to the target; None if it was not reached."""
        return self.looks[-1].seconds if self.ending == REACHED else None

    @property
    def samples(self) -> int:
        """Samples to the target, or in total."""
        return self.looks[-1].samples if self.looks else 0

    @property
    def best_accuracy(self) -> float:
        """The highest of all evaluations; 0 if there are none."""
        return max((look.accuracy for look in self.looks), default=0.0)

    @property
    def throughput(self) -> float:
        """Samples per second from the first to the last evaluation, or to the first if there is only one."""
        if not self.looks:
            return 0.0
        first, last = self.looks[0], self.looks[-1]
        if len(self.looks) == 1:
            first = Look(0.0, 0, 0.0)
        return (last.samples - first.samples) / max(last.seconds - first.seconds, 1e-9)

    @property
    def rest_s(self) -> float:
        """Seconds in addition to processing the samples at that throughput: compilation, calibration, capture.

        Computed as a difference: negative if the beginning was faster than the rest.
        """
        return self.looks[-1].seconds - self.samples / self.throughput if self.looks else 0.0

    def summary(self, target: float) -> str:
        """Describe the training in a line."""
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
        """Restore a training from such values."""
        choice = Choice(*(values[name] for name in ("contestant", "batch_size", "lr", "threads")))
        looks = tuple(Look(*look) for look in values["curve"])
        others = {name: values[name] for name in ("seed", "stage", "ending", "ran_as", "why", "limit_s")}
        return cls(choice, looks=looks, **others)


def by_choice(trainings: Iterable[Training]) -> dict[Choice, list[Training]]:
    """Group trainings by choice, in order."""
    groups: dict[Choice, list[Training]] = {}
    for training in trainings:
        groups.setdefault(training.choice, []).append(training)
    return groups
