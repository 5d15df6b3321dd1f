"""The pairs one after another, and what is written about them."""

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from bow.bench.arguments import check_positive, setting
from bow.bench.environment import inspect_environment
from bow.bench.results import RESULTS, Result, console, prepare_output, write_json, write_text
from bow.bench.tuner.comparison import Comparison, Task, compare
from bow.bench.tuner.pairs import PAIRS
from bow.bench.tuner.report import as_dict, line, markdown, reached, table
from bow.errors import SettingError
from bow.runtime import native
from bow.runtime.build import cache_folder


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark.

    Raises:
        SettingError: a value outside its range.
    """

    out: Path = setting(RESULTS, "folder for tuner.json and tuner.md")  # noqa: RUF009 - it is dataclasses.field
    pairs: tuple[str, ...] = setting(tuple(PAIRS), "models and batch sizes", choices=tuple(PAIRS))
    run_s: float = setting(600.0, "seconds of the training that is tuned for")
    passes: int = setting(3, "how often everything is measured in the exhaustive trial")
    stint_s: float = setting(0.5, "seconds of a measurement")
    repeats: int = setting(11, "measurements of the choice and the best in turn")
    most: int = setting(8, "learners that are tried at most")
    threads: int = setting(2, "torch's threads")
    cold: bool = setting(True, "whether nothing has been compiled before; false: what earlier runs compiled is used")
    quick: bool = setting(False, "a small part, to see that it works: one pair, a short run, a single pass")

    def __post_init__(self) -> None:
        if not self.pairs:
            raise SettingError(f"pairs must name at least one of {', '.join(PAIRS)}, got nothing")
        check_positive(self, "run_s", "passes", "stint_s", "repeats", "most", "threads")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(self, pairs=self.pairs[:1], run_s=40.0, passes=1, stint_s=0.05, repeats=2, most=2, cold=False)


def run(settings: Settings, command: str) -> int:
    """Compare every pair, and write `tuner.json` and `tuner.md`; 1 where a target was missed, else 0."""
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
            name,
            settings.run_s,
            settings.passes,
            settings.stint_s,
            settings.repeats,
            settings.threads,
            settings.most,
            folder if settings.cold else None,
        )
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(compare, task).result()
