"""The pairs one after another, and what is written about them."""

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arguments import check_positive, setting
from benchmarks.environment import inspect_environment
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from benchmarks.tuner.comparison import Comparison, Task, compare
from benchmarks.tuner.pairs import PAIRS
from benchmarks.tuner.report import as_dict, line, markdown, reached, table
from bow.compiling import cache_folder
from bow.errors import SettingError
from bow.runtime import native


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for tuner.json and tuner.md")  # noqa: RUF009 - it is dataclasses.field
    pairs: tuple[str, ...] = setting(tuple(PAIRS), "models and batch sizes", choices=tuple(PAIRS))
    run_s: float = setting(600.0, "seconds of the training that is tuned for")
    passes: int = setting(3, "of the exhaustive trial; all settings are in the first, those close to the best in all")
    first_s: float = setting(0.2, "seconds of a setting in the first pass")
    stint_s: float = setting(0.4, "seconds of a measurement after that")
    compile_s: float = setting(40.0, "no more numbers of learners are compiled for engine fused after so many seconds")
    turns: int = setting(20, "measurements of the choice and of the fastest, in turn")
    most: int = setting(8, "learners that are tried at most")
    threads: int = setting(2, "torch's threads")
    cold: bool = setting(True, "whether nothing has been compiled before; false: what earlier runs compiled is used")
    quick: bool = setting(False, "a small part, to see that it works: one pair, a short run, a single pass")

    def __post_init__(self) -> None:
        if not self.pairs:
            raise SettingError(f"pairs must name at least one of {', '.join(PAIRS)}, got nothing")
        check_positive(self, "run_s", "passes", "first_s", "stint_s", "compile_s", "turns", "most", "threads")
        if self.most < 2:
            raise SettingError(f"most must be at least 2, or there is nothing to compare, got {self.most}")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        short = replace(self, run_s=40.0, passes=1, first_s=0.05, stint_s=0.05, compile_s=0.1, turns=2)
        return replace(short, pairs=self.pairs[:1], most=2, cold=False)


def run(settings: Settings, command: str) -> int:
    """Compare every pair, and write `tuner.json` and `tuner.md`; 0 where every pair reached the targets, else 1."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began = time.perf_counter()
    native()  # built once on a machine, which belongs to no training
    comparisons: list[Comparison] = []
    for name in settings.pairs:
        comparisons.append(_compare(name, settings))
        console().print(line(comparisons[-1]), highlight=False)
    environment = inspect_environment()
    findings = {"target_reached": all(map(reached, comparisons)), "pairs": [as_dict(each) for each in comparisons]}
    values = Result("tuner", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    write_json(settings.out / "tuner.json", values)
    write_text(settings.out / "tuner.md", markdown(comparisons, values, environment))
    table(comparisons).show("the tuner's choice against an exhaustive trial")
    return 0 if findings["target_reached"] else 1


def _compare(name: str, settings: Settings) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        if settings.cold:
            for built in cache_folder().glob("runtime-*"):
                (Path(folder) / built.name).symlink_to(built, target_is_directory=True)
        task = Task(
            pair=name,
            run_s=settings.run_s,
            passes=settings.passes,
            first_s=settings.first_s,
            stint_s=settings.stint_s,
            compile_s=settings.compile_s,
            turns=settings.turns,
            threads=settings.threads,
            most=settings.most,
            cache=folder if settings.cold else None,
        )
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(compare, task).result()
