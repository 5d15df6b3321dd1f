"""A pool of Python threads, each pinned to its own cores, that runs the tasks of a task scheduler."""

import contextlib
import functools
import math
import os
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import torch

from bow.engines.task_scheduler import TaskScheduler, TaskStart

Job: TypeAlias = Callable[[], None]


class Worker:
    """One thread, pinned to some cores, that runs jobs in order."""

    def __init__(self, name: str, cores: Collection[int], threads: int) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        ready = threading.Event()
        # A daemon: a training that was never closed does not keep the process alive.
        self._thread = threading.Thread(target=_serve, args=(self._jobs, cores, threads, ready), name=name, daemon=True)
        try:
            self._thread.start()
            ready.wait()
        except BaseException:  # Ctrl-C, or there are too many threads
            self.stop()
            raise

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """End the thread after its queued jobs, without waiting for it."""
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join()


def _serve(jobs: "queue.SimpleQueue[Job | None]", cores: Collection[int], threads: int, ready: threading.Event) -> None:
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # it affects speed only
            os.sched_setaffinity(0, cores)
    torch.get_num_threads()  # initialises torch in this thread, or the setting is lost
    torch.set_num_threads(threads)
    ready.set()
    while (job := jobs.get()) is not None:
        job()
        del job  # so that its references do not live until the next job


class ThreadPool:
    """Threads that run the learning tasks of a period; started by the first `run`, and again after `close`."""

    def __init__(self, core_sets: Sequence[Collection[int]], threads: int) -> None:
        self.core_sets = core_sets  # by thread
        self.threads = threads  # that torch uses in each
        self._workers: list[Worker] = []

    def __len__(self) -> int:
        return len(self.core_sets)

    def run(self, scheduler: TaskScheduler, runs: Sequence[TaskStart], execute: Callable[[TaskStart], None]) -> None:
        self._open()
        _PeriodRun(self._workers, scheduler, execute).work(runs)

    def stop(self) -> None:
        """End all threads without waiting: garbage collection may call this on one of them."""
        places, self._workers = self._workers, []
        for place in places:
            place.stop()

    def close(self) -> None:
        places = self._workers
        self.stop()
        for place in places:
            place.join()

    def _open(self) -> None:
        if self._workers:
            return
        threads = torch.get_num_threads()
        places: list[Worker] = []
        try:
            for number, cores in enumerate(self.core_sets):
                places.append(Worker(f"bow place {number}", cores, self.threads))
        except BaseException:
            for place in places:
                place.stop()
            raise
        finally:
            torch.set_num_threads(threads)  # otherwise the user's new threads would inherit the workers' setting
        self._workers = places


class _PeriodRun:
    """State of one period: unfinished tasks and failures."""

    def __init__(
        self, places: Sequence[Worker], scheduler: TaskScheduler, execute: Callable[[TaskStart], None]
    ) -> None:
        self._workers = places
        self._scheduler = scheduler
        self._execute = execute
        self._lock = threading.Lock()
        self._unfinished = 1  # the caller counts as well, until everything is queued
        self._all_finished = threading.Event()
        self._failures: list[tuple[int, BaseException]] = []
        self._stop_at = math.inf  # tasks of this batch and later ones no longer start

    def work(self, runs: Sequence[TaskStart]) -> None:
        try:
            try:
                self._give(runs)
            finally:
                self._finish()
            self._all_finished.wait()  # then the caller sees everything that the tasks wrote
        except BaseException:
            self._stop_at = -1
            self._all_finished.wait()
            raise
        self._raise_first_failure()

    def _give(self, runs: Sequence[TaskStart]) -> None:
        for run in runs:
            with self._lock:
                self._unfinished += 1
            self._workers[run.place].put(functools.partial(self._do, run))

    def _do(self, run: TaskStart) -> None:
        task = run.task
        try:
            if task.batch < self._stop_at:
                self._execute(run)
            if self._stop_at == math.inf:
                with self._lock:
                    follow = self._scheduler.finished(task)
                self._give(follow)
        except BaseException as error:
            with self._lock:
                self._stop_at = min(self._stop_at, task.batch)
                self._failures.append((task.batch, error))
        finally:
            self._finish()

    def _raise_first_failure(self) -> None:
        if not self._failures:
            return
        error = min(self._failures, key=lambda failure: failure[0])[1]
        self._failures.clear()  # error -> frames -> self is a cycle that would outlive the round
        try:
            raise error
        finally:
            del error

    def _finish(self) -> None:
        with self._lock:
            self._unfinished -= 1
            if not self._unfinished:
                self._all_finished.set()
