"""The models and batch sizes of `bow bench tuner`."""

import functools
from dataclasses import dataclass

from bow.bench.workloads import GREY, WORKLOADS, Workload
from bow.models import MLP

SAMPLES = 4096
"""In memory, for each pair; of noise, see `bow.bench.workloads`."""


@dataclass(frozen=True)
class Pair:
    """A model and a batch size.

    Attributes:
        workload: the model and its data.
        batch_size: samples per learner and round.
    """

    workload: Workload
    batch_size: int


PAIRS: dict[str, Pair] = {
    "logistic_regression_16": Pair(WORKLOADS["logistic_regression"], 16),
    "mlp_16": Pair(WORKLOADS["mlp"], 16),
    "lenet_4": Pair(WORKLOADS["lenet"], 4),
    "lenet_16": Pair(WORKLOADS["lenet"], 16),
    "resnet8_16": Pair(WORKLOADS["resnet8"], 16),
    "lstm_64": Pair(WORKLOADS["lstm"], 64),
    # Rows larger than a core's cache and next to no arithmetic: learners take the memory from each other.
    "wide_mlp_1": Pair(Workload("MLP, 2 x 2048", functools.partial(MLP, 28 * 28, 10, (2048, 2048)), GREY), 1),
    "wide_mlp_2": Pair(Workload("MLP, 2 x 1024", functools.partial(MLP, 28 * 28, 10, (1024, 1024)), GREY), 2),
}
"""By name; in the last two, one learner is expected to be best."""
