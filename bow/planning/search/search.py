"""Partition search: walks from several starts, in several processes, for several numbers of learners."""

import itertools
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bow.errors import ScheduleError, SettingError
from bow.files import save_text
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.problem.topology_files import topology_from_dict, topology_to_dict
from bow.planning.search.baselines import baseline, random_partition
from bow.planning.search.chains import (
    Chain,
    ProgressAggregator,
    SearchProgress,
    WalkStart,
    run_chains,
    run_in_processes,
    space_of,
)
from bow.planning.search.explain import Explanation, explain
from bow.planning.search.lower_bounds import least_batch_ns
from bow.planning.search.metropolis import Improvement, SearchSettings
from bow.planning.search.problem import Problem
from bow.schedule import Timeline
from bow.seeds import derive_seed
from bow.values import given_path

FILE = "partition.json"  # in the output folder of `bow plan`
PLANNED_FOR = "planned_for"  # key of the metadata in a partition's file; `Partition.from_json` ignores it


@dataclass(frozen=True)
class Found:
    """A partition with its origin, as returned by `bow.plan`.

    Attributes:
        partition: how every operator is split, and which device computes which tile.
        makespan_ns: simulated time of a step with one batch per learner; 0: the file does not contain it.
        topology: the devices; None: the file does not contain them.
        settings: of the search.
        problem: the planning problem; None: loaded from a file.
        chains: all walks of the search.
        seconds: duration of the search.
        subject: the model, and the loss or step, that were planned for.

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018.
    """

    partition: Partition
    makespan_ns: int
    topology: DeviceTopology | None = field(repr=False)
    settings: SearchSettings = field(repr=False, compare=False)
    problem: Problem | None = field(default=None, repr=False, compare=False)
    chains: tuple[Chain, ...] = field(default=(), repr=False, compare=False)
    seconds: float = field(default=0.0, compare=False)
    subject: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C or the progress callback ended the search."""
        return any(chain.is_interrupted for chain in self.chains)

    def train(self, data: Any, loss: Any = None, *, model: Any = None, check: bool = True, **settings: Any) -> Any:
        """Train by the partition, with one process per device.

        If the partition has several learners, they are averaged once per step. All devices of a learner process the
        same batch, which is as large as on a single device, and the result equals training on one device, to rounding.
        Batches of another size, such as a smaller last one, are skipped. The step is captured once, before the
        training: its Python code does not run again.

        Args:
            data: as in `bow.train`; with the batch size that was planned for.
            loss: None: the one that was planned for.
            model: None: the one that was planned for; required for a partition loaded from a file.
            check: before training, compare the step time with data parallelism and one device, refuse a partition that
                is more than 5 % slower, and write the expected and the measured timeline to `partition_timeline.json`
                in the run directory.
            **settings: those of `bow.train`.

        Returns:
            The `bow.Result`.

        Raises:
            BowError: as `bow.train`; or a setting that is not supported with a partition.
        """
        from bow.training.placed import train_by

        planned = {"model": model, "loss": loss, "step": settings.pop("step", None)}
        if loss is None and planned["step"] is None:
            planned |= {name: self.subject.get(name) for name in ("loss", "step")}
        if model is None:
            planned["model"] = self.subject.get("model")
        return train_by(self.partition, planned.pop("model"), data, check=check, **planned, **settings)

    def explain(self, keep: int = 3, budget_s: float | None = None) -> Explanation:
        """Return each operator's split, its cost, and the cost of alternatives; prints as a table.

        Alternatives are the candidate splits of the search.

        Args:
            keep: number of alternatives kept per operator.
            budget_s: seconds after which no further operator's alternatives are simulated; None: unlimited.

        Raises:
            ScheduleError: it was loaded from a file, which has no model.
        """
        problem, learners, starts = self._known_problem, self.partition.learners, [chain.start for chain in self.chains]
        return explain(
            problem,
            self.partition.splits,
            learners,
            space=space_of(problem, starts, self.settings, learners),
            keep=keep,
            budget_s=budget_s,
        )

    def timeline(self) -> Timeline:
        """Return the timeline of a simulated step; `Timeline.save` writes it for Perfetto.

        Raises:
            ScheduleError: it was loaded from a file, which has no model.
        """
        return self._known_problem.simulate(self.partition.splits, self.partition.learners).timeline

    def save(self, path: str | Path) -> None:
        """Write the partition and its topology as JSON, for `load`.

        Args:
            path: of the file; missing folders are created.

        Raises:
            SettingError: it cannot be written.
        """
        save_text("the partition", path, self.to_json())

    def to_json(self, **others: Any) -> str:
        """Return the file's text; `others` is further metadata, as `bow plan` writes it."""
        planned_for = {
            **others,
            "makespan_ns": self.makespan_ns,
            "topology": None if self.topology is None else topology_to_dict(self.topology),
            "even": self.settings.even,
            "device_lists": self.settings.devices,
        }
        return json.dumps({**json.loads(self.partition.to_json()), PLANNED_FOR: planned_for})

    @classmethod
    def load(cls, path: str | Path) -> "Found":
        """Load a file written by `save` or `bow plan`.

        Args:
            path: of the file, or of the output folder of `bow plan`.

        Raises:
            SettingError: it cannot be read.
            ScheduleError: it contains no valid partition.
            TopologyError: its topology is invalid.
        """
        file, partition, known = read_partition(path)
        try:
            settings = SearchSettings(even=known.get("even", False), devices=known.get("device_lists", "auto"))
            topology = None if known.get("topology") is None else topology_from_dict(known["topology"])
            return cls(partition, int(known.get("makespan_ns", 0)), topology, settings)
        except (TypeError, ValueError) as error:
            raise damaged_origin(file, error) from error

    @property
    def _known_problem(self) -> Problem:
        if self.problem is None:
            raise ScheduleError("a partition loaded from a file has no model; use bow plan explain")
        return self.problem

    @property
    def batch_ns(self) -> float:
        """Step time per learner, by which partitions with different numbers of learners are compared."""
        return self.makespan_ns / self.partition.learners

    @property
    def sample_ns(self) -> float:
        """Step time over the step's worth in samples: time to accuracy, comparable between batch sizes.

        Raises:
            ScheduleError: it was loaded from a file, which has no model.
        """
        return self.makespan_ns / self.settings.worth(self._known_problem.batch_size, self.partition.learners)

    @property
    def bound_ns(self) -> float:
        """Lower bound of `batch_ns` over all partitions with at most as many tiles of an operator as devices.

        It may not be attainable: messages cost nothing in it. Computing it can take several seconds.

        Raises:
            ScheduleError: it was loaded from a file, which has no model.
        """
        others = self.settings.learners if self.settings.noise_scale is None else ()  # samples count equally
        return least_batch_ns(self._known_problem, {self.partition.learners, *others})

    @property
    def evaluated(self) -> int:
        """Number of partitions simulated."""
        return sum(chain.walk.evaluated for chain in self.chains if chain.walk is not None)

    @property
    def chain(self) -> Chain:
        """The walk that found the partition."""
        return best_chain(self.chains)

    @property
    def bests(self) -> tuple[Improvement, ...]:
        """Successive best times of that walk, including its descent."""
        walk = self.chain.walk
        assert walk is not None
        return walk.bests


