"""The device that is measured: a GPU, or a fake one on which the whole program runs in a test."""

import abc
import contextlib
import gc
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.trace import KernelRun, kernel_runs
from benchmarks.harness.bare import CONNECTIONS
from bow.devices import CudaDevice, Kernels, Stream, StreamDevice, available_cores, cuda_device, kernels_for
from bow.errors import SettingError
from bow.testing import FakeDevice

# Devices on which all learners share a stream and so its memory; and whose host threads may run on any core
ONE_STREAM, UNPINNED = "one stream", "unpinned"

# Float32 multiply-adds per cycle, by compute capability; newer ones have 128
LANES_PER_MULTIPROCESSOR = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}

SMI_FIELDS = (
    "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,compute_mode,"
    "memory.total,memory.used"
)
ENVIRONMENT = (CONNECTIONS, "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG")


class Machine(abc.ABC):
    """What is measured on, with its clock."""

    def __init__(self, device: StreamDevice, warm_up: int = 3) -> None:
        self.device = device
        self.warm_up = warm_up

    @property
    def kernels(self) -> Kernels:
        """What averages on it."""
        return kernels_for(self.device.torch_device)

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Have the host wait for everything that was issued."""

    @abc.abstractmethod
    def device_seconds(self, run: Callable[[], object]) -> float:
        """Seconds on the device, of what `run` issues on the current stream, as its own clock says."""

    @abc.abstractmethod
    def trace(self, run: Callable[[], object], path: Path) -> list[KernelRun]:
        """Which kernels ran when while `run` did, by the device's profiler, which leaves its file at `path`."""

    @abc.abstractmethod
    def variant(self, kind: str) -> StreamDevice:
        """The same hardware used in another way: `ONE_STREAM` or `UNPINNED`."""

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Hardware, driver, clocks, versions and flags: what belongs beside the numbers."""

    @abc.abstractmethod
    def peak_bytes(self) -> int:
        """The most memory that was in use at once, in bytes."""

    def still_works(self) -> bool:
        """Whether the device does what it is told; after an illegal access it never does again in this process."""
        try:
            self.synchronize()
            return bool(place(self.device, torch.ones(2)).sum() == 2)
        except Exception:
            return False

    def seconds(self, run: Callable[[], object], calls: int) -> float:
        """Seconds for some calls, from an idle device to an idle device."""
        self.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            run()
        self.synchronize()
        return time.perf_counter() - began

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Around what contestants do: what they warn of is not for whoever measures them."""
        return warnings.catch_warnings(action="ignore")

    def join(self, streams: Sequence[Stream]) -> None:
        """Have the caller's stream wait for these."""
        for stream in streams:
            over = self.device.event(f"{stream.name} is through")
            stream.record(over)
            self.device.caller().wait(over)

    def tidy(self) -> None:
        """Give memory back that nobody uses."""
        gc.collect()


class CudaMachine(Machine):
    """One GPU."""

    def __init__(self, tf32: bool = False) -> None:
        super().__init__(cuda_device(torch.device("cuda", 0)))
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(0)
        set_tf32(tf32)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def device_seconds(self, run: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def trace(self, run: Callable[[], object], path: Path) -> list[KernelRun]:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        self.synchronize()
        with torch.profiler.profile(activities=activities) as profiler:
            run()
            self.synchronize()
        profiler.export_chrome_trace(str(path))
        return kernel_runs(json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False))

    def variant(self, kind: str) -> StreamDevice:
        """A device object with streams of its own."""
        return {ONE_STREAM: _OneStreamCuda, UNPINNED: _UnpinnedCuda}[kind](self.device.torch_device)

    def facts(self) -> dict[str, Any]:
        properties: Any = torch.cuda.get_device_properties(0)
        smi = nvidia_smi()
        clock_hz = _number(smi.get("clocks.max.sm"), 1e6) or 1e3 * getattr(properties, "clock_rate", 0)
        lanes = LANES_PER_MULTIPROCESSOR.get((properties.major, properties.minor), 128)
        return {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "l2_mib": round(getattr(properties, "L2_cache_size", 0) / 2**20, 1),
            "peak_float32_flops": 2.0 * lanes * properties.multi_processor_count * clock_hz or None,
            "nvidia_smi": smi,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "tf32": {
                "matmul": bool(torch.backends.cuda.matmul.allow_tf32),
                "cudnn": bool(torch.backends.cudnn.allow_tf32),
            },
            "cores_near_the_device": len(self.device.cores()),
            **_software(),
        } | _kernels_facts(self.kernels)

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_allocated(0))

    def tidy(self) -> None:
        super().tidy()
        torch.cuda.empty_cache()


