"""The CUDA kernels of `kernels/`, compiled and launched through CuPy: the only file that imports cupy."""

import contextlib
import hashlib
import importlib
import importlib.metadata
import math
from pathlib import Path
from typing import Any

# Import torch before cupy: each loads a libnccl.so.2, and torch needs its own.
import torch
from torch import Tensor

from bow.devices.kernels import (
    AdamNumbers,
    Batch,
    Indices,
    Kernels,
    LearnerNumbers,
    Matrix,
    Numbers,
    Row,
    Samples,
    TaskNumbers,
    cuda_extra,
)
from bow.errors import MissingDependencyError, RuntimeUnavailableError, reason

SOURCES = ("dtypes.cuh", "sma.cu", "gather.cu")
OPERATIONS = ("sma_contribute", "sma_apply", "sma_center", "sgd_row", "sgd_round", "adam_round")
SUFFIXES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16"}
THREADS = 256
BLOCKS_PER_MULTIPROCESSOR = 8
BYTES_PER_THREAD = 16
MOST_CHECKED = 10_000  # launches whose tensors have been checked, by their addresses
_NOTHING = contextlib.nullcontext()


class CupyKernels(Kernels):
    """CUDA kernels for float32, float64 and bfloat16; other dtypes fall back to PyTorch."""

    name = "cupy"

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._cupy = _import_cupy()
        self._device = device
        self._streams: dict[int, Any] = {}
        self._checked: set[tuple[int, ...]] = set()
        self._most_blocks = BLOCKS_PER_MULTIPROCESSOR * self._num_multiprocessors()
        names = [f"{operation}_{suffix}" for operation in OPERATIONS for suffix in SUFFIXES.values()]
        code = source()
        with self._on_device():
            module = self._cupy.RawModule(code=code, options=compile_options(code))
            module.compile()
            self._functions = {name: module.get_function(name) for name in [*names, "gather"]}

    def launch_once(self) -> None:
        numbers = torch.zeros(8, dtype=torch.float64, device=self._device)
        index = torch.zeros(1, dtype=torch.int64, device=self._device)
        self.gather(index, index, torch.empty_like(index))
        for dtype in SUFFIXES:
            rows = torch.zeros(4, 1, 16, dtype=dtype, device=self._device)
            z, z_prev, total = torch.zeros(3, 16, dtype=dtype, device=self._device)
            self.sma_contribute(rows[0], z, rows[1], total, 0.0)
            self.sma_apply(rows[0], rows[1], z, z_prev, total, 0.0)
            self.sma_center(rows[0], z, z_prev, numbers[:6])
            task = torch.zeros(2, dtype=torch.promote_types(dtype, torch.float32), device=self._device)
            self.sgd_row(rows[0, 0], rows[1, 0], rows[2, 0], z, z_prev, task, torch.empty_like(task), numbers[:6], True)
            self.sgd_round(rows[0], rows[1], rows[2], z, z_prev, task[:1], numbers[:6], True)
            w, m, v, g = rows
            self.adam_round(w, m, v, g, z, z_prev, task[:1], task[1:], numbers, True)

    def sma_contribute(self, weights: Matrix, z: Row, corrections: Matrix, total: Row, alpha: float) -> None:
        if weights.dtype not in SUFFIXES:
            return super().sma_contribute(weights, z, corrections, total, alpha)
        w, center, c, added = self._pointers(weights, z, corrections, total)
        arguments = (w, weights.stride(0), center, c, corrections.stride(0), added, float(alpha), *weights.shape)
        return self._launch_over_rows("sma_contribute", weights, arguments)

    def sma_apply(self, weights: Matrix, corrections: Matrix, z: Row, z_prev: Row, total: Row, mu: float) -> None:
        if weights.dtype not in SUFFIXES:
            return super().sma_apply(weights, corrections, z, z_prev, total, mu)
        w, c, center, before, added = self._pointers(weights, corrections, z, z_prev, total)
        strides = weights.stride(0), corrections.stride(0)
        arguments = (w, strides[0], c, strides[1], center, before, added, float(mu), *weights.shape)
        return self._launch_over_rows("sma_apply", weights, arguments)

    def sma_center(self, weights: Matrix, z: Row, z_prev: Row, numbers: Numbers) -> None:
        if weights.dtype not in SUFFIXES:
            return super().sma_center(weights, z, z_prev, numbers)
        w, *centers = self._pointers(weights, z, z_prev)
        arguments = (w, weights.stride(0), *centers, self._address(numbers, torch.float64), *weights.shape)
        return self._launch_over_rows("sma_center", weights, arguments)

    def sgd_row(
        self,
        weights: Row,
        momentum: Row,
        gradient: Row,
        z: Row,
        z_prev: Row,
        task: TaskNumbers,
        kept: TaskNumbers,
        numbers: Numbers,
        synchronise: bool,
    ) -> None:
        if weights.dtype not in SUFFIXES:
            return super().sgd_row(weights, momentum, gradient, z, z_prev, task, kept, numbers, synchronise)
        rows = (weights, momentum, gradient, z, z_prev)
        addresses = (*(row.data_ptr() for row in rows), task.data_ptr(), kept.data_ptr(), numbers.data_ptr())
        if addresses not in self._checked:  # checking all of them takes longer than the launch
            self._pointers(*rows)
            self._computed(task, weights)
            self._computed(kept, weights)
            self._address(numbers, torch.float64)
            if len(self._checked) >= MOST_CHECKED:
                self._checked.clear()
            self._checked.add(addresses)
        arguments = (*addresses, task.numel(), weights.numel(), int(synchronise))
        return self._launch_over_rows("sgd_row", weights, arguments)

    def sgd_round(
        self,
        weights: Matrix,
        momenta: Matrix,
        gradients: Matrix,
        z: Row,
        z_prev: Row,
        finite: LearnerNumbers,
        numbers: Numbers,
        synchronise: bool,
    ) -> None:
        if weights.dtype not in SUFFIXES:
            return super().sgd_round(weights, momenta, gradients, z, z_prev, finite, numbers, synchronise)
        w, m, g, *centers = self._pointers(weights, momenta, gradients, z, z_prev)
        rows = (w, weights.stride(0), m, momenta.stride(0), g, gradients.stride(0))
        given = (self._computed(finite, weights), self._address(numbers, torch.float64))
        return self._launch_over_rows("sgd_round", weights, (*rows, *centers, *given, *weights.shape, int(synchronise)))

    def adam_round(
        self,
        weights: Matrix,
        means: Matrix,
        squares: Matrix,
        gradients: Matrix,
        z: Row,
        z_prev: Row,
        finite: LearnerNumbers,
        counts: LearnerNumbers,
        numbers: AdamNumbers,
        synchronise: bool,
    ) -> None:
        matrices = weights, means, squares, gradients
        if weights.dtype not in SUFFIXES:
            return super().adam_round(*matrices, z, z_prev, finite, counts, numbers, synchronise)
        *addresses, center, before = self._pointers(*matrices, z, z_prev)
        rows = [each for pair in zip(addresses, (one.stride(0) for one in matrices), strict=True) for each in pair]
        behind = torch.empty_like(counts)
        given = [self._computed(each, weights) for each in (finite, counts, behind)]
        given.append(self._address(numbers, torch.float64))
        self._launch_over_rows("adam_round", weights, (*rows, center, before, *given, *weights.shape, int(synchronise)))
        counts.copy_(behind)
        return None

    def gather(self, source: Samples, indices: Indices, out: Batch) -> None:
        if not (source.is_contiguous() and indices.is_contiguous() and out.is_contiguous()):
            return super().gather(source, indices, out)
        row_bytes = math.prod(source.shape[1:]) * source.itemsize
        pointers = (
            self._address(out, source.dtype),
            self._address(source, source.dtype),
            self._address(indices, torch.int64),
        )
        arguments = (*pointers, row_bytes, indices.numel(), source.shape[0])
        return self._launch("gather", indices.numel() * row_bytes, arguments)

    def _pointers(self, *tensors: Tensor) -> list[int]:
        dtype, columns = tensors[0].dtype, tensors[0].shape[-1]
        for tensor in tensors:
            assert tensor.dtype == dtype, f"{tensor.dtype}, expected {dtype}"
            assert tensor.device == self._device, f"{tensor.device}, expected {self._device}"
            assert tensor.shape[-1] == columns
            assert tensor.stride(-1) == 1 or columns <= 1, "the elements of a row must lie without gaps"
        return [tensor.data_ptr() for tensor in tensors]

    def _address(self, tensor: Tensor, dtype: torch.dtype) -> int:
        assert tensor.dtype == dtype, f"{tensor.dtype} instead of {dtype}"
        assert tensor.device == self._device, f"{tensor.device}, expected {self._device}"
        assert tensor.is_contiguous()
        return tensor.data_ptr()

    def _computed(self, tensor: Tensor, weights: Tensor) -> int:
        return self._address(tensor, torch.promote_types(weights.dtype, torch.float32))

    def _launch_over_rows(self, operation: str, weights: Tensor, arguments: tuple[int | float, ...]) -> None:
        row_bytes = weights.shape[-1] * weights.itemsize
        self._launch(f"{operation}_{SUFFIXES[weights.dtype]}", row_bytes, arguments)

    def _launch(self, name: str, num_bytes: int, arguments: tuple[int | float, ...]) -> None:
        """Launch a kernel whose threads share `num_bytes`."""
        # Integers and addresses are `long long` in every kernel and other scalars `double`: CuPy's conversion of
        # Python's int and float. It passes a NumPy float32 as 4 bytes and a bool as 1, which would go undetected here.
        blocks = min(-(-num_bytes // (BYTES_PER_THREAD * THREADS)), self._most_blocks)
        with self._on_device():
            self._functions[name]((max(1, blocks),), (THREADS,), arguments, stream=self._stream())

    def _stream(self) -> Any:
        """Return PyTorch's current stream for CuPy, one object per handle."""
        handle = self._stream_handle()
        stream = self._streams.get(handle)
        if stream is None:
            cuda = self._cupy.cuda
            if hasattr(cuda.Stream, "from_external"):
                stream = cuda.Stream.from_external(_ForeignStream(handle))
            else:  # CuPy 13, which does not deprecate ExternalStream yet
                stream = cuda.ExternalStream(handle, self._device.index)
            self._streams[handle] = stream
        return stream

    # Queries of the device; tests on a machine without a GPU override them.

    def _num_multiprocessors(self) -> int:
        return int(torch.cuda.get_device_properties(self._device).multi_processor_count)

    def _stream_handle(self) -> int:
        private: Any = torch._C
        return int(private._cuda_getCurrentRawStream(self._device.index))

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        """Make the device current: CuPy compiles for the current device and looks kernels up there."""
        private: Any = torch._C
        return _NOTHING if private._cuda_getDevice() == self._device.index else torch.cuda.device(self._device)


class _ForeignStream:
    """A stream handle in the protocol that CuPy expects and that streams of older PyTorch lack."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def source() -> str:
    """Return all kernels as one text, headers included: CuPy's cache would miss changes of included files."""
    folder = Path(next(iter(importlib.import_module("bow.kernels").__path__)))
    lines = [line for name in SOURCES for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    return "\n".join(line for line in lines if not line.startswith('#include "')) + "\n"


def compile_options(code: str) -> tuple[str, ...]:
    return ("-std=c++17", f"-DBOW_SRC_SHA={hashlib.sha256(code.encode()).hexdigest()[:16]}")


def _import_cupy() -> Any:
    if (clash := library_clash()) is not None:
        raise RuntimeUnavailableError(clash)
    remedy = f"pip install 'bow-trainer[{cuda_extra()}]'"
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise
        raise MissingDependencyError(f"the CUDA kernels need CuPy; {remedy}") from error
    except ImportError as error:
        raise RuntimeUnavailableError(f"CuPy cannot be imported ({reason(error)}); {remedy}") from error
    return cupy


def library_clash() -> str | None:
    """Return which installed libraries overwrite each other's files, and the remedy; None: none do."""
    both = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
    try:
        list(map(importlib.metadata.version, both))
    except importlib.metadata.PackageNotFoundError:
        return None
    return f"{' and '.join(both)} are both installed and overwrite each other's files; uninstall one of them"
