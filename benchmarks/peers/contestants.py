"""Who takes part."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.peers.task import Job

# torch's compiler, which everybody needs: torch.optim imports a part of it, which takes seconds
COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")


@dataclass(frozen=True)
class Contestant:
    """One way to train."""

    title: str  # its name, for people
    function: str  # its name in `benchmarks.peers.trainings`
    about: str  # what it is, a sentence for the page
    threads: Literal["fastest", "one", "all"] = "fastest"  # how many of torch's threads a process has
    package: str | None = None  # what has to be installed besides bow
    devices: tuple[str, ...] = ("cpu", "cuda")  # where it runs
    processes: int = 1  # how many train together
    imports: tuple[str, ...] = ()  # modules that it would import in the course of training, besides `COMPILER`
    base: str | None = "pytorch"  # whose setting it takes; None: what is best for itself
    environment: Mapping[str, str] = field(default_factory=dict)

    def missing(self, device: str) -> str | None:
        """Why it cannot take part on a device; None where it can."""
        if device not in self.devices:
            return "needs a GPU" if device == "cpu" else "is for CPUs"
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"not installed (pip install {self.package})"
        return None

    def load(self) -> Callable[[Job], str | None]:
        """Import everything, and return the function that trains."""
        for name in (*COMPILER, *self.imports):
            importlib.import_module(name)
        module = importlib.import_module("benchmarks.peers.trainings")
        function: Callable[[Job], str | None] = getattr(module, self.function)
        return function


PYTORCH, LARGE_BATCH, BOW, GOODPUT = "pytorch", "large_batch", "bow", "bow_goodput"

# What the command `bow` sets for its users: torch's idle threads sleep instead of spinning
AS_BOW_SETS = {"OMP_WAIT_POLICY": "PASSIVE"}

CONTESTANTS: dict[str, Contestant] = {
    PYTORCH: Contestant(
        "PyTorch",
        "train",
        "one model, one batch at a time",
        base=None,
    ),
    "compile": Contestant(
        "torch.compile, model",
        "train_compiled",
        "the same, with the model compiled",
    ),
    "compile_step": Contestant(
        "torch.compile, step",
        "train_step",
        "the whole step, forward, backward and SGD, written as one function and compiled, with only the guards on "
        "tensors",
    ),
    LARGE_BATCH: Contestant(
        "PyTorch, large batch",
        "train_large_batch",
        "a learning rate in proportion to the batch size, after a warm-up from 0 over half an epoch (after Goyal et "
        "al., Accurate, large minibatch SGD, 2017)",
    ),
    "local_sgd": Contestant(
        "accelerate LocalSGD",
        "train_local_sgd",
        "two processes of one thread each, which average their weights by gloo every 8 steps; starting them is not "
        "timed",
        threads="one",
        package="accelerate",
        imports=("accelerate", "accelerate.local_sgd"),
        devices=("cpu",),
        processes=2,
    ),
    "lightning": Contestant(
        "Lightning",
        "train_lightning",
        "a `Trainer` without logger, checkpoints, progress bar and summary, which gets the same batches as PyTorch",
        package="lightning",
        imports=("lightning",),
    ),
    "ensemble": Contestant(
        "torch.func ensemble",
        "train_ensemble",
        "two models with weights and batches of their own, trained by one `vmap`; evaluated by the average of their "
        "probabilities; epochs and samples are those of each model",
    ),
    "cuda_graph": Contestant(
        "PyTorch, CUDA graph",
        "train_graphed",
        "the whole step captured into one CUDA graph",
        devices=("cuda",),
    ),
    BOW: Contestant(
        "bow",
        "train_bow",
        'bow.train with learners="auto" and engine="auto"',
        threads="all",
        base=None,
        environment=AS_BOW_SETS,
    ),
    GOODPUT: Contestant(
        "bow, goodput",
        "train_for_goodput",
        'the same with bow.tuner.Tuner(objective="goodput")',
        threads="all",
        base=BOW,
        environment=AS_BOW_SETS,
    ),
}
