"""Operator times by number of threads, and their cache on disk."""

import contextlib
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bow.compiling import cache_folder
from bow.devices import available_cores, processor
from bow.disk_cache import JsonCache
from bow.errors import ScheduleError
from bow.files import JsonFormat
from bow.graph import Operator, StepGraph
from bow.graph.operator import Ref, map_refs
from bow.runtime.loading import machine

FORMAT = JsonFormat(
    "bow profile",
    version=1,
    subject="the profile",
    writer="Profile.to_json",
    remedy="measure again",
    refusal=ScheduleError,
)


@dataclass(frozen=True)
class OperatorTime:
    """Measured time of an operator."""

    median_s: float
    spread_s: float  # interquartile range
    repeats: int  # number of measurements

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "OperatorTime":
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else (0.0, 0.0, 0.0)
        return cls(statistics.median(seconds), high - low, len(seconds))

    @classmethod
    def read(cls, median_s: Any, spread_s: Any, repeats: Any) -> "OperatorTime":
        """Parse and validate a stored time."""
        numbers = float(median_s), float(spread_s), float(repeats)
        if not (all(map(math.isfinite, numbers)) and min(numbers) >= 0 and numbers[2] >= 1):
            raise ValueError(f"{numbers} are not a valid measurement")
        return cls(numbers[0], numbers[1], int(repeats))


@dataclass(frozen=True)
class Profile:
    """Times of all operators of a step graph on one machine."""

    names: tuple[str, ...]  # by operator, such as `aten.mm.default`
    modules: tuple[str, ...]  # by operator: its module
    times: Mapping[int, tuple[OperatorTime, ...]]  # by number of threads, then by operator
    hardware: str  # machine and versions

    def __post_init__(self) -> None:
        for count in map(len, (self.modules, *self.times.values())):
            if count != len(self.names):
                raise ScheduleError(
                    f"the profile has {len(self.names)} operators but modules or times for {count}; measure again"
                )

    @property
    def step_s(self) -> dict[int, float]:
        """By number of threads: seconds of all operators, one after another."""
        return {threads: sum(time.median_s for time in self.times[threads]) for threads in self.threads}

    @property
    def threads(self) -> tuple[int, ...]:
        """The measured numbers of threads, ascending."""
        return tuple(sorted(self.times))

    def nanoseconds(self, threads: int) -> list[int]:
        """By operator: time with this many threads, or with the next lower measured number."""
        measured = [count for count in self.threads if count <= threads]
        if not measured:
            raise ScheduleError(
                f"the profile has no times for {threads} threads or fewer, only for {self._listed()}; measure again"
            )
        return [round(time.median_s * 1e9) for time in self.times[measured[-1]]]

    def curves(self) -> list[dict[int, int]]:
        """By operator: nanoseconds by number of threads."""
        return [
            {threads: round(self.times[threads][index].median_s * 1e9) for threads in self.threads}
            for index in range(len(self.names))
        ]

    def longest(self, count: int, threads: int) -> list[int]:
        times = self.nanoseconds(threads)
        return sorted(range(len(times)), key=lambda index: (-times[index], index))[:count]

    def to_json(self) -> str:
        return FORMAT.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        return FORMAT.loads(
            text,
            lambda read: cls(
                tuple(map(str, read["names"])),
                tuple(map(str, read["modules"])),
                {int(n): tuple(OperatorTime.read(**time) for time in own) for n, own in read["times"].items()},
                str(read["hardware"]),
            ),
        )

    def _listed(self) -> str:
        return ", ".join(map(str, self.threads)) or "none"


def hardware(runtime: str) -> str:
    """Describe what times depend on besides operators."""
    # Cores are listed by number, because two hardware threads of one core are not two cores.
    cores = ",".join(map(str, available_cores()))
    waiting = os.environ.get("OMP_WAIT_POLICY", "by default").lower()
    precision = torch.get_float32_matmul_precision()
    settings = f"threads wait {waiting}, matmul {precision}, oneDNN {torch.backends.mkldnn.enabled}"
    return f"{processor()}, cores {cores}, torch {torch.__version__}, {settings}, {runtime}"


def signature(operator: Operator, graph: StepGraph) -> str:
    """Describe what an operator's time depends on: its kind, its inputs' shapes and layouts, its other arguments."""

    def described(ref: Ref) -> str:
        spec = graph.values[ref.value]
        return f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}{list(spec.strides)}"

    arguments = map_refs(described, operator.arguments)
    keywords = {name: map_refs(described, value) for name, value in sorted(operator.keywords.items())}
    return f"{operator.kind} {arguments} {keywords}"


class ProfileCache:
    """Times by (signature, threads), one file per machine and settings (see `hardware`)."""

    def __init__(self, hardware: str, folder: Path | None = None) -> None:
        self._cache = JsonCache(folder or cache_folder() / "profiles")
        self._hardware = [hardware, machine()]

    def read(self) -> dict[tuple[str, int], OperatorTime]:
        """Return all cached times; a damaged file counts as empty."""
        return self._cache.find(self._hardware, _read_times) or {}

    def write(self, times: Mapping[tuple[str, int], OperatorTime]) -> None:
        """Merge times into the file; errors are ignored, the times are then measured again."""
        merged = {**self.read(), **times}
        rows = [[name, n, time.median_s, time.spread_s, time.repeats] for (name, n), time in sorted(merged.items())]
        with contextlib.suppress(OSError):
            self._cache.store(self._hardware, rows)


def _read_times(rows: Any) -> dict[tuple[str, int], OperatorTime]:
    return {(str(name), int(threads)): OperatorTime.read(*time) for name, threads, *time in rows}
