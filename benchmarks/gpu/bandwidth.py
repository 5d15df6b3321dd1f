"""How close bow's kernels come to a copy of as many bytes, which nothing that reads and writes memory can beat."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.parts import Context
from benchmarks.gpu.workloads import workload
from benchmarks.harness import spread
from benchmarks.trainings import branch
from bow.devices import Kernels

LEARNERS = (1, 2, 4, 8, 16)
LARGE = 25_000_000
BATCH = 16
IMAGES = 16384

# lr, momentum, weight_decay, nesterov, alpha, mu: nothing grows, however often a kernel runs
NUMBERS = (0.001, 0.9, 1e-4, 0.0, 0.05, 0.5)

# lr, both betas, epsilon, weight_decay, decoupled, alpha, mu
ADAM = (1e-5, 0.9, 0.999, 1e-8, 1e-2, 1.0, 0.05, 0.5)

BYTES_IN_A_GRAPH = 2**31
# Launches that are captured as one graph, so that the host does not show; fewer where each takes long
MOST_LAUNCHES = 40

FLOAT = 4


@dataclass(frozen=True)
class Case:
    """A kernel on some tensors."""

    kernel: str  # its name
    size: str  # of what: a model, or the images of a batch
    learners: int  # how many rows
    num_bytes: int  # that it has to read and write
    launch: Callable[[], None]  # runs it once


def measure(context: Context) -> None:
    """Time every kernel and a copy in turns."""
    machine, config = context.machine, context.config
    rows: list[dict[str, Any]] = []
    with machine.device.issuing(), torch.no_grad():
        for case in cases(machine, config.fake):
            if rows and not context.time.allows(0.5):
                context.cut("not all sizes")
                break
            rows.append(timed(machine, case, config.repeats, MOST_LAUNCHES if not config.fake else 1))
            context.record(kernels=machine.kernels.name, why_not_cupy=machine.kernels.reason, rows=rows)


def timed(machine: Machine, case: Case, repeats: int, most_launches: int) -> dict[str, Any]:
    """The time of a kernel and that of a copy of as many bytes, in turns."""
    device = machine.device
    half = max(1, case.num_bytes // 2)  # a copy reads and writes
    source, target = torch.zeros(2, half, dtype=torch.uint8, device=device.torch_device).unbind()
    launches = max(1, min(most_launches, BYTES_IN_A_GRAPH // case.num_bytes))
    stream = device.stream("kernels")
    replays = []
    for run in (case.launch, lambda: target.copy_(source)):
        replays.append(_graph(machine, run, launches))
    seconds: tuple[list[float], list[float]] = ([], [])
    with device.on(stream):
        for replay in replays:
            replay()
        for _ in range(max(2, repeats)):
            for own, replay in zip(seconds, replays, strict=True):
                own.append(machine.device_seconds(replay) / launches)
    machine.synchronize()
    kernel, copy = seconds
    return {
        "kernel": case.kernel,
        "size": case.size,
        "learners": case.learners,
        "mbyte": round(case.num_bytes / 1e6, 3),
        "us": spread([1e6 * each for each in kernel], 3),
        "gb_per_s": spread([case.num_bytes / each / 1e9 for each in kernel], 1),
        "copy_gb_per_s": spread([2 * half / each / 1e9 for each in copy], 1),
        "share_of_copy": spread([c * case.num_bytes / (k * 2 * half) for k, c in zip(kernel, copy, strict=True)], 3),
    }


def cases(machine: Machine, fake: bool) -> Iterator[Case]:
    """All kernels on all sizes, the models' first."""
    sizes = {name: _parameters(name, fake) for name in ("lenet", "resnet32")}
    large = LARGE if not fake else 100
    learners = LEARNERS if not fake else LEARNERS[:2]
    for size, columns in (*sizes.items(), ("25 million", large)):
        for count in reversed(learners):
            yield from row_cases(machine, size, columns, count)
    for name in ("lenet", "resnet32"):
        for count in learners:
            yield gather_case(machine, name, count, fake)


def row_cases(machine: Machine, size: str, columns: int, learners: int) -> Iterator[Case]:
    """The kernels over rows, on tensors that they share."""
    rows = Rows(machine, columns, learners)
    row_bytes = FLOAT * columns
    for kernel, passes in {"sgd_round": 5, "adam_round": 7, "sma_center": 1}.items():
        num_bytes = (passes * learners + 4) * row_bytes
        yield Case(kernel, size, learners, num_bytes, rows.launch(machine.kernels, kernel))


class Rows:
    """Rows of learners and of the central model, padded as the replica matrix is."""

    def __init__(self, machine: Machine, columns: int, learners: int) -> None:
        where = machine.device.torch_device
        padded = -(-columns // 16) * 16
        generator = torch.Generator(where).manual_seed(0)

        def made(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=where)

        self.weights, self.momenta, self.gradients = (made(learners, padded) for _ in range(3))
        self.squares = made(learners, padded).abs_()
        self.z, self.z_prev = (made(padded) for _ in range(2))
        self.finite, self.counts = torch.ones(2, learners, device=where).unbind()
        self.numbers = torch.tensor(NUMBERS, dtype=torch.float64, device=where)
        self.adam = torch.tensor(ADAM, dtype=torch.float64, device=where)

    def launch(self, kernels: Kernels, name: str) -> Callable[[], None]:
        """A call of a kernel on these rows."""
        calls: dict[str, Callable[[], None]] = {
            "sgd_round": lambda: kernels.sgd_round(
                self.weights, self.momenta, self.gradients, self.z, self.z_prev, self.finite, self.numbers, True
            ),
            "adam_round": lambda: kernels.adam_round(
                *(self.weights, self.momenta, self.squares, self.gradients, self.z, self.z_prev),
                *(self.finite, self.counts, self.adam, True),
            ),
            "sma_center": lambda: kernels.sma_center(self.weights, self.z, self.z_prev, self.numbers),
        }
        return calls[name]


def gather_case(machine: Machine, model: str, learners: int, fake: bool) -> Case:
    """The images of a round."""
    where = machine.device.torch_device
    shape = workload(model, fake).make_data(1)[0].shape[1:]
    source = torch.zeros(IMAGES if not fake else 64, *shape, device=where)
    count = learners * BATCH
    indices = torch.randperm(len(source), device=where)[:count].contiguous()
    out = torch.empty(count, *shape, device=where)
    kernels = machine.kernels
    num_bytes = 2 * out.nbytes + indices.nbytes
    return Case("gather", f"{model}'s images", learners, num_bytes, lambda: kernels.gather(source, indices, out))


def _graph(machine: Machine, run: Callable[[], object], launches: int) -> Callable[[], None]:
    device = machine.device
    stream = device.stream("kernels")
    branch(device, [stream])
    with device.on(stream):
        run()  # loads the kernel
    with device.capture(stream) as graph:
        for _ in range(launches):
            run()
    machine.join([stream])
    return graph.replay


def _parameters(model: str, fake: bool) -> int:
    return sum(parameter.numel() for parameter in workload(model, fake).model().parameters())
