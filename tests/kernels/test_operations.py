"""Every kernel, in PyTorch and in CUDA's C++, against its formula in NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from bow.devices.kernels import Kernels
from tests.kernels import numpy_oracle as oracle
from tests.kernels.emulated import EmulatedKernels, Emulation
from tests.kernels.memory import ALIGNED, ODD_STRIDE, ONE_ODD, SHIFTED, Memory, check_close, exact, left_by_task
from tests.kernels.numpy_oracle import AdamNumbers, Numbers

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
# Learners and columns: fewer and more than are taken together, rows that end inside and at the end of 16 bytes.
SHAPES = [(1, 1), (1, 15), (1, 4099), (2, 16), (2, 17), (3, 1000), (3, 4099), (4, 15), (4, 16)]
SHAPES += [(5, 1), (5, 17), (8, 1000), (9, 16), (16, 1), (16, 17), (16, 4099)]
CASES = list(itertools.product([ALIGNED, SHIFTED, ODD_STRIDE], SHAPES)) + [(layout, (3, 33)) for layout in ONE_ODD]
# In turn: every shape meets each of them in one of the layouts.
OPTIMIZERS = [Numbers(momentum=0.0, weight_decay=0.0), Numbers(), Numbers(nesterov=1.0)]

with_every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
synchronising_or_not = pytest.mark.parametrize("synchronise", [True, False], ids=["synchronise", "alone"])
of_whole_rounds = pytest.mark.parametrize(
    ("dtype", "synchronise", "diverged"),
    [  # any two of these meet in a case that always runs; the others are nightly
        pytest.param(*case, marks=pytest.mark.nightly if sum(numbers) % 2 else (), id="-".join(map(str, case)))
        for numbers, case in (
            zip(*each, strict=True)
            for each in itertools.product(*map(enumerate, (DTYPES, (True, False), ("none", "some", "all"))))
        )
    ],
)


def on(device: torch.device, numbers: Numbers | AdamNumbers) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def computed(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers of learners in the dtype that a kernel computes in."""
    return torch.tensor(values, dtype=torch.promote_types(dtype, torch.float32), device=device)


def finite_of(learners: int, diverged: str) -> list[float]:
    """1 for those that step, 0 for those that do not; of some, every fifth has no batch."""
    if diverged != "some":
        return [float(diverged == "none")] * learners
    return [math.nan if j % 5 == 4 else float(j % 3 != 0) for j in range(learners)]


