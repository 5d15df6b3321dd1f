"""`vmap` rules for convolutions and batch norms of all learners at once, where torch's own are slow.

Torch merges the learners' convolutions into one grouped convolution, which cuDNN and oneDNN train slowly (PyTorch
issues 70954 and 73764), and turns a batch norm and its gradient into a chain of operators. Rules are process-wide:
outside of bow's rounds convolutions stay grouped.
"""

import contextlib
import functools
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.compiler import config
from torch.nn import functional as F

from bow.engines import fastest

aten = torch.ops.aten

# The convolution tensor to compute from the other two; of inputs and weights, the gradient.
Role: TypeAlias = Literal["outputs", "inputs", "weights"]

Shape: TypeAlias = tuple[int, ...]
# By role, None for the one to compute; with a leading learner dimension if of all learners.
Tensors: TypeAlias = Sequence[Any]

Algorithms: TypeAlias = dict[str, str]  # algorithm of each convolution, by role, shapes and device


class Geometry(NamedTuple):
    """Arguments of a convolution besides its tensors, by dimension."""

    stride: Shape
    padding: Shape
    dilation: Shape
    transposed: bool
    output_padding: Shape
    groups: int


class _Round:
    """State of the rules during a round."""

    def __init__(self, algorithms: Algorithms) -> None:
        self._algorithms = algorithms
        self._cache_key_parts: list[str] = []
        self._tag = ""

    def algorithm(self, what: str, find: Callable[[], str]) -> str:
        """Return the algorithm of a convolution; choose it if the training has none yet."""
        if what not in self._algorithms:
            self._algorithms[what] = find()
        self.extend_cache_key(f"{what}: {self._algorithms[what]}")
        return self._algorithms[what]

    def extend_cache_key(self, what: str) -> None:
        """Add a rule's choice to torch's compile cache key, which is computed before these rules apply."""
        if what in self._cache_key_parts:
            return
        if not self._cache_key_parts:
            self._tag = config.cache_key_tag
        self._cache_key_parts.append(what)
        made = hashlib.sha256("\n".join((_source(), *self._cache_key_parts)).encode()).hexdigest()
        config.cache_key_tag = f"{self._tag} {made}"

    def end(self) -> None:
        if self._cache_key_parts:
            config.cache_key_tag = self._tag


_round: _Round | None = None


@contextlib.contextmanager
def batched_convolutions(algorithms: Algorithms) -> Iterator[None]:
    """Context of a round: run convolutions by their algorithm in `algorithms`, adding the fastest one for new ones."""
    global _round
    before, _round = _round, _Round(algorithms)
    try:
        yield
    finally:
        _round.end()
        _round = before


@functools.cache
def _source() -> str:
    return Path(__file__).read_text(encoding="utf-8")


