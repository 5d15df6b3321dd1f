"""Independent models trained together ("members") by bow, compared with the alternatives.

For every model and batch size, eight seeds are trained by a loop in plain PyTorch, a loop in compiled PyTorch (the
model, or the whole step), two pinned single-threaded processes that divide the members, models stacked with
`torch.func`, and bow's members. All are measured in turns in one run, each in its own processes with torch's default
policy for idle threads; single-process contestants with the faster number of threads. Then whole trainings by the
loop, the pinned processes and bow are timed in turns, from process start without compiled code to the last weight.
"""

import contextlib
import functools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import harness
from benchmarks.caches import empty_caches
from benchmarks.harness import CaseError, Host, ratios, setting, spread, take_turns
from benchmarks.members import contestants
from benchmarks.members.contestants import APART, LOOP, MAKERS, ONE_PROCESS, OWN, Task, shares
from benchmarks.workloads import WORKLOADS
from bow.devices import available_cores

AIMS = {"loops": 1.8, "pinned": 1.0, "whole": 1.3}
"""Mean speed-up over the best single process; minimum over pinned processes; whole trainings over these."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Config(harness.Config):
    models: tuple[str, ...] = setting(
        tuple(WORKLOADS), "models to train", choices=tuple(WORKLOADS), quick=("logistic_regression",)
    )
    batches: tuple[int, ...] = setting((4, 16, 64), "batch sizes, per member", quick=(16,))
    members: int = setting(8, "seeds of each model", quick=2)
    names: tuple[str, ...] = setting(tuple(MAKERS), "contestants", choices=tuple(MAKERS))
    threads: tuple[int, ...] = setting((1, 2), "threads of single-process contestants", quick=(1,))
    processes: int = setting(2, "pinned processes", quick=1)
    repeats: int = setting(7, "number of measurements", quick=1)
    stint_s: float = setting(0.4, "seconds of a measurement", quick=0.02)
    samples: int = setting(4096, "size of the data set", quick=128)
    whole_batches: tuple[int, ...] = setting((16,), "batch sizes of the whole trainings")
    whole_s: float = setting(20.0, "length of whole trainings: seconds of the plain loop's steps", quick=0.01)
    whole_repeats: int = setting(3, "number of whole trainings of each contestant", quick=1)

    def task(self, model: str, batch_size: int) -> Task:
        """Return the task of all members of a model."""
        return Task(model, batch_size, self.samples, tuple(range(self.members)))


@dataclass(frozen=True)
class Case:
    """A contestant with a number of threads."""

    name: str
    threads: int = 1

    def __str__(self) -> str:
        return f"{self.name}, {harness.counted(self.threads, 'thread')}"


def cases_of(config: Config) -> list[Case]:
    """Single processes with every number of threads; pinned ones with one each; bow divides the cores itself."""
    found = []
    for name in (name for name in MAKERS if name in config.names):
        counts = config.threads if name in ONE_PROCESS else (1 if name in APART else max(config.threads),)
        found += [Case(name, threads) for threads in counts]
    return found


class Hosts:
    """The processes of a contestant: one, or several that divide its members."""

    def __init__(self, case: Case, task: Task, processes: int, caches: Mapping[str, str]) -> None:
        tasks = list(shares(task, processes)) if case.name in APART else [task]
        cores = available_cores()[: len(tasks)] if case.name in APART else [None]
        variables = {"OMP_NUM_THREADS": str(case.threads), **caches}
        self.hosts = [
            Host(variables, prepare=(contestants.enter, (case.name, own, core)))
            for own, core in zip(tasks, cores, strict=True)
        ]

    def call(self, function: Any, *arguments: Any) -> list[Any]:
        """Call a function in all of them concurrently, and suspend them until the next call."""
        for host in self.hosts:
            host.resume()
            host.remote.send(function, *arguments)
        found = [host.remote.receive() for host in self.hosts]
        for host in self.hosts:
            host.stop()
        return found

    def close(self) -> None:
        for host in self.hosts:
            host.close()


def measure(config: Config) -> dict[str, Any]:
    """Measure the steady state of all models and batch sizes, and whole trainings."""
    pairs = [(model, batch_size) for model in config.models for batch_size in config.batches]
    groups, trainings = [], []
    for model, batch_size in pairs:
        groups.append(measure_rates(config.task(model, batch_size), config))
        harness.say(f"{model}, batch {batch_size}: {groups[-1]['over']}")
    for group in (each for each in groups if each["batch_size"] in config.whole_batches):
        task = config.task(group["model"], group["batch_size"])
        trainings.append(measure_whole(task, epochs_in(group["contestants"], task, config.whole_s), config))
        harness.say(f"{task.model}, batch {task.batch_size}, whole: {trainings[-1]['over_pinned']}")
    return {"aims": AIMS, "groups": groups, "whole": trainings, "summary": summary(groups, trainings)}


def missed(values: Row) -> bool:
    """Whether bow took part and missed an aim."""
    found = values["summary"]
    return any(found[name] is not None and found[name] < aim for name, aim in AIMS.items())


def page(values: Row) -> dict[str, Any]:
    return {"titles": {name: workload.title for name, workload in WORKLOADS.items()}}


def measure_rates(task: Task, config: Config) -> dict[str, Any]:
    """Measure samples per second of all contestants in turns."""
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        caches = stack.enter_context(empty_caches())
        hosts: dict[Case, Hosts] = {}
        for case in cases_of(config):
            made = stack.enter_context(contextlib.closing(Hosts(case, task, config.processes, caches)))
            try:
                made.call(contestants.turn, 0.0)  # compile and warm up, one at a time
                hosts[case] = made
            except CaseError as error:
                notes.append(f"{case}: left out, {error}")
        turns = {case: functools.partial(_turn, own, config.stint_s) for case, own in hosts.items()}

        def failed(case: Case, error: Exception) -> None:
            notes.append(f"{case}: failed in its turn, {harness.first_words(error)}")

        rates = take_turns(turns, config.repeats, failed=failed)
    rows = [
        {
            "name": case.name,
            "threads": case.threads,
            "samples_per_s": spread(own, 1),
            "rates": [round(r, 1) for r in own],
        }
        for case, own in rates.items()
    ]
    return {"model": task.model, "batch_size": task.batch_size, "contestants": rows, "notes": notes, "over": over(rows)}


def over(rows: Sequence[Row]) -> dict[str, Any]:
    """Speed-up of bow over the best single process, and over the best pinned processes, by turn."""
    own = _best(rows, OWN)
    others = {"loops": _best(rows, ONE_PROCESS), "pinned": _best(rows, APART)}
    return {
        name: None if own is None or other is None else spread(ratios(own["rates"], other["rates"]), 3)
        for name, other in others.items()
    }


def epochs_in(rows: Sequence[Row], task: Task, seconds: float) -> int:
    """Return the epochs of all members that take the plain loop (or else the fastest) approximately this long."""
    best = _best(rows, [LOOP]) or _best(rows, tuple(MAKERS))
    rate = best["samples_per_s"]["median"] if best is not None else 0.0
    return max(1, round(seconds * rate / (len(task.seeds) * task.steps * task.batch_size)))


def measure_whole(task: Task, epochs: int, config: Config) -> dict[str, Any]:
    """Seconds of whole trainings, including start and compilation, in turns."""
    notes: list[str] = []
    takes_part = {LOOP: 1, **dict.fromkeys(APART, 1), **dict.fromkeys(OWN, max(config.threads))}
    cases = [case for case in cases_of(config) if case.threads == takes_part.get(case.name)]
    turns = {case: functools.partial(_whole, case, task, epochs, config) for case in cases}
    seconds = take_turns(
        turns,
        config.whole_repeats,
        failed=lambda case, error: notes.append(f"{case}: left out, {harness.first_words(error)}"),
    )
    rows = [{"name": case.name, "threads": case.threads, "seconds": spread(took, 2)} for case, took in seconds.items()]
    own = {case.name: statistics.median(took) for case, took in seconds.items()}
    pinned = min((own[name] for name in APART if name in own), default=None)
    bow = min((own[name] for name in OWN if name in own), default=None)
    gain = None if pinned is None or bow is None else round(pinned / bow, 3)
    head = {"model": task.model, "batch_size": task.batch_size, "epochs": epochs}
    return {**head, "contestants": rows, "notes": notes, "over_pinned": gain}


def summary(groups: Sequence[Row], trainings: Sequence[Row]) -> dict[str, float | None]:
    """Return the quantities of the aims; None if bow did not take part."""
    loops, pinned = ([each["over"][name] for each in groups if each["over"][name]] for name in ("loops", "pinned"))
    gains = [each["over_pinned"] for each in trainings if each["over_pinned"]]
    return {
        "loops": round(statistics.geometric_mean(each["median"] for each in loops), 3) if loops else None,
        "pinned": min((each["median"] for each in pinned), default=None),
        "whole": min(gains, default=None),
    }


def _best(rows: Sequence[Row], names: Sequence[str]) -> Row | None:
    own = [row for row in rows if row["name"] in names]
    return max(own, key=lambda row: float(row["samples_per_s"]["median"]), default=None)


def _turn(hosts: Hosts, seconds: float) -> float:
    return float(sum(hosts.call(contestants.turn, seconds)))


def _whole(case: Case, task: Task, epochs: int, config: Config) -> float:
    with empty_caches() as caches:
        began = time.perf_counter()
        with contextlib.closing(Hosts(case, task, config.processes, caches)) as hosts:
            hosts.call(contestants.train, epochs)
            return time.perf_counter() - began
