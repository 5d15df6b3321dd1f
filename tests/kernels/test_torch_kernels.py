"""The kernels in PyTorch are what `torch.optim.SGD` and `bow.SMA` do, and need nothing from the host."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import bow
from bow.devices.kernels import Kernels
from bow.replicas.matrix import ReplicaMatrix
from tests.kernels.memory import left_by_task

LEARNERS, COLUMNS, ROUNDS = 4, 50, 12
ALPHA, MU = 0.3, 0.6
OPTIMIZERS = {
    "plain": {"lr": 0.05},
    "decay": {"lr": 0.05, "weight_decay": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.1},
    "nesterov": {"lr": 0.05, "momentum": 0.8, "nesterov": True},
}


class Reference:
    """Learners whose rows `torch.optim.SGD` steps and `bow.SMA` averages, one after another."""

    def __init__(self, start: Tensor, settings: dict[str, float]) -> None:
        self.rows = ReplicaMatrix(COLUMNS, LEARNERS, start.dtype, start.device)
        self.rows.z.copy_(start)
        for _ in range(LEARNERS):
            self.rows.add_row()
        self.w, self.z = self.rows.weights, self.rows.z
        self.sync = bow.SMA(alpha=ALPHA, mu=MU)
        self.sync.start(self.rows)
        self.parameters = [self.rows.leaf(learner) for learner in range(LEARNERS)]
        self.optimizer = torch.optim.SGD(self.parameters, **settings)

    @property
    def z_prev(self) -> Tensor:
        return self.rows.state["z_prev"]

    @property
    def momenta(self) -> Tensor:
        buffers = (self.optimizer.state[parameter].get("momentum_buffer") for parameter in self.parameters)
        return torch.stack([torch.zeros(COLUMNS, dtype=torch.float64) if b is None else b for b in buffers])

    def round(self, gradients: Tensor, synchronise: bool) -> None:
        if synchronise:
            self.sync.contribute(self.rows, LEARNERS, LEARNERS)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        self.optimizer.step()
        if synchronise:
            self.sync.apply(self.rows, LEARNERS, LEARNERS)


@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("by_row", [False, True], ids=["at once", "row by row"])
def test_rounds_are_those_of_sgd_and_sma(
    kernels: Kernels, device: torch.device, settings: dict[str, float], by_row: bool
) -> None:
    torch.manual_seed(0)
    start = torch.randn(COLUMNS, dtype=torch.float64)
    reference = Reference(start, settings)
    w = start.repeat(LEARNERS, 1).to(device)
    m, z, z_prev = torch.zeros_like(w), w[0].clone(), w[0].clone()
    named = [settings.get(name, 0) for name in ("lr", "momentum", "weight_decay", "nesterov")]
    numbers = torch.tensor([*named, ALPHA, MU], dtype=torch.float64, device=device)
    finite = torch.ones(LEARNERS, dtype=torch.float64, device=device)
    for t in range(ROUNDS):
        synchronise = t % 3 != 1
        gradients = torch.randn(LEARNERS, COLUMNS, dtype=torch.float64)
        reference.round(gradients, synchronise)
        g = gradients.to(device)
        if by_row:
            if synchronise:
                kernels.sma_center(w, z, z_prev, numbers)
            for j in range(LEARNERS):
                task = left_by_task(True, torch.float64, device)
                kernels.sgd_row(w[j], m[j], g[j], z, z_prev, task, torch.empty_like(task), numbers, synchronise)
        else:
            kernels.sgd_round(w, m, g, z, z_prev, finite, numbers, synchronise)
        for ours, theirs in [(w, reference.w), (m, reference.momenta), (z, reference.z)]:
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(z_prev.cpu(), reference.z_prev, rtol=1e-12, atol=1e-12)


def test_averaging_is_that_of_sma(kernels: Kernels, device: torch.device) -> None:
    torch.manual_seed(0)
    reference = Reference(torch.randn(COLUMNS, dtype=torch.float64), {"lr": 0.1})
    for _ in range(ROUNDS):
        reference.w += torch.randn_like(reference.w)
        w, z, z_prev = (row.to(device, copy=True) for row in (reference.w, reference.z, reference.z_prev))
        c, total = torch.empty_like(w), torch.empty_like(z)
        reference.sync.contribute(reference.rows, LEARNERS, LEARNERS)
        reference.sync.apply(reference.rows, LEARNERS, LEARNERS)
        kernels.sma_contribute(w, z, c, total, ALPHA)
        kernels.sma_apply(w, c, z, z_prev, total, MU)
        for ours, theirs in [(w, reference.w), (z, reference.z), (z_prev, reference.z_prev)]:
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-12, atol=1e-12)


class _Operators(TorchDispatchMode):
    """Notes which operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_on_the_host() -> None:
    w, m, g = torch.randn(3, 2, 16)
    z, z_prev = torch.randn(2, 16)
    finite, numbers = torch.tensor([1.0, 0.0]), torch.rand(6, dtype=torch.float64)
    kernels = Kernels()
    with _Operators() as seen:
        kernels.sgd_round(w, m, g, z, z_prev, finite, numbers, True)
        adam = torch.rand(8, dtype=torch.float64)
        kernels.adam_round(w, m, m.clone(), g, z, z_prev, finite, torch.ones(2), adam, True)
        kernels.sgd_row(w[0], m[0], g[0], z, z_prev, torch.ones(2), torch.empty(2), numbers, True)
        kernels.sma_center(w, z, z_prev, numbers)
    assert "aten.addcmul" in seen.names
    assert not {"aten._local_scalar_dense", "aten.item", "aten.nonzero", "aten.is_nonzero"} & set(seen.names)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_elements_are_computed_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(3, 32).to(dtype) for _ in range(3)] + [torch.randn(32).to(dtype) for _ in range(2)]
    wide = [tensor.float() for tensor in tensors]
    finite = torch.tensor([1.0, 0.0, 1.0])
    numbers = torch.tensor([0.1, 0.9, 0.01, 1.0, 0.3, 0.5], dtype=torch.float64)
    Kernels().sgd_round(*tensors, finite, numbers, True)
    Kernels().sgd_round(*wide, finite, numbers, True)
    for tensor, values in zip(tensors[:2] + tensors[3:], wide[:2] + wide[3:], strict=True):
        assert tensor.dtype == dtype
        torch.testing.assert_close(tensor, values.to(dtype), rtol=0, atol=0)


