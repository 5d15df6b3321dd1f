"""`python -m benchmarks gpu`: bow on one GPU, beside its peers, within a time that is given.

What is measured, each part in a process of its own, so that one that fails or hangs leaves the others alone:

* the rate at which the device starts kernels from several streams;
* samples per second of plain, compiled and graphed PyTorch and of bow's engines, in turns;
* what averaging costs; how close the kernels come to a copy; whether kernels of two learners overlap;
* the comparisons of Budea, TensorBow, 2019: allocators, operators spread over streams, pinned threads.

Of packages it needs nothing but PyTorch.
"""

import importlib

from benchmarks.gpu.settings import Config as Config


def run(settings: Config, command: str) -> int:
    """Measure all parts; `gpu.json` and `gpu.md` are written anew behind each of them."""
    status: int = importlib.import_module("benchmarks.gpu.program").run(settings, command)
    return status
