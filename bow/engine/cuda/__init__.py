"""Engines on devices that work through streams."""

from bow.engine.cuda.base import StreamEngine as StreamEngine
from bow.engine.cuda.fused import CudaFused as CudaFused
from bow.engine.cuda.graph import CudaGraphs as CudaGraphs
from bow.engine.cuda.streams import CudaStreams as CudaStreams
from bow.engine.cuda.whole_round import WholeRound as WholeRound
