"""Run a sweep on a Ray cluster, in parts; Ray restarts the parts of machines that are lost."""

import dataclasses
import math
import shutil
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bow.errors import SettingError
from bow.members.config import SweepConfig
from bow.members.loop import SweepLoop
from bow.members.member import Progress
from bow.members.result import Sweep
from bow.members.rows import MOST_ROWS
from bow.observe import RunLock

PARTS = "parts"  # subfolder with the folders of the parts that are running
POLL_S = 0.2
ENDING_S = 60.0  # longest wait of a restarted part for the process that ran it before to exit


class RayLoop(SweepLoop):
    """Sweep whose members train on the workers of a Ray cluster, several at once on each."""

    def _train(self) -> None:
        import ray

        if not ray.is_initialized():
            ray.init()
        workers, resources = _workers(ray.nodes(), self._config.train.devices.count)
        self._began_at = self.elapsed_s
        train = ray.remote(scheduling_strategy="SPREAD", **resources)(train_part)
        quiet = self._config.train.with_run(loggers=(), progress=False, on_interrupt="raise")
        config = dataclasses.replace(self._config, cluster=None, has_report=False, train=quiet)
        parts, shared = self._parts(workers), ray.put(config)
        tasks = {
            train.remote(shared, [each.member.number for each in part], self._folder(part)): part for part in parts
        }
        try:
            while tasks and self.interrupted_by is None:
                done, _ = ray.wait(list(tasks), timeout=POLL_S)
                for task in done:
                    self._take(tasks.pop(task), ray.get(task))
                under_way = [progress for part in tasks.values() for progress in part]
                if self._progress.is_due:
                    self._progress.show(under_way, [])
        finally:
            for task in tasks:
                ray.cancel(task)
        if not tasks:
            shutil.rmtree(self._directory.path / PARTS, ignore_errors=True)

    def _parts(self, workers: int) -> list[list[Progress]]:
        asked, kinds = self._config.at_once, list(dict.fromkeys(progress.kind for progress in self._queue))
        by_kind = sorted(self._queue, key=lambda progress: kinds.index(progress.kind))
        most = min(MOST_ROWS, math.ceil(len(self._members) / workers)) if asked == "auto" else asked
        return [by_kind[start : start + most] for start in range(0, len(by_kind), most)]

    def _folder(self, part: Sequence[Progress]) -> Path:
        numbers = [progress.member.number for progress in part]
        return self._directory.path.absolute() / PARTS / f"{numbers[0]:03d}_{zlib.crc32(repr(numbers).encode()):08x}"

    def _take(self, part: Sequence[Progress], sweep: Sweep) -> None:
        later = self.elapsed_s - sweep.seconds
        self.engine, self.at_once = sweep.engine, max(self.at_once, sweep.at_once)
        for progress, other in zip(part, sweep.members, strict=True):
            member = progress.member
            member.model, member.best, member.engine = other.model, other.best, other.engine
            member.history = [{**record, "time_s": record["time_s"] + later} for record in other.history]
            member.events = [{**record, "time_s": record["time_s"] + later} for record in other.events]
            last = member.history[-1] if member.history else {"round": 0, "samples": 0}
            progress.round, progress.samples = last["round"], last["samples"]
            self._num_rounds += progress.round
            self._queue.remove(progress)
            self._ended(progress, other.stopped)
        self._train_s = self.elapsed_s - self._began_at
        self._directory.save_checkpoint(self._num_rounds, list(self._queue), self._members, self.elapsed_s)


def train_part(config: SweepConfig, numbers: Sequence[int], path: Path) -> Sweep:
    """Train some members on this machine, resuming from checkpoints of a lost machine if there are any."""
    from bow.members.sweep import run_sweep  # circular import

    if path.exists():
        with RunLock() as lock:
            lock.take(path, ENDING_S)
    train, variants = config.train.with_run(path=path, resume="auto"), [config.variants[number] for number in numbers]
    sweep = run_sweep(dataclasses.replace(config, variants=variants, train=train, part_of=config.num_members))
    shutil.rmtree(path, ignore_errors=True)
    return sweep


def _workers(nodes: Iterable[Any], devices: Any) -> tuple[int, dict[str, int]]:
    """Return how many parts run at once, and the resources of each: a GPU, or the cores of the smallest machine."""
    there = [each["Resources"] for each in nodes if each["Alive"]]
    gpus = sum(int(each.get("GPU", 0)) for each in there)
    if gpus and devices in ("auto", "cuda", 1):
        return gpus, {"num_gpus": 1}
    cores = [int(each["CPU"]) for each in there if each.get("CPU", 0) >= 1]
    if not cores:
        raise SettingError("the Ray cluster has no machine with a free core; add one, or leave out cluster")
    return sum(each // min(cores) for each in cores), {"num_cpus": min(cores)}
