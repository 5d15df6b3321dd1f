"""Times of operators that were measured before on this machine, kept on disk."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from bow.compiling import cache_folder
from bow.devices import available_cores, processor
from bow.files import write_whole
from bow.graph import Operator, StepGraph
from bow.graph.operator import Ref, map_refs
from bow.runtime.build import content_hash
from bow.schedule.profiler.profile import OperatorTime


def hardware(runtime: str) -> str:
    """What times depend on besides operators: processor, cores, torch and its settings, and what has run them.

    Cores are named, because two hardware threads of one are not two cores. Threads that wait for work spin or sleep,
    and products of matrices are exact or not, as torch has been told.
    """
    cores = ",".join(map(str, available_cores()))
    waiting = os.environ.get("OMP_WAIT_POLICY", "by default").lower()
    precision = torch.get_float32_matmul_precision()
    settings = f"threads wait {waiting}, matmul {precision}, oneDNN {torch.backends.mkldnn.enabled}"
    return f"{processor()}, cores {cores}, torch {torch.__version__}, {settings}, {runtime}"


def signature(operator: Operator, graph: StepGraph) -> str:
    """What an operator's time depends on: its kind, the shapes and layouts that it reads, and its other arguments."""

    def described(ref: Ref) -> str:
        spec = graph.values[ref.value]
        return f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}{list(spec.strides)}"

    arguments = map_refs(described, operator.arguments)
    keywords = {name: map_refs(described, value) for name, value in sorted(operator.keywords.items())}
    return f"{operator.kind} {arguments} {keywords}"


class Cache:
    """Times by (signature, threads), in one file for each kind of machine.

    Args:
        hardware: see `hardware`.
        folder: where the files lie; None: in bow's cache.
    """

    def __init__(self, hardware: str, folder: Path | None = None) -> None:
        self._path = (folder or cache_folder() / "profiles") / f"{content_hash(hardware)}.json"
        self._hardware = hardware

    def read(self) -> dict[tuple[str, int], OperatorTime]:
        """Everything that is known; what is damaged is as good as nothing."""
        try:
            rows = json.loads(self._path.read_text(encoding="utf-8"))["times"]
            return {(str(name), int(threads)): OperatorTime.read(*time) for name, threads, *time in rows}
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return {}

    def write(self, times: Mapping[tuple[str, int], OperatorTime]) -> None:
        """Add times to the file; where it cannot be written, they are measured again another time."""
        merged = {**self.read(), **times}
        rows = [[name, n, time.median_s, time.spread_s, time.repeats] for (name, n), time in sorted(merged.items())]
        with contextlib.suppress(OSError):
            write_whole(self._path, json.dumps({"hardware": self._hardware, "times": rows}))
