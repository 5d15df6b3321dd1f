"""The models and batch sizes of `python -m benchmarks tuner`."""

import functools
from dataclasses import dataclass

from benchmarks.trainings import Data
from benchmarks.workloads import CLASSES, COLOR, WORKLOADS, Workload
from bow.engines.choice import MIN_ROUNDS_PER_EPOCH
from bow.models import LogisticRegression

# In memory, for each pair, and more where these would leave no room for so many learners: with the number of learners
# left open, every one has a number of batches an epoch at least. They are noise, see `benchmarks.workloads`
SAMPLES, MOST_LEARNERS = 4096, 8


@dataclass(frozen=True)
class Pair:
    """A model and a batch size."""

    workload: Workload  # the model and its data
    batch_size: int  # samples per learner and round

    @property
    def num_samples(self) -> int:
        """Enough for the largest number of learners."""
        return max(SAMPLES, MOST_LEARNERS * MIN_ROUNDS_PER_EPOCH * self.batch_size)

    def make_data(self) -> Data:
        """Inputs and targets."""
        return self.workload.make_data(self.num_samples)


# By name; in the last two, one learner is expected to be best, which the results show or refute
PAIRS: dict[str, Pair] = {
    "logistic_regression_16": Pair(WORKLOADS["logistic_regression"], 16),
    "mlp_16": Pair(WORKLOADS["mlp"], 16),
    "lenet_4": Pair(WORKLOADS["lenet"], 4),
    "lenet_16": Pair(WORKLOADS["lenet"], 16),
    "resnet8_16": Pair(WORKLOADS["resnet8"], 16),
    "lstm_64": Pair(WORKLOADS["lstm"], 64),
    # Batches are moved most of the time: more learners wait for the same memory.
    "logistic_regression_512": Pair(WORKLOADS["logistic_regression"], 512),
    "color_64": Pair(
        Workload("logistic regression, color", functools.partial(LogisticRegression, 3 * 32 * 32, CLASSES), COLOR), 64
    ),
}
