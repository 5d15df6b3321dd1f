"""What one member of a team has for all steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.tiles.kept import DeviceBuffers
from bow.planning.tiles.program import Program
from bow.planning.tiles.recording import Recorder
from bow.planning.tiles.share import Share
from bow.planning.tiles.team import Team
from bow.planning.tiles.weights import DeviceWeights


@dataclass(frozen=True)
class Member:
    """One device of a team, ready to run steps.

    Attributes:
        graph: the operators.
        dtypes: of all tensors, by number.
        program: what all devices do in a step.
        share: what this one does of it.
        team: the devices.
        weights: what this one has of the weights.
        buffers: what this one keeps besides.
        recorder: notes when it does what.
        seed: of random draws.
    """

    graph: OperatorGraph
    dtypes: Mapping[int, torch.dtype]
    program: Program
    share: Share
    team: Team
    weights: DeviceWeights
    buffers: DeviceBuffers
    recorder: Recorder
    seed: int

    @cached_property
    def places(self) -> Mapping[int, tuple[int, int]]:
        """By tensor that an operator makes: the operator's number, and the tensor's among its outputs."""
        return {
            tensor: (number, place)
            for number, operator in enumerate(self.graph.operators)
            for place, tensor in enumerate(operator.outputs)
        }
