"""The contestants."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.peers.task import Job

# torch's compiler, which all need: torch.optim imports a part of it, which takes seconds
COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")


@dataclass(frozen=True)
class Contestant:
    title: str  # display name
    function: str  # its name in `benchmarks.peers.trainings`
    about: str  # a sentence for the page
    threads: Literal["fastest", "one", "all"] = "fastest"  # torch's threads per process
    package: str | None = None  # required package
    devices: tuple[str, ...] = ("cpu", "cuda")  # where it can run
    processes: int = 1  # number of processes
    imports: tuple[str, ...] = ()  # modules that are imported during training, in addition to `COMPILER`
    base: str | None = "pytorch"  # contestant whose setting it uses; None: its own best
    environment: Mapping[str, str] = field(default_factory=dict)

    def missing(self, device: str) -> str | None:
        """Return why it cannot run on a device; None if it can."""
        if device not in self.devices:
            return "needs a GPU" if device == "cpu" else "is for CPUs"
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"not installed (pip install {self.package})"
        return None

    def load(self) -> Callable[[Job], str | None]:
        """Import everything, and return the training function."""
        for name in (*COMPILER, *self.imports):
            importlib.import_module(name)
        module = importlib.import_module("benchmarks.peers.trainings")
        function: Callable[[Job], str | None] = getattr(module, self.function)
        return function


PYTORCH, LARGE_BATCH, BOW, GOODPUT = "pytorch", "large_batch", "bow", "bow_goodput"

# As set by the command `bow`: torch's idle threads sleep instead of spinning
AS_BOW_SETS = {"OMP_WAIT_POLICY": "PASSIVE"}

CONTESTANTS: dict[str, Contestant] = {
    PYTORCH: Contestant(
        "PyTorch",
        "train",
        "one model, one batch at a time",
        base=None,
    ),
    "channels_last": Contestant(
        "PyTorch, channels_last",
        "train_channels_last",
        "the same, with convolutions' weights and images in that order of memory",
    ),
    "compile": Contestant(
        "torch.compile, model",
        "train_compiled",
        "plain PyTorch with the model compiled",
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