def read_partition(path: str | Path) -> tuple[Path, Partition, Mapping[str, Any]]:
    """Read a file, or the one in an output folder of `bow plan`: its path, the partition and its metadata."""
    file = given_path("the file of a partition", path)
    file = file / FILE if file.is_dir() else file
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a UTF-8 text file"
        raise SettingError(f"{file} cannot be read ({why or error}); give a file that bow plan wrote") from error
    partition, known = Partition.from_json(text), json.loads(text).get(PLANNED_FOR) or {}
    if not isinstance(known, dict):
        raise damaged_origin(file, TypeError(f"{PLANNED_FOR} is not a mapping"))
    return file, partition, known


def damaged_origin(file: Path, error: Exception) -> SettingError:
    return SettingError(f"{file} has invalid metadata ({type(error).__name__}: {error}); run bow plan again")


def best_chain(chains: Sequence[Chain]) -> Chain:
    """Return the walk with the least time per worth of a step; the first of equal ones."""
    return min(chains, key=lambda each: (each.sample_ns, each.start.number))


def search(problem: Problem, settings: SearchSettings, progress: SearchProgress | None = None) -> Found:
    begun = time.perf_counter()
    starts = list(_starts(problem, settings))
    shares = [starts[number :: settings.processes] for number in range(settings.processes)]
    tally = ProgressAggregator(progress)
    if settings.processes > 1:
        chains = run_in_processes(problem, shares, settings, tally)
    else:
        chains = run_chains(problem, starts, settings, tally.report)
    chain = best_chain(chains) if chains else None
    if chain is None or chain.walk is None:
        why = next((each.refusal for each in chains if each.refusal), "no starting partition was simulated")
        raise ScheduleError(f"no starting partition fits into memory: {why}")
    partition = problem.partition(chain.walk.splits, chain.start.learners)
    seconds = time.perf_counter() - begun
    return Found(partition, chain.walk.makespan_ns, problem.topology, settings, problem, tuple(chains), seconds)


def _starts(problem: Problem, settings: SearchSettings) -> Iterator[WalkStart]:
    """Yield a start for each name and number of learners, repeated until every process has one."""
    each = itertools.product(settings.learners, settings.starts)
    count = len(settings.learners) * len(settings.starts)
    for number, (learners, name) in enumerate(itertools.cycle(list(each))):
        if number >= max(count, settings.processes):
            return
        of_one = problem.of_one_learner(learners)
        if name == "random":
            space = space_of(of_one, (), settings, 1)
            splits = random_partition(of_one, space, random.Random(derive_seed(settings.seed, number, 1)))
        else:
            splits = baseline(of_one, name)
        yield WalkStart(name, number, learners, splits, settings.worth(problem.batch_size, learners))
