"""Convolutions and batch norm of all learners at once, against each learner's own, in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bow.engines import batched_layers
from bow.engines.batched_layers import ALGORITHMS

LEARNERS = 3

# inputs of a learner, weights, and what the convolution is told
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 6, 5), (4, 3, 3, 3), {}),
    "one channel, 5x5": ((2, 1, 7, 7), (2, 1, 5, 5), {"padding": 2}),
    "padded": ((2, 2, 5, 4), (3, 2, 3, 3), {"padding": 1}),
    "strided": ((2, 2, 7, 7), (3, 2, 3, 3), {"stride": 2, "padding": 1}),
    "strided, the last pixels unseen": ((2, 2, 8, 8), (3, 2, 3, 3), {"stride": 2}),
    "strides and paddings of their own": ((1, 2, 9, 6), (2, 2, 3, 2), {"stride": (3, 1), "padding": (0, 2)}),
    "dilated": ((2, 2, 9, 8), (3, 2, 3, 3), {"dilation": 2, "padding": 2}),
    "dilated and strided": ((2, 2, 9, 8), (3, 2, 2, 3), {"dilation": (3, 2), "stride": 2, "padding": 1}),
    "groups": ((2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
    "depthwise": ((2, 3, 5, 5), (6, 1, 3, 3), {"groups": 3, "padding": 1}),
    "1x1": ((2, 3, 4, 4), (5, 3, 1, 1), {}),
    "1x1, strided": ((2, 3, 5, 4), (2, 3, 1, 1), {"stride": 2}),
    "1x1, padded": ((2, 3, 4, 4), (2, 3, 1, 1), {"padding": 1}),
    "a line": ((2, 3, 8), (4, 3, 3), {"padding": 1, "stride": 2}),
    "a space": ((1, 2, 4, 3, 4), (2, 2, 2, 3, 2), {"padding": (1, 1, 0)}),
    "not a batch": ((2, 4, 4), (2, 2, 3, 3), {}),
    "one sample": ((1, 2, 4, 4), (2, 2, 3, 3), {"padding": (1,)}),
}


@pytest.fixture(params=ALGORITHMS)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_layers, "_fastest_algorithm", lambda *_: request.param)


def random(*shapes: tuple[int, ...]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for shape in shapes:
        yield torch.randn(shape, generator=generator, dtype=torch.float64)


def assert_as_in_turn(
    task: Callable[..., Any], *tensors: Tensor, shared: tuple[int, ...] = (), tolerance: float = 1e-10
) -> None:
    """`task` of all learners at once is that of one after another, in which torch's own operators run."""
    in_dims = tuple(None if index in shared else 0 for index in range(len(tensors)))
    expected = [
        task(*(each if dim is None else each[j] for each, dim in zip(tensors, in_dims, strict=True)))
        for j in range(LEARNERS)
    ]

    with batched_layers.batched_convolutions({}):
        actual = torch.vmap(task, in_dims)(*tensors)
    for index, found in enumerate(actual):
        torch.testing.assert_close(found, torch.stack([each[index] for each in expected]), rtol=0, atol=tolerance)


