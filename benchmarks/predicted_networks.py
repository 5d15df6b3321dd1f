"""The networks whose steps `python -m benchmarks predicted` predicts and measures."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bow.engines import step_from_loss
from bow.models.networks import NETWORKS as SIZES
from bow.planning.tiles import CapturedOperators, capture_operators
from bow.replicas import OptimizerFactory


@dataclass(frozen=True)
class PredictedNetwork:
    """A network in its small form."""

    name: str  # of the network, as the command line has it
    samples: int  # of a batch: several times the small form's, so that operators take longer than their messages

    @property
    def title(self) -> str:
        """For people."""
        return SIZES[self.name].title

    @property
    def optimizer(self) -> OptimizerFactory:
        """What trains it."""
        return functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)

    def captured(self) -> tuple[CapturedOperators, nn.Module, Any]:
        """Its step, the model and a batch."""
        network = SIZES[self.name]
        torch.manual_seed(0)
        model, batch = network.build("tiny"), network.batch("tiny", samples=self.samples)
        return capture_operators(model, batch, step=step_from_loss(network.loss)), model, batch


# By name
NETWORKS: Mapping[str, PredictedNetwork] = {
    name: PredictedNetwork(name, samples)
    for name, samples in {"alexnet": 64, "inception": 16, "rnnlm": 128, "nmt": 96}.items()
}