class FakeMachine(Machine):
    """The fake device of the tests: everything runs, in its order and checked, and no time means anything."""

    def __init__(self) -> None:
        self._devices = [_Fake()]
        super().__init__(self._devices[0], warm_up=1)

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing is compiled."""
        stack = contextlib.ExitStack()
        stack.enter_context(super().around())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        return stack

    def synchronize(self) -> None:
        """The host knows from now on that everything is over."""
        for device in self._devices:
            device.synchronize()

    def device_seconds(self, run: Callable[[], object]) -> float:
        return self.seconds(run, 1)

    def trace(self, run: Callable[[], object], path: Path) -> list[KernelRun]:
        """Made up: two streams that take turns and overlap by half."""
        run()
        names = (("a", 7, 0.0), ("b", 8, 5.0), ("a", 7, 10.0))
        events = [
            {"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": 10.0, "args": {"stream": stream}}
            for name, stream, at in names
        ]
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        return kernel_runs(json.loads(path.read_text(encoding="utf-8")))

    def variant(self, kind: str) -> StreamDevice:
        self._devices.append({ONE_STREAM: _OneStreamFake, UNPINNED: _Fake}[kind]())
        return self._devices[-1]

    def facts(self) -> dict[str, Any]:
        return {"device": "the fake device of the tests", "torch": torch.__version__, **_software()} | _kernels_facts(
            self.kernels
        )

    def peak_bytes(self) -> int:
        return self.device.used_bytes()


class _Fake(FakeDevice):
    def synchronize(self) -> None:
        over = self.event("everything is over")
        for stream in (*self._streams.values(), self.caller()):
            stream.record(over)
            over.synchronize()


class _OneStream(StreamDevice):
    """All learners on one stream: what one has given back, the next one gets."""

    def stream(self, name: str, *, high_priority: bool = False) -> Stream:
        return super().stream("learners" if name.startswith("learner ") else name, high_priority=high_priority)


class _OneStreamFake(_OneStream, _Fake):
    pass


class _OneStreamCuda(_OneStream, CudaDevice):
    pass


class _UnpinnedCuda(CudaDevice):
    def cores(self) -> tuple[int, ...]:
        return available_cores()


def open_machine(fake: bool, tf32: bool = False) -> Machine:
    if fake:
        return FakeMachine()
    check_gpu()
    return CudaMachine(tf32)


def check_gpu() -> None:
    """Refuse a machine without a GPU; nothing of this process is on the GPU afterwards."""
    if not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
        raise SettingError(
            f"this needs a CUDA device, and this {build} build of torch sees none; fake=true runs the same on a fake "
            "device, to see that it works"
        )


def set_tf32(allowed: bool) -> None:
    """Allow or forbid TF32, by the switches that every version of torch from 2.10 on has."""
    with warnings.catch_warnings(action="ignore"):  # newer versions have other names for them as well
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed


def place(device: StreamDevice, tensor: Tensor) -> Tensor:
    """A tensor of the host as one of the device, made on the current stream."""
    with device.issuing():
        return torch.empty_like(tensor, device=device.torch_device).copy_(tensor)


def _kernels_facts(kernels: Kernels) -> dict[str, Any]:
    return {"kernels": kernels.name, "why_not_cupy": kernels.reason}


def _software() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "cupy": _version("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "environment_variables": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }


def _version(*distributions: str) -> str | None:
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def nvidia_smi() -> dict[str, str]:
    """What nvidia-smi tells of the first GPU; empty without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(SMI_FIELDS.split(","), map(str.strip, done.stdout.split(",")), strict=False))


def _number(text: str | None, unit: float) -> float:
    try:
        return unit * float(text or "")
    except ValueError:
        return 0.0