def convolution_task(with_bias: bool, **how: Any) -> Callable[..., tuple[Tensor, ...]]:
    """Outputs, first and second derivatives."""

    def outputs(inputs: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        convolve = (F.conv1d, F.conv2d, F.conv3d)[weights.dim() - 3]
        return convolve(inputs, weights, bias if with_bias else None, **how)

    def loss(*tensors: Tensor) -> Tensor:
        return outputs(*tensors).sin().sum()

    def steepness(*tensors: Tensor) -> Tensor:
        return sum(each.square().sum() for each in torch.func.grad(loss, (0, 1))(*tensors))

    def task(*tensors: Tensor) -> tuple[Tensor, ...]:
        first, second = (torch.func.grad(each, (0, 1, 2))(*tensors) for each in (loss, steepness))
        return outputs(*tensors), *first, *second

    return task


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_are_those_of_each_learner(case: str) -> None:
    inputs, weights, how = CONVOLUTIONS[case]
    tensors = random((LEARNERS, *inputs), (LEARNERS, *weights), (LEARNERS, weights[0]))
    assert_as_in_turn(convolution_task(with_bias=len(case) % 2 == 0, **how), *tensors)


def test_transposed_convolutions_are_those_of_each_learner() -> None:
    def loss(*tensors: Tensor) -> Tensor:
        return F.conv_transpose2d(*tensors, stride=2, padding=1, output_padding=1, groups=2).sin().sum()

    tensors = random((LEARNERS, 2, 4, 3, 3), (LEARNERS, 4, 3, 3, 3), (LEARNERS, 6))
    assert_as_in_turn(torch.func.grad(loss, (0, 1, 2)), *tensors)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("shared", [(1,), (1, 2), (0,)], ids=["weights", "weights and bias", "inputs"])
def test_what_learners_share_stays_whole(shared: tuple[int, ...]) -> None:
    shapes = [(2, 2, 5, 5), (3, 2, 3, 3), (3,)]
    tensors = random(*(shape if index in shared else (LEARNERS, *shape) for index, shape in enumerate(shapes)))
    assert_as_in_turn(convolution_task(with_bias=True, stride=2), *tensors, shared=shared)


@pytest.mark.usefixtures("_way")
def test_convolutions_of_autocast_are_in_its_type() -> None:
    def task(inputs: Tensor, weights: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        def loss(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                found = F.conv2d(inputs, *tensors, padding=1)
            return found.float().square().mean(), found

        gradients, found = torch.func.grad(loss, (0, 1), has_aux=True)(weights, bias)
        assert (found.dtype, gradients[0].dtype) == (torch.bfloat16, torch.float32)
        return found.float(), *gradients

    tensors = random((LEARNERS, 2, 3, 6, 6), (LEARNERS, 4, 3, 3, 3), (LEARNERS, 4))
    assert_as_in_turn(task, *(each.float() for each in tensors), tolerance=0.2)


@pytest.mark.usefixtures("_way")
def test_what_is_told_otherwise_agrees_too() -> None:
    def task(inputs: Tensor, weights: Tensor, lasting: Tensor) -> tuple[Tensor, ...]:
        same = F.conv2d(inputs, weights, padding="same")
        alone = F.conv2d(inputs[0], weights)
        slope = torch.func.jvp(lambda each: F.conv2d(inputs, each).sin(), (weights,), (weights,))[1]
        plain = F.batch_norm(inputs, None, None, training=True)
        return same, alone, slope, plain, F.batch_norm(inputs, lasting, lasting.exp())

    assert_as_in_turn(task, *random((LEARNERS, 2, 3, 6, 6), (LEARNERS, 4, 3, 3, 3), (LEARNERS, 3)))


@pytest.mark.parametrize("layout", ["learners", "samples", "channels"])
@pytest.mark.parametrize("pixels", [(), (5,), (4, 3)])
def test_batch_norm_is_that_of_each_learner(pixels: tuple[int, ...], layout: str) -> None:
    def outputs(inputs: Tensor, weight: Tensor, bias: Tensor, *statistics: Tensor) -> tuple[Tensor, ...]:
        moved = [each.clone() for each in statistics]
        found = F.batch_norm(inputs, *moved, weight, bias, training=True, momentum=0.3, eps=0.01)
        return found.sin().sum(), (found, *moved)

    def steepness(*tensors: Tensor) -> Tensor:
        gradients, _ = torch.func.grad(outputs, (0, 1, 2), has_aux=True)(*tensors)
        return sum(each.square().sum() for each in gradients)

    def task(*tensors: Tensor) -> tuple[Tensor, ...]:
        first, found = torch.func.grad(outputs, (0, 1, 2), has_aux=True)(*tensors)
        return *found, *first, *torch.func.grad(steepness, (0, 1, 2))(*tensors)

    inputs, rows, *statistics = random((LEARNERS, 6, 2, *pixels), (LEARNERS, 5), *[(LEARNERS, 2)] * 2)
    order = {"learners": (0, 1, 2), "samples": (1, 0, 2), "channels": (0, 2, 1)}[layout]
    order = (*order, *range(3, inputs.dim()))
    laid_out = inputs.permute(order).contiguous().permute(order)
    assert_as_in_turn(task, laid_out, rows[:, :2], rows[:, 3:], *statistics)


@pytest.mark.parametrize("training", [True, False])
def test_cudnns_batch_norm_is_that_of_each_learner(training: bool) -> None:
    """What torch calls on GPUs; its rule has torch's own kernels run, those of the CPU too."""

    def task(function: Callable[..., Any], inputs: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        weight, bias, *moved = (each.clone() for each in tensors)

        def outputs(*leaves: Tensor) -> tuple[Tensor, Tensor]:
            found = function(*leaves, *moved, training, 0.3, 0.01)
            found = found if isinstance(found, Tensor) else found[0]
            return found.sin().sum(), found

        gradients, found = torch.func.grad(outputs, (0, 1, 2), has_aux=True)(inputs, weight, bias)
        return found, *gradients, *moved

    def plain(inputs: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *rest: Any) -> Tensor:
        return F.batch_norm(inputs, mean, var, weight, bias, *rest)

    inputs, *tensors = random((LEARNERS, 6, 2, 4, 3), *[(LEARNERS, 2)] * 4)
    tensors[3] = tensors[3].exp()
    expected = zip(*(task(plain, *each) for each in zip(inputs, *tensors, strict=True)), strict=True)
    actual = torch.vmap(functools.partial(task, torch.cudnn_batch_norm))(inputs, *tensors)
    for found, each in zip(actual, expected, strict=True):
        torch.testing.assert_close(found, torch.stack(each), rtol=0, atol=1e-10)


def test_outside_of_rounds_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_layers, "_fastest_algorithm", lambda *_: pytest.fail("it is measured"))
    inputs, weights = random((LEARNERS, 2, 3, 6, 6), (LEARNERS, 4, 3, 3, 3))
    expected = torch.stack([F.conv2d(*each) for each in zip(inputs, weights, strict=True)])
    torch.testing.assert_close(torch.vmap(F.conv2d)(inputs, weights), expected)


def test_running_statistics_that_learners_share_are_refused() -> None:
    def task(inputs: Tensor) -> Tensor:
        return F.batch_norm(inputs, torch.ones(3), torch.ones(3), torch.ones(3), torch.ones(3), training=True)

    with pytest.raises(RuntimeError, match="running statistics that learners share"):
        torch.vmap(task)(torch.ones(LEARNERS, 4, 3))
