"""bow on one GPU, beside its peers, within a time that is given.

What is measured, each part in a process of its own, so that one that fails or hangs leaves the others alone:

* whether kernels, engines, randomness, memory and sums over devices do what they should: the tests of `tests/gpu`;
* samples per second of plain, compiled and graphed PyTorch and of bow's engines, in turns;
* what averaging costs; how close the kernels come to a copy; whether kernels of two learners overlap;
* the comparisons of Budea, TensorBow, 2019: allocators, operators spread over streams, pinned threads.

Of packages it needs nothing but PyTorch. A second run into the same folder does what the first one has not finished.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.gpu.parts import NAMES, QUICK_PARTS, USUAL_S
from benchmarks.harness import RESULTS, setting


@dataclass(frozen=True)
class Config(harness.Config):
    out: Path = setting(RESULTS / "gpu", "folder for gpu.json, gpu.md and what they are made of")  # noqa: RUF009
    archive: str = setting("", "a .tar.gz with all of that folder, renewed every 20 s; empty: none")
    budget_s: float = setting(USUAL_S, "seconds for everything; parts are cut short, or left out with a note")
    parts: tuple[str, ...] = setting(
        NAMES, "what is tested and measured; unless given, what is not finished", choices=NAMES, quick=QUICK_PARTS
    )
    learners: tuple[int, ...] = setting((1, 2, 4, 8, 16), "numbers of learners", quick=(1, 4))
    repeats: int = setting(5, "turns of each contestant", quick=3)
    stint_s: float = setting(0.1, "seconds of a turn", least=0)
    samples: int = setting(16384, "samples that lie on the device")
    tf32: bool = setting(False, "whether float32 products may round their inputs to TF32, for all contestants")
    processes: bool = setting(True, "parts, and what is compiled, run in processes of their own")
    fake: bool = setting(False, "a tiny form on a fake device, to see that it works where there is no GPU")

    def reduced(self) -> "Config":
        """What `quick` and `fake` make of the settings."""
        made = super().reduced()
        if self.quick:
            made = replace(made, budget_s=min(made.budget_s, 120.0))
        if self.fake:
            made = replace(made, learners=made.learners[:2], repeats=1, stint_s=0.0, samples=32)
        return made


def run(config: Config, command: str) -> int:
    """Test and measure all parts; `gpu.json` and `gpu.md` are written anew behind each of them."""
    status: int = importlib.import_module("benchmarks.gpu.program").run(config, command)
    return status


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module("benchmarks.gpu.program").page(values)
    return found
