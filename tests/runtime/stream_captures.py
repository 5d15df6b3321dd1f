"""A step on several streams as one graph, captured as engines do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bow.devices import CapturedGraph, Stream, StreamDevice
from bow.graph.learning_step import StepOutputs
from bow.runtime.streams import StreamRuntime
from bow.testing import FakeDevice

WARM_UP = 3  # on the fake device one is enough


@dataclass
class StreamCapture:
    """A step on several streams as one graph, on fixed tensors."""

    device: StreamDevice
    stream: Stream
    graph: CapturedGraph
    outputs: StepOutputs

    def replay(self) -> StepOutputs:
        with self.device.issuing(), self.device.on(self.stream):
            self.graph.replay()
        return self.outputs


def capture_step(
    runtime: StreamRuntime,
    device: StreamDevice,
    streams: Sequence[Stream],
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    batch: Any,
    generator: torch.Generator | None = None,
) -> StreamCapture:
    for _ in range(1 if isinstance(device, FakeDevice) else WARM_UP):
        runtime.run(parameters, buffers, batch, seed=0)
    runtime.close()
    with device.issuing(), device.capture(streams[0], generator) as graph:
        outputs = runtime.run(parameters, buffers, batch)
    return StreamCapture(device, streams[0], graph, outputs)