def _learners_first(learners: int, dims: Sequence[int | None], tensors: Tensors) -> list[Any]:
    def first(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.expand(learners, *tensor.shape).contiguous() if dim is None else tensor.movedim(dim, 0)

    return [each if each is None else first(each, dim) for each, dim in zip(tensors, dims, strict=True)]


# --- convolutions


def _convolution(info: Any, in_dims: Any, input: Tensor, weight: Tensor, bias: Tensor | None, *given: Any) -> Any:
    how = _geometry(weight.dim() - 2 - (in_dims[1] is not None), given)
    outputs = _part("outputs", info.batch_size, (None, *in_dims[:2]), (None, input, weight), (), how)
    if bias is not None:
        (bias,) = _learners_first(info.batch_size, in_dims[2:3], (bias,))
        outputs = outputs + bias.view(len(bias), 1, -1, *[1] * (outputs.dim() - 3))
    return outputs, 0


def _convolution_backward(
    info: Any, in_dims: Any, outputs: Tensor, inputs: Tensor, weights: Tensor, bias_sizes: Any, *given: Any
) -> Any:
    learners, wanted, (of_outputs, of_inputs, of_weights) = info.batch_size, given[-1], in_dims[:3]
    how = _geometry(weights.dim() - 2 - (of_weights is not None), given)
    shapes = [
        tuple(size for index, size in enumerate(each.shape) if index != dim)
        for each, dim in zip((inputs, weights), in_dims[1:3], strict=True)
    ]
    found: list[Any] = [None] * 3
    if wanted[0]:
        dims = (of_outputs, None, of_weights)
        found[0] = _part("inputs", learners, dims, (outputs, None, weights), shapes[0], how)
    if wanted[1]:
        found[1] = _part("weights", learners, (of_outputs, of_inputs, None), (outputs, inputs, None), shapes[1], how)
    if wanted[2]:
        (all_outputs,) = _learners_first(learners, (of_outputs,), (outputs,))
        found[2] = all_outputs.sum((1, *range(3, all_outputs.dim())))
    return tuple(found), tuple(each if each is None else 0 for each in found)


def _geometry(dims: int, given: Sequence[Any]) -> Geometry:
    stride, padding, dilation, output_padding = (
        tuple(each) * (1 if len(each) == dims else dims) for each in (*given[:3], given[4])
    )
    return Geometry(stride, padding, dilation, given[3], output_padding, given[5])


def _part(role: Role, learners: int, dims: Sequence[Any], tensors: Tensors, shape: Shape, how: Geometry) -> Any:
    """Compute one of the three tensors for all learners; `shape` is one learner's, empty for outputs."""
    outputs, inputs, weights = _learners_first(learners, dims, tensors)
    if weights is not None and dims[2] is None:  # shared weights: merge the samples into one batch
        batch = [each if each is None else each.flatten(0, 1)[None] for each in (outputs, inputs)]
        whole = (learners * shape[0], *shape[1:]) if shape else ()
        return _grouped(role, (*batch, tensors[2][None]), whole, how)[0].unflatten(0, (learners, -1))
    some = inputs if outputs is None else outputs
    sizes = tuple(each if each is None else tuple(each.shape) for each in (outputs, inputs, weights))
    algorithm = "grouped"
    if _round is not None and some.is_floating_point() and not how.transposed:
        asked = some.device, some.dtype, role, sizes, shape, how
        what = f"{role} {sizes} {shape} {tuple(how)} {some.dtype} {fastest.place(some.device)}"
        algorithm = _round.algorithm(what, lambda: _fastest_algorithm(*asked))
    return ALGORITHMS[algorithm](role, (outputs, inputs, weights), shape, how)


def _grouped(role: Role, tensors: Tensors, shape: Shape, how: Geometry) -> Any:
    learners = next(len(each) for each in tensors if each is not None)
    outputs: Any
    inputs: Any
    outputs, inputs = (each if each is None else each.transpose(0, 1).flatten(1, 2) for each in tensors[:2])
    rest = (None, *how[:5], learners * how.groups)
    if role == "weights":
        weights = outputs.new_empty(1).expand(learners * shape[0], *shape[1:])  # only its shape is used
        found = aten.convolution_backward(outputs, inputs, weights, *rest, (False, True, False))[1]
        return found.unflatten(0, (learners, -1))
    weights = tensors[2].flatten(0, 1)
    if role == "outputs":
        found = aten.convolution(inputs, weights, *rest)
    else:
        inputs = outputs.new_empty(1).expand(shape[0], learners * shape[1], *shape[2:])
        found = aten.convolution_backward(outputs, inputs, weights, *rest, (True, False, False))[0]
    return found.unflatten(1, (learners, -1)).transpose(0, 1)


def _in_turn(role: Role, tensors: Tensors, shape: Shape, how: Geometry) -> Tensor:
    learners = next(len(each) for each in tensors if each is not None)
    alone = ([each if each is None else each[j : j + 1] for each in tensors] for j in range(learners))
    return torch.cat([_grouped(role, each, shape, how) for each in alone])


def _product(role: Role, tensors: Tensors, shape: Shape, how: Geometry) -> Any:
    """Run one matrix product per learner and group; in memory the result has channels before samples."""
    outputs, inputs, weights = tensors
    kernel, edges = shape[2:] if weights is None else weights.shape[3:], [(each, each) for each in how.padding]
    if role == "inputs":  # convolve the output gradient, dilated by the stride, with flipped weights
        apart = [step * (size - 1) + 1 for step, size in zip(how.stride, outputs.shape[3:], strict=True)]
        inputs = outputs
        if apart != [*outputs.shape[3:]]:
            inputs = outputs.new_zeros(*outputs.shape[:3], *apart)
            inputs[(..., *(slice(None, None, step) for step in how.stride))] = outputs
        reach = [step * (size - 1) for step, size in zip(how.dilation, kernel, strict=True)]
        before = [over - pad for over, pad in zip(reach, how.padding, strict=True)]
        edges = [(b, s - a - b + r) for b, s, a, r in zip(before, shape[2:], apart, reach, strict=True)]
        weights = weights.flip(*range(3, weights.dim())).unflatten(1, (how.groups, -1)).transpose(2, 3).flatten(1, 2)
        how = how._replace(stride=(1,) * len(kernel))
    learners, samples = inputs.shape[:2]
    columns = inputs.transpose(1, 2)
    if any(any(each) for each in edges):
        columns = F.pad(columns, [each for pair in reversed(edges) for each in pair])
    for index, (size, step, gap) in enumerate(zip(kernel, how.stride, how.dilation, strict=True)):
        columns = columns.unfold(3 + index, gap * (size - 1) + 1, step)[..., ::gap]
    pixels, last = columns.shape[3 : 3 + len(kernel)], range(3, 3 + len(kernel))
    matrices = columns.permute(0, 1, *(len(kernel) + each for each in last), 2, *last)
    matrices = matrices.reshape(learners * how.groups, -1, samples * pixels.numel())
    if role == "weights":
        rows = outputs.transpose(1, 2).reshape(learners * how.groups, -1, matrices.shape[2])
        return torch.bmm(rows, matrices.mT).view(learners, *shape)
    found = torch.bmm(weights.reshape(learners * how.groups, -1, matrices.shape[1]), matrices)
    return found.view(learners, -1, samples, *pixels).transpose(1, 2)


ALGORITHMS: dict[str, Callable[[Role, Tensors, Shape, Geometry], Tensor]] = {
    "grouped": _grouped,
    "in turn": _in_turn,
    "product": _product,
}
MOST_COLUMNS = 2**28  # elements that a matrix product may take in addition to a learning task's activations


@functools.cache
def _fastest_algorithm(
    device: torch.device, dtype: torch.dtype, role: Role, sizes: Any, shape: Shape, how: Geometry
) -> str:
    if device.type != "cuda":  # on two cores, algorithms that won in isolation lost in whole rounds
        return "grouped"

    def case(name: str) -> Callable[[], object]:
        tensors = [size and torch.ones(size, dtype=dtype, device=device) for size in sizes]
        if name == "grouped":  # with samples first in memory, as in its own results, it copies nothing
            images = (each if each is None else each.transpose(0, 1).contiguous() for each in tensors[:2])
            tensors[:2] = [each if each is None else each.transpose(0, 1) for each in images]
        return functools.partial(ALGORITHMS[name], role, tensors, shape, how)

    pixels = math.prod(sizes[0] if sizes[1] is None else sizes[1])
    columns = pixels * math.prod((sizes[2] or shape)[-len(how.stride) :])  # elements of the im2col matrix
    names = [name for name in ALGORITHMS if name != "product" or columns <= MOST_COLUMNS]
    return fastest.fastest(names, case, device, str(dtype), role, sizes, shape, how)


# --- batch norm


def _batch_norm(info: Any, in_dims: Any, *given: Any) -> Any:
    is_training = given[5]
    if is_training and given[3] is not None and in_dims[3:5] != (0, 0):  # they are updated in place
        raise RuntimeError("batch norm would update running statistics that learners share")
    tensors = _learners_first(info.batch_size, in_dims[:5], given[:5])
    if tensors[3] is None:
        return _with_channels_of_all(aten._native_batch_norm_legit.no_stats, 1, tensors[:3], given[5:])
    running = tensors[3:5]
    tensors[3:5] = [each.contiguous() for each in running]  # a part of a buffer is not, and updated as a copy
    found = _with_channels_of_all(aten._native_batch_norm_legit, 1, tensors, given[5:])
    for each, updated in zip(running, tensors[3:5], strict=True):
        if is_training and updated is not each:
            each.copy_(updated)
    return found


def _batch_norm_backward(info: Any, in_dims: Any, *given: Any) -> Any:
    tensors = _learners_first(info.batch_size, in_dims[:7], given[:7])
    return _with_channels_of_all(aten.native_batch_norm_backward, 2, tensors, given[7:])


def _cudnn_batch_norm(info: Any, in_dims: Any, *given: Any) -> Any:
    found, dims = _batch_norm(info, in_dims, *given)
    return (*found, given[0].new_empty(0, dtype=torch.uint8)), (*dims, None)  # cuDNN's reserve, unused


def _cudnn_batch_norm_backward(info: Any, in_dims: Any, input: Any, outputs: Any, *given: Any) -> Any:
    *tensors, eps, _ = given
    rest = (True, eps, (True, True, True))
    return _batch_norm_backward(info, (in_dims[1], in_dims[0], *in_dims[2:]), outputs, input, *tensors, *rest)


def _with_channels_of_all(function: Any, images: int, tensors: Tensors, rest: Sequence[Any]) -> Any:
    """Apply a function to the merged channels of all learners; the first `images` tensors are images."""
    if _round is not None:
        _round.extend_cache_key("batch norm")
    like = tensors[images - 1]
    learners = len(like)
    # Without copies: samples keep their dimension or merge with the pixels, as the memory layout allows.
    samples_first = like.transpose(0, 1).is_contiguous()
    if samples_first:
        flat = [each.transpose(0, 1).flatten(1, 2) for each in tensors[:images]]
    else:
        flat = [each.transpose(1, 2).reshape(1, learners * like.shape[2], -1) for each in tensors[:images]]
    channels = [each if each is None else each.reshape(-1) for each in tensors[images:]]
    found, *others = function(*flat, *channels, *rest)
    if found is not None and samples_first:
        found = found.unflatten(1, (learners, -1)).transpose(0, 1)
    elif found is not None:
        found = found.view(like.transpose(1, 2).shape).transpose(1, 2)
    results = (found, *(each if each is None else each.view(learners, each.numel() // learners) for each in others))
    return results, tuple(each if each is None else 0 for each in results)


RULES: dict[str, Callable[..., Any]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "_native_batch_norm_legit": _batch_norm,
    "cudnn_batch_norm": _cudnn_batch_norm,
    "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
}
_library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns that its own rules are replaced
    for name, rule in RULES.items():
        torch.library.register_vmap(f"aten::{name}", rule, lib=_library)
