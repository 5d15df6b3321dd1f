"""What no schedule can beat: estimates from the step graph and from rates of this device.

* A learner's kernels depend on each other: `kernels * time from one kernel of a chain to the next`.
* Every kernel of every learner has to be started: `learners * kernels / start rate`.
* The work has to be done: `learners * max(operations / peak, bytes / rate of a copy)`, and the passes of SGD and SMA
  over the rows.

Time for a round is at least the largest of these.
"""

from collections.abc import Mapping
from typing import Any

import bow
from benchmarks.gpu.parts import PARTS, Context
from benchmarks.gpu.workloads import workload

# From one kernel of a CUDA graph to the next on an H100, as others have published; where nothing was measured
CHAIN_US = 1.3

COPY_BYTES_PER_S = 3.0e12
PEAK_FLOPS = 67e12  # Of an H100; where nothing was measured

UPDATE_KERNELS = 1


def measure(context: Context) -> None:
    """Count kernels, operations and bytes of a learner's step, on the host."""
    arguments = [part.arguments for part in PARTS if "model" in part.arguments]
    rows: list[dict[str, Any]] = []
    for model, batch_size in dict.fromkeys((each["model"], each["batch_size"]) for each in arguments):
        if rows and not context.time.allows(1):
            context.cut(f"{model}, batch {batch_size}: left out")
            continue
        rows.append(step_costs(model, batch_size, context.config.fake))
        context.record(rows=rows)


def step_costs(model: str, batch_size: int, fake: bool) -> dict[str, Any]:
    """What a step of one learner asks for: its operators, without views, as kernels, and one for the update."""
    subject = workload(model, fake)
    module = subject.model()
    graph = bow.capture(module, subject.make_data(batch_size), subject.loss)
    return {
        "model": model,
        "batch_size": batch_size,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "kernels": sum(not operator.is_view for operator in graph.operators) + UPDATE_KERNELS,
        "flops": graph.flops,
        "bytes": graph.bytes_moved,
    }


class Floors:
    """The floors of all rounds, from the results of several parts."""

    def __init__(self, parts: Mapping[str, Mapping[str, Any]], machine: Mapping[str, Any]) -> None:
        self._steps = {(row["model"], row["batch_size"]): row for row in parts.get("floors", {}).get("rows", ())}
        self._rates: dict[int, float] = {}
        self._chain_us: float | None = None
        for row in parts.get("launches", {}).get("rows", ()):
            ways = [row[way] for way in ("graphs", "branches") if way in row]
            self._rates[row["streams"]] = max(way["kernels_per_us"]["median"] for way in ways)
            if row["streams"] == 1:
                self._chain_us = min(way["us_per_kernel_of_a_chain"]["median"] for way in ways)
        copies = [row["copy_gb_per_s"]["median"] for row in parts.get("kernels", {}).get("rows", ())]
        self._copy = 1e9 * max(copies) if copies else None
        self._peak: float | None = machine.get("peak_float32_flops")

    @property
    def assumptions(self) -> dict[str, Any]:
        """The rates that floors are made with, and which of them were measured here."""
        return {
            "us_from_kernel_to_kernel": self._chain_us or CHAIN_US,
            "copy_bytes_per_s": self._copy or COPY_BYTES_PER_S,
            "peak_float32_flops": self._peak or PEAK_FLOPS,
            "kernels_per_us_by_streams": self._rates,
            "measured_here": [
                name
                for name, value in (("kernel to kernel", self._chain_us), ("copy", self._copy), ("peak", self._peak))
                if value
            ],
        }

    def of(self, model: str, batch_size: int, learners: int) -> dict[str, float] | None:
        """Milliseconds that a round takes at least, by each estimate; None where the step was not captured."""
        step = self._steps.get((model, batch_size))
        if step is None:
            return None
        assumed = self.assumptions
        kernels = step["kernels"]
        work = max(step["flops"] / assumed["peak_float32_flops"], step["bytes"] / assumed["copy_bytes_per_s"])
        rows = (5 * learners + 4) * 4 * step["parameters"] / assumed["copy_bytes_per_s"]
        floors = {
            "chain_ms": 1e-3 * kernels * assumed["us_from_kernel_to_kernel"],
            "work_ms": 1e3 * (learners * work + rows),
        }
        rate = self._rates.get(learners)
        if rate:
            floors["starts_ms"] = 1e-3 * learners * kernels / rate
        return floors
