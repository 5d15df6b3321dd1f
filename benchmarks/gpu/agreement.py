"""Whether what is timed is right: kernels against PyTorch's operators, engines against `eager`.

The tests say more; this stands beside the numbers.
"""

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.bandwidth import LARGE, Rows
from benchmarks.gpu.parts import Context
from benchmarks.gpu.racing import Race
from benchmarks.harness import first_words
from bow.devices import TorchKernels

KERNELS = ("sma_round", "sgd_round", "sma_center")
COLUMNS = (431_080, 464_154, LARGE)  # Parameters of LeNet and of ResNet-32, and many

KERNEL_TOLERANCE = 1e-5
ENGINE_TOLERANCE = 1e-4
ENGINES: tuple[str, ...] = ("graph", "streams", "graph+round", "fused")
TOGETHER = 4
ROUNDS = 5 * TOGETHER
LEARNERS = 4
MODELS = (("lenet", 16), ("resnet32", 32))


def measure(context: Context) -> None:
    """Compare."""
    machine, config = context.machine, context.config
    kernels: list[dict[str, Any]] = []
    with machine.device.issuing(), torch.no_grad():
        for columns in COLUMNS if not config.fake else (33,):
            for learners in (1, 3, 8):
                kernels += compared(context, columns, learners)
                context.record(kernels=kernels)
    engines: list[dict[str, Any]] = []
    for model, batch_size in MODELS if not config.fake else MODELS[1:]:
        if engines and not context.time.allows(3):
            context.note(f"{model}: engines not compared, because time ran out")
            continue
        engines += engines_compared(context, model, batch_size)
        context.record(engines=engines)


def compared(context: Context, columns: int, learners: int) -> list[dict[str, Any]]:
    """The kernels of the device and PyTorch's on the same rows."""
    machine = context.machine
    found = []
    rows = Rows(machine, columns, learners)
    for kernel in KERNELS:
        ours, theirs = rows.clone(), rows.clone()
        ours.launch(machine.kernels, kernel)()
        theirs.launch(TorchKernels(), kernel)()
        machine.synchronize()
        names = ("weights", "momenta", "z", "z_prev", "z_next")
        worst = max(_difference(getattr(ours, name), getattr(theirs, name)) for name in names)
        row = {"kernel": kernel, "parameters": columns, "learners": learners, "largest_difference": worst}
        found.append(row | {"agrees": worst <= KERNEL_TOLERANCE})
    return found


def engines_compared(context: Context, model: str, batch_size: int) -> list[dict[str, Any]]:
    """The central models of all engines after the same rounds."""
    machine, config = context.machine, context.config
    subject = Race(context, model, batch_size).subject
    trained: dict[str, Tensor] = {}
    rows: list[dict[str, Any]] = []
    rounds = ROUNDS if not config.fake else TOGETHER
    for engine in ("eager", *ENGINES):
        try:
            # What is compiled is compared in the tests.
            with machine.around(), torch.compiler.set_stance("force_eager"):
                training = subject.bow(LEARNERS, engine, resides=False, most_rounds=TOGETHER)
                with machine.device.issuing():
                    while training.replicas.rounds < rounds:
                        training()
                assert training.replicas.rounds == rounds
                training.close()
                machine.synchronize()
                trained[engine] = training.replicas.z.detach().cpu().clone()
        except Exception as error:
            context.note(f"{model}, {engine}: {first_words(error)}")
            continue
        if "eager" in trained and engine != "eager":
            worst = _difference(trained[engine], trained["eager"])
            row = {"model": model, "batch_size": batch_size, "engine": training.engine, "rounds": rounds}
            rows.append(row | {"largest_difference": worst, "agrees": worst <= ENGINE_TOLERANCE})
    return rows


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference; infinite where there is something that is no number."""
    worst = float((a.double() - b.double()).abs().max())
    return worst if worst == worst else float(torch.finfo(torch.float64).max)
