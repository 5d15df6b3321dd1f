"""The kernels of the device against PyTorch's operators on the same rows."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.machine import Machine
from benchmarks.trainings import branch
from bow.devices import Kernels
from tests.gpu.case import Case, Skipped
from tests.gpu.trainings import is_fake

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}
SHAPES = ((1, 15), (2, 16), (3, 4099), (5, 17), (8, 431_080), (16, 1000))
NUMBERS = (0.1, 0.9, 0.01, 0.0, 0.3, 0.5)
NESTEROV = (0.1, 0.9, 0.01, 1.0, 0.3, 0.5)
ADAM = (0.9, 0.99, 1e-3, 0.01, 1.0, 0.3, 0.5)  # behind the learning rate
PLAIN = (0.1, 0.0, 0.0, 0.0, 0.3, 0.5)


def cases(fake: bool) -> list[Case]:
    names = ("sma_contribute", "sma_apply", "sma_center", "sgd_row", "sgd_round", "adam_round")
    return [
        Case("kernels are CuPy's", _are_cupys, "it has PyTorch's operators for kernels"),
        *(
            Case(f"kernel {name}, {str(dtype).removeprefix('torch.')}", functools.partial(_equal, name, dtype))
            for name, dtype in itertools.product(names, TOLERANCES)
        ),
        Case("kernel gather", _gather),
        Case("kernels in a graph take the numbers of the replay", _captured),
    ]


def _are_cupys(machine: Machine) -> None:
    installed = any(d.name.startswith("cupy") for d in importlib.metadata.distributions() if d.name)
    if not installed:
        raise Skipped(str(machine.kernels.reason))
    assert machine.kernels.name == "cupy", machine.kernels.reason


class _Rows:
    def __init__(self, device: torch.device, dtype: torch.dtype, learners: int, columns: int) -> None:
        generator = torch.Generator().manual_seed(learners * columns)

        def made(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device, dtype)

        self.w, self.m, self.g, self.c = (made(learners, columns) for _ in range(4))
        self.z, self.z_prev, self.total = (made(columns) for _ in range(3))
        self.v = made(learners, columns).abs()
        computed = torch.promote_types(dtype, torch.float32)
        self.counts = torch.arange(learners, device=device, dtype=computed)
        self.task, self.kept = made(3).to(computed), made(learners, 3).to(computed)
        self.bad = torch.tensor([0.5, torch.inf, 3.0], device=device, dtype=computed)

    def clone(self) -> _Rows:
        other = object.__new__(_Rows)
        vars(other).update({name: tensor.clone() for name, tensor in vars(self).items()})
        return other

    def call(self, kernels: Kernels, name: str, numbers: Tensor, finite: Tensor, synchronise: bool) -> None:
        calls: dict[str, Any] = {
            "sma_contribute": lambda: kernels.sma_contribute(self.w, self.z, self.c, self.total, 0.3),
            "sma_apply": lambda: kernels.sma_apply(self.w, self.c, self.z, self.z_prev, self.total, 0.5),
            "sma_center": lambda: kernels.sma_center(self.w, self.z, self.z_prev, numbers),
            "sgd_row": lambda: [
                kernels.sgd_row(
                    *(self.w[j], self.m[j], self.g[j], self.z, self.z_prev),
                    torch.where(finite[j] == 1, self.task, self.bad),
                    self.kept[j],
                    numbers,
                    synchronise,
                )
                for j in range(len(self.w))
            ],
            "sgd_round": lambda: kernels.sgd_round(
                self.w, self.m, self.g, self.z, self.z_prev, finite, numbers, synchronise
            ),
            "adam_round": lambda: kernels.adam_round(
                *(self.w, self.m, self.v, self.g, self.z, self.z_prev, finite, self.counts),
                *(torch.cat([numbers[:1], numbers.new_tensor(ADAM)]), synchronise),
            ),
        }
        calls[name]()


def _equal(name: str, dtype: torch.dtype, machine: Machine) -> None:
    device = machine.device.torch_device
    shapes = SHAPES[:4] if is_fake(machine) else SHAPES
    with machine.device.issuing(), torch.no_grad():
        for (learners, columns), values, synchronise in itertools.product(
            shapes, (NUMBERS, NESTEROV, PLAIN), (True, False)
        ):
            numbers = torch.tensor(values, dtype=torch.float64, device=device)
            computed = torch.promote_types(dtype, torch.float32)
            finite = torch.tensor([float(j % 3 != 2) for j in range(learners)], device=device, dtype=computed)
            ours = _Rows(device, dtype, learners, columns)
            theirs = ours.clone()
            ours.call(machine.kernels, name, numbers, finite, synchronise)
            theirs.call(Kernels(), name, numbers, finite, synchronise)
            for row, own in vars(ours).items():
                if row == "total" and name == "sma_apply":
                    continue  # not defined afterwards
                _close(own, vars(theirs)[row], dtype, f"{row} of {learners}x{columns}, {values}, {synchronise}")


def _close(own: Tensor, expected: Tensor, dtype: torch.dtype, what: str) -> None:
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(own, expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")


def _gather(machine: Machine) -> None:
    device = machine.device.torch_device
    with machine.device.issuing(), torch.no_grad():
        for dtype, shape in itertools.product((torch.float32, torch.uint8, torch.int64), ((3, 5), (784,), (1,), ())):
            source = torch.randint(100, (50, *shape), device=device).to(dtype)
            indices = torch.randint(50, (33,), device=device)
            out = torch.empty(33, *shape, dtype=dtype, device=device)
            machine.kernels.gather(source, indices, out)
            assert torch.equal(out, source[indices]), f"{dtype}, {shape}"


def _captured(machine: Machine) -> None:
    device = machine.device
    stream = device.stream("kernels")
    with device.issuing(), torch.no_grad():
        rows = _Rows(device.torch_device, torch.float32, 3, 100)
        start = rows.clone()
        numbers = torch.tensor(NUMBERS, dtype=torch.float64, device=device.torch_device)
        finite = torch.ones(3, device=device.torch_device)
        machine.synchronize()
        branch(machine.device, [stream])
        with device.on(stream):
            rows.clone().call(machine.kernels, "sgd_round", numbers, finite, True)
        with device.capture(stream) as graph:
            rows.call(machine.kernels, "sgd_round", numbers, finite, True)
        machine.join([stream])
        device.upload(numbers, NESTEROV)
        branch(machine.device, [stream])
        with device.on(stream):
            graph.replay()
        machine.synchronize()
        start.call(Kernels(), "sgd_round", numbers, finite, True)
        machine.synchronize()
        _close(rows.w, start.w, torch.float32, "weights")
        _close(rows.z, start.z, torch.float32, "z")