def test_rows_may_be_leaves_of_autograd(kernels: Kernels, device: torch.device) -> None:
    w = torch.ones(16, device=device, requires_grad=True)
    m, g, z = torch.zeros(16, device=device), torch.ones(16, device=device), torch.zeros(16, device=device)
    numbers = torch.tensor([0.5, 0.0, 0.0, 0.0, 0.25, 0.0], dtype=torch.float64, device=device)
    task = left_by_task(True, torch.float32, device)
    kernels.sgd_row(w, m, g, z, z, task, torch.empty_like(task), numbers, True)
    assert w.tolist() == [0.25] * 16


@pytest.mark.gpu
def test_captured_graph_takes_the_numbers_of_its_replay() -> None:
    pytest.importorskip("cupy", reason="needs CuPy")
    from bow.devices.cupy_kernels import CupyKernels

    device = torch.device("cuda", 0)
    for kernels in (CupyKernels(device), Kernels()):
        torch.manual_seed(0)
        w, m, g = (torch.randn(3, 1000, device=device) for _ in range(3))
        z, z_prev = torch.randn(1000, device=device), torch.randn(1000, device=device)
        finite = torch.tensor([True, False, True], device=device)
        numbers = torch.tensor([0.1, 0.9, 0.01, 0.0, 0.3, 0.5], dtype=torch.float64, device=device)
        state = [w, m, z, z_prev]
        start = [tensor.clone() for tensor in state]

        def run(state: list[Tensor], values: Tensor, kernels: Kernels = kernels) -> None:
            kernels.sgd_round(state[0], state[1], g, state[2], state[3], finite, values, True)  # noqa: B023

        other = torch.tensor([0.2, 0.5, 0.0, 1.0, 0.2, 0.1], dtype=torch.float64, device=device)
        expected = [tensor.clone() for tensor in start]
        run(expected, other)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            run(state, numbers)  # a thread's first launch is not captured
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run(state, numbers)
        for tensor, values in zip(state, start, strict=True):
            tensor.copy_(values)
        numbers.copy_(other)
        graph.replay()
        torch.cuda.synchronize(device)
        for tensor, values in zip(state, expected, strict=True):
            torch.testing.assert_close(tensor, values)
