"""What `python -m benchmarks gpu` can be told."""

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import harness
from benchmarks.gpu.parts import NAMES, QUICK_PARTS
from benchmarks.harness import RESULTS, setting


@dataclass(frozen=True)
class Config(harness.Config):
    """Config of the experiment."""

    out: Path = setting(RESULTS / "gpu", "folder for gpu.json, gpu.md and what they are made of")  # noqa: RUF009
    budget_s: float = setting(480.0, "seconds for everything; parts are cut short, or left out with a note")
    parts: tuple[str, ...] = setting(NAMES, "what is measured", choices=NAMES)
    learners: tuple[int, ...] = setting((1, 2, 4, 8, 16), "numbers of learners")
    repeats: int = setting(5, "turns of each contestant")
    stint_s: float = setting(0.1, "seconds of a turn", least=0)
    samples: int = setting(16384, "samples that lie on the device")
    tf32: bool = setting(False, "whether float32 products may round their inputs to TF32, for all contestants")
    processes: bool = setting(True, "parts, and what is compiled, run in processes of their own")
    fake: bool = setting(False, "a tiny form on a fake device, to see that it works where there is no GPU")

    def reduced(self) -> "Config":
        """What `quick` and `fake` make of the settings."""
        made = self
        if self.quick:
            made = replace(made, parts=QUICK_PARTS, learners=(1, 4), repeats=3, budget_s=min(self.budget_s, 120.0))
        if self.fake:
            made = replace(made, learners=made.learners[:2], repeats=1, stint_s=0.0, samples=32)
        return made
