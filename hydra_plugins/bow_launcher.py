"""`hydra/launcher=bow`: train the jobs of a hydra multirun as the members of one sweep, if they differ little.

Every job runs in its own thread, one at a time, up to its call of `bow.train`. The requested trainings then become the
members of one sweep, and each job continues with the result that it would have had alone. So a job returns the same as
in a single run, to hydra's own sweeper or to any other, such as Optuna's, unless a step of its training is not finite:
alone, the step is discarded, and here the job fails as diverged. Trainings that differ in more than seed,
optimizer, scheduler and batch size, or have several learners, run one after another. `hydra.launcher.resume=auto` with
the `hydra.sweep.dir` of an interrupted sweep resumes it.

Example:
    python program.py -m hydra/launcher=bow lr=0.01,0.02 seed=range(4)
"""

import functools
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

log = logging.getLogger(__name__)


@dataclass
class LauncherConfig:
    """Settings of `hydra/launcher=bow`."""

    _target_: str = "hydra_plugins.bow_launcher.SideBySideLauncher"
    resume: str | None = None


ConfigStore.instance().store(group="hydra/launcher", name="bow", node=LauncherConfig, provider="bow")


class SideBySideLauncher(Launcher):
    """Run the jobs of a sweep in this process, their trainings side by side."""

    def __init__(self, resume: str | None = None) -> None:
        super().__init__()
        self._resume = resume

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store the program's context, task function and settings."""
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs; a `JobReturn` holds each one's return value or exception."""
        from bow import Run
        from bow.members.jobs import run_together, train_together

        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        folder = Path(str(self._config.hydra.sweep.dir)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        tasks = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            log.info("\t#%s : %s", number, " ".join(filter_overrides(overrides)))
            tasks.append(functools.partial(self._run, list(overrides), number))
        calls = itertools.count()  # numbers each call of bow.train that the jobs make

        def train(configs: Sequence[Any]) -> Sequence[Any] | None:
            run = Run(folder / f"side_by_side_{initial_job_idx}_{next(calls)}", resume=self._resume)
            go_on = f"resume with the same command and hydra.sweep.dir={folder} hydra.launcher.resume=auto"
            return train_together(configs, run, go_on, log.info)

        returned = run_together(tasks, train, _surroundings)
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        return returned

    def _run(self, overrides: list[str], number: int) -> JobReturn:
        config = self._context.config_loader.load_sweep_config(self._config, overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return run_job(
            hydra_context=self._context,
            task_function=self._task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def _surroundings(before: Any) -> Callable[[], Any]:
    """Enter a job's settings, folder, environment and log handlers; return a function that leaves them."""
    outside = _here()
    if before is not None:
        _go(before)

    def take_down() -> Any:
        inside = _here()
        _go(outside)
        return inside

    return take_down


def _here() -> tuple[Any, str, dict[str, str], list[logging.Handler], int]:
    root = logging.getLogger()
    return HydraConfig.instance().cfg, str(Path.cwd()), dict(os.environ), list(root.handlers), root.level


def _go(place: tuple[Any, str, dict[str, str], list[logging.Handler], int]) -> None:
    root = logging.getLogger()
    HydraConfig.instance().cfg, folder, environment, root.handlers[:], level = place
    root.setLevel(level)
    os.chdir(folder)
    if environment != dict(os.environ):
        os.environ.clear()
        os.environ.update(environment)
