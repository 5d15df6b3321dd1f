"""The trainings of `python -m benchmarks accuracy`, and what is told of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.environment import Environment
from benchmarks.results import Table


@dataclass(frozen=True)
class Training:
    """One training with one seed."""

    seed: int  # of initialisation and shuffling
    accuracies: tuple[float, ...]  # of the central model after each epoch, as shares
    losses: tuple[float, ...]  # of the central model after each epoch
    times_s: tuple[float, ...]  # seconds from the first round to the end of each epoch, evaluations included
    throughput: float  # training samples per second, warm-up and evaluations left out

    def epoch_of(self, target: float) -> int | None:
        """The first epoch after which the central model had this accuracy; None if there was none."""
        return next((epoch for epoch, value in enumerate(self.accuracies, 1) if value >= target), None)

    def time_to(self, target: float) -> float | None:
        """Seconds until then."""
        epoch = self.epoch_of(target)
        return None if epoch is None else self.times_s[epoch - 1]

    def summary(self, target: float) -> str:
        """The training in a sentence."""
        seconds = self.time_to(target)
        reached = f"never {target:.0%}" if seconds is None else f"{target:.0%} in epoch {self.epoch_of(target)}"
        when = "" if seconds is None else f" after {seconds:.0f} s"
        return (
            f"seed {self.seed}: {reached}{when}, best {max(self.accuracies):.2%}, last {self.accuracies[-1]:.2%}, "
            f"{self.throughput:,.0f} samples/s"
        )

    def as_dict(self, target: float) -> dict[str, Any]:
        """The training as plain values."""
        seconds = self.time_to(target)
        return {
            "seed": self.seed,
            "accuracies": [round(value, 4) for value in self.accuracies],
            "losses": [round(value, 4) for value in self.losses],
            "times_s": [round(value, 1) for value in self.times_s],
            "epochs_to_target": self.epoch_of(target),
            "time_to_target_s": None if seconds is None else round(seconds, 1),
            "samples_per_s": round(self.throughput, 1),
        }


def table(trainings: Sequence[Training], target: float) -> Table:
    """A column for every seed: the accuracy after each epoch, and when the target was reached."""
    epochs = range(1, 1 + max(len(training.accuracies) for training in trainings))
    rows = [[f"epoch {epoch}", *(f"{t.accuracies[epoch - 1]:.2%}" for t in trainings)] for epoch in epochs]
    rows.append([f"{target:.0%} reached in epoch", *(str(t.epoch_of(target) or "never") for t in trainings)])
    times = [training.time_to(target) for training in trainings]
    rows.append(["after", *("" if time_s is None else f"{time_s:.0f} s" for time_s in times)])
    rows.append(["samples/s", *(f"{training.throughput:,.0f}" for training in trainings)])
    return Table(["", *(f"seed {training.seed}" for training in trainings)], rows, left=[""])


def markdown(trainings: Sequence[Training], values: Mapping[str, Any], environment: Environment) -> str:
    """The page `accuracy.md`, from the same values as `accuracy.json`."""
    settings = values["settings"]
    return (
        f"# LeNet on {settings['data'].replace('_', ' ')}\n\n"
        f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s. {environment}.\n\n"
        f"{settings['learners']} learners of batch {settings['batch_size']}, learning rate {settings['lr']:g} "
        f"({settings['schedule']}), "
        f"{settings['threads']} thread(s); fixed: {values['fixed']}. "
        f"Shown is the {values['metric']} after each epoch.\n\n"
        f"{table(trainings, settings['target']).markdown()}"
    )
