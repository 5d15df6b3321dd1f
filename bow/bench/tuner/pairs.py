"""The models and batch sizes of `bow bench tuner`."""

import functools
from dataclasses import dataclass

from bow.bench.workloads import CLASSES, COLOR, WORKLOADS, Data, Workload
from bow.models import LogisticRegression

SAMPLES, FEWEST_BATCHES = 4096, 8
"""In memory, for each pair, and more where these would be fewer batches; of noise, see `bow.bench.workloads`."""


@dataclass(frozen=True)
class Pair:
    """A model and a batch size.

    Attributes:
        workload: the model and its data.
        batch_size: samples per learner and round.
    """

    workload: Workload
    batch_size: int

    def make_data(self) -> Data:
        """Inputs and targets."""
        return self.workload.make_data(max(SAMPLES, FEWEST_BATCHES * self.batch_size))


PAIRS: dict[str, Pair] = {
    "logistic_regression_16": Pair(WORKLOADS["logistic_regression"], 16),
    "mlp_16": Pair(WORKLOADS["mlp"], 16),
    "lenet_4": Pair(WORKLOADS["lenet"], 4),
    "lenet_16": Pair(WORKLOADS["lenet"], 16),
    "resnet8_16": Pair(WORKLOADS["resnet8"], 16),
    "lstm_64": Pair(WORKLOADS["lstm"], 64),
    # Bringing the batches to the learners takes as long as learning: more of them wait for each other.
    "logistic_regression_4096": Pair(WORKLOADS["logistic_regression"], 4096),
    "color_512": Pair(
        Workload("logistic regression, color", functools.partial(LogisticRegression, 3 * 32 * 32, CLASSES), COLOR), 512
    ),
}
"""By name; in the last two, one learner is expected to be best."""
