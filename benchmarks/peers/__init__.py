"""`python -m benchmarks peers`: time to accuracy of bow, and of what one would take instead of it.

The same model on the same data, on one machine, by one command: plain PyTorch, PyTorch compiled, with large batches or
as a CUDA graph, accelerate's LocalSGD, Lightning, an ensemble by `torch.func`, and `bow.train`. It runs in two stages:

1. with one seed, batch size and learning rate are swept for plain PyTorch and for bow, by the same rule on the same
   grid; the others take the best setting of plain PyTorch, large batches by the linear scaling rule;
2. the best setting of everybody, of plain PyTorch and bow the best two, is trained with other seeds, all contestants
   in turn within each seed.

The claim that it checks is `verdict.CLAIM`: the exit status is 1 where it does not hold.
"""

import importlib

from benchmarks.peers.settings import Settings as Settings


def run(settings: Settings, command: str) -> int:
    """Run both stages, and write `peers.json`, `peers.md` and `peers.png`; 1 where the claim does not hold, else 0."""
    status: int = importlib.import_module("benchmarks.peers.program").run(settings, command)
    return status