@with_every_dtype
def test_sma_contribute(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> None:
    for layout, (k, n) in CASES:
        memory = Memory(dtype, device, layout)
        w, z, c, total = memory.rows(k, n), memory.rows(n), memory.rows(k, n), memory.rows(n)
        expected = oracle.sma_contribute(exact(w), exact(z), 0.3)
        before = w.clone(), z.clone()
        kernels.sma_contribute(w, z, c, total, 0.3)
        check_close((c, total), expected, (layout, k, n))
        assert all(map(torch.equal, (w, z), before))
        memory.check_guards()


@with_every_dtype
def test_sma_apply(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> None:
    for layout, (k, n) in CASES:
        memory = Memory(dtype, device, layout)
        w, c, z, z_prev, total = (memory.rows(*shape) for shape in [(k, n), (k, n), (n,), (n,), (n,)])
        expected = oracle.sma_apply(*map(exact, (w, c, z, z_prev, total)), 0.6)
        kernels.sma_apply(w, c, z, z_prev, total, 0.6)
        check_close((w, z, z_prev), expected, (layout, k, n))
        memory.check_guards()


@with_every_dtype
def test_sma_center(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> None:
    for layout, (k, n) in CASES:
        memory = Memory(dtype, device, layout)
        w, z, z_prev = memory.rows(k, n), memory.rows(n), memory.rows(n)
        expected = oracle.sma_center(exact(w), exact(z), exact(z_prev), Numbers())
        rows, before = w.clone(), z.clone()
        kernels.sma_center(w, z, z_prev, on(device, Numbers()))
        check_close([z], [expected], (layout, k, n))
        assert torch.equal(w, rows)
        assert torch.equal(z_prev, before)
        memory.check_guards()


@with_every_dtype
@synchronising_or_not
@pytest.mark.parametrize("finite", [True, False], ids=["finite", "diverged"])
def test_sgd_row(kernels: Kernels, device: torch.device, dtype: torch.dtype, synchronise: bool, finite: bool) -> None:
    for numbers, (layout, (_, n)) in zip(itertools.cycle(OPTIMIZERS), CASES, strict=False):
        memory = Memory(dtype, device, layout)
        w, m, g, z, z_prev = (memory.rows(n) for _ in range(5))
        if not finite:
            g.fill_(float("nan"))
            m[0] = float("inf")
        if not synchronise:
            z_prev.fill_(float("nan"))  # is not read
        expected = oracle.sgd_row(*map(exact, (w, m, g, z, z_prev)), finite, numbers, synchronise)
        task, kept = left_by_task(finite, dtype, device), left_by_task(True, dtype, device)
        kernels.sgd_row(w, m, g, z, z_prev, task, kept, on(device, numbers), synchronise)
        check_close((w, m), expected, (layout, n, numbers))
        assert kept.tolist() == [0.5, float(finite), 3.0]
        memory.check_guards()


@of_whole_rounds
def test_sgd_round(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, synchronise: bool, diverged: str
) -> None:
    for numbers, (layout, (k, n)) in zip(itertools.cycle(OPTIMIZERS), CASES, strict=False):
        memory = Memory(dtype, device, layout)
        w, m, g = (memory.rows(k, n) for _ in range(3))
        z, z_prev = memory.rows(n), memory.rows(n)
        finite = finite_of(k, diverged)
        flags = computed(finite, dtype, device)
        g[flags != 1] = float("nan")
        m[flags == 0] = float("inf")
        expected = oracle.sgd_round(*map(exact, (w, m, g, z, z_prev)), finite, numbers, synchronise)
        before = z.clone(), z_prev.clone()
        kernels.sgd_round(w, m, g, z, z_prev, flags, on(device, numbers), synchronise)
        check_close((w, m, z, z_prev), expected, (layout, k, n, numbers))
        assert synchronise or all(map(torch.equal, (z, z_prev), before))
        memory.check_guards()


@of_whole_rounds
def test_adam_round(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, synchronise: bool, diverged: str
) -> None:
    kinds = [AdamNumbers(), AdamNumbers(decoupled=1.0), AdamNumbers(weight_decay=0.0)]
    for numbers, (layout, (k, n)) in zip(itertools.cycle(kinds), CASES, strict=False):
        memory = Memory(dtype, device, layout)
        w, m, v, g = (memory.rows(k, n) for _ in range(4))
        z, z_prev = memory.rows(n), memory.rows(n)
        v.abs_()
        finite, steps = finite_of(k, diverged), [float(17 * j) for j in range(k)]
        flags, counts = computed(finite, dtype, device), computed(steps, dtype, device)
        g[flags != 1] = float("nan")
        m[flags == 0] = float("inf")
        expected = oracle.adam_round(*map(exact, (w, m, v, g, z, z_prev)), finite, steps, numbers, synchronise)
        kernels.adam_round(w, m, v, g, z, z_prev, flags, counts, on(device, numbers), synchronise)
        check_close((w, m, v, z, z_prev, counts), expected, (layout, k, n, numbers))
        memory.check_guards()


@with_every_dtype
def test_diverged_learners_start_exactly_from_the_central_model(
    kernels: Kernels, device: torch.device, dtype: torch.dtype
) -> None:
    memory = Memory(dtype, device)
    w, m, g = (memory.rows(4, 33) for _ in range(3))
    z, z_prev = memory.rows(33), memory.rows(33)
    finite = computed([1, 0, 1, 0], dtype, device)
    kernels.sgd_round(w, m, g, z, z_prev, finite, on(device, Numbers()), True)
    assert torch.equal(w[1], z)
    assert torch.equal(w[3], z)
    assert not torch.equal(w[0], z)


@with_every_dtype
def test_whole_round_is_its_parts(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> None:
    """`sma_center` and `sgd_row` for every learner make the round that `sgd_round` makes in one pass."""
    memory = Memory(dtype, device)
    w, m, g = (memory.rows(5, 100) for _ in range(3))
    z, z_prev = (memory.rows(100) for _ in range(2))
    numbers = on(device, Numbers(nesterov=1.0))
    finite = computed([1, 1, 0, 1, 1], dtype, device)
    whole = [tensor.clone() for tensor in (w, m, z, z_prev)]
    kernels.sgd_round(whole[0], whole[1], g, whole[2], whole[3], finite, numbers, True)
    kernels.sma_center(w, z, z_prev, numbers)
    for j in range(5):
        task = left_by_task(bool(finite[j]), dtype, device)
        kernels.sgd_row(w[j], m[j], g[j], z, z_prev, task, torch.empty_like(task), numbers, True)
    for part, of_whole in zip((w, m, z, z_prev), whole, strict=True):
        torch.testing.assert_close(part, of_whole)


@with_every_dtype
def test_results_depend_neither_on_the_grid_nor_on_the_order_of_threads(
    emulated: EmulatedKernels, emulation: Emulation, dtype: torch.dtype
) -> None:
    results = []
    for shape, backwards in [(None, False), (None, True), ((1, 1), False), ((3, 5), True), ((64, 256), False)]:
        memory = Memory(dtype, torch.device("cpu"))
        w, m, g, v = (memory.rows(6, 1003) for _ in range(4))
        z, z_prev = memory.rows(1003), memory.rows(1003)
        finite, counts = computed([1, 1, 0, 1, 1, 1], dtype, w.device), computed(range(6), dtype, w.device)
        with emulation.configured(shape, backwards=backwards):
            emulated.sgd_round(w, m, g, z, z_prev, finite, on(w.device, Numbers()), True)
            emulated.sma_center(w, z, z_prev, on(w.device, Numbers()))
            emulated.adam_round(w, m, v.abs_(), g, z, z_prev, finite, counts, on(w.device, AdamNumbers()), True)
        results.append((w, m, v, z, z_prev, counts))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@with_every_dtype
def test_rounding_is_that_of_pytorch(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> None:
    """Products of two bfloat16 have twice the bits: ties, both directions, and what is not a number."""
    factor = 1.00390625 if dtype == torch.bfloat16 else 0.7
    values = torch.linspace(-3, 3, 1000, dtype=torch.float64).to(dtype).tolist()
    values += [float("nan"), float("inf"), -float("inf"), 3.0e38, 1e-30, 0.0, -0.0]
    w = torch.tensor([values], dtype=dtype, device=device)
    z, c, total = torch.zeros_like(w[0]), torch.empty_like(w), torch.empty_like(w[0])
    kernels.sma_contribute(w, z, c, total, factor)
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    expected = (w.to(wide) * torch.tensor(factor, dtype=wide, device=device)).to(dtype)
    torch.testing.assert_close(c, expected, rtol=0, atol=0, equal_nan=True)


def test_bfloat16_is_the_nearest_and_not_a_number_stays_that(emulation: Emulation) -> None:
    # The pattern of a GPU's own results, those that would become infinite or zero by rounding up, and halfway cases.
    patterns = [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001, 0x7F7FFFFF, 0x7F7F8000, 0x3F808000, 0x3F818000]
    patterns += [0x3F808001, 0x3F807FFF, 0x7F800000, 0xFF800000, 0x80000000, 0, 0x00000001, 0x00008001]
    patterns += np.random.default_rng(0).integers(0, 2**32, 2000).tolist()
    for x in np.array(patterns, dtype=np.uint32).view(np.float32):
        ours = torch.tensor(emulation.narrow(x), dtype=torch.uint16).view(torch.bfloat16)
        torch.testing.assert_close(ours, torch.tensor(x).bfloat16(), rtol=0, atol=0, equal_nan=True)


@with_every_dtype
def test_gather(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> None:
    samples = [(), (1,), (3,), (4,), (5,), (28, 28), (3, 17), (0,)]
    for sample, offset, element in itertools.product(samples, (0, 1), (dtype, torch.int64, torch.uint8, torch.bool)):
        memory = torch.randint(0, 100, (offset + 50 * math.prod(sample),), device=device).to(element)
        source = memory[offset:].view(50, *sample)
        indices = torch.tensor([3, 49, 0, 3, 17, 25, 1, 48, 2], device=device)
        guarded = torch.full((11, *sample), 77, device=device).to(element)
        kernels.gather(source, indices, guarded[1:10])
        assert torch.equal(guarded[1:10], source[indices]), (sample, offset, element)
        assert (guarded[[0, 10]] == torch.tensor(77, device=device).to(element)).all(), (sample, offset, element)


@with_every_dtype
def test_gather_with_an_index_out_of_range(emulated: EmulatedKernels, dtype: torch.dtype) -> None:
    source, out = torch.zeros(5, 3, dtype=dtype), torch.zeros(1, 3, dtype=dtype)
    for index in (5, -1):
        with pytest.raises(RuntimeError, match="launch failure"):
            emulated.gather(source, torch.tensor([index]), out)
