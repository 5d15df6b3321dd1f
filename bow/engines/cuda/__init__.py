"""Engines on devices with streams."""

from bow.engines.cuda.fused import CudaFused as CudaFused
from bow.engines.cuda.graph import CudaGraphs as CudaGraphs
from bow.engines.cuda.loop import DeviceRoundLoop as DeviceRoundLoop
from bow.engines.cuda.runner import DeviceRunner as DeviceRunner
from bow.engines.cuda.streams import CudaStreams as CudaStreams
from bow.engines.cuda.whole_round import WholeRound as WholeRound
