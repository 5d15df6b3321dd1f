"""The search for a fast partition: walks from several starts, by several processes, for several numbers of learners."""

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
from bow.planning.search.chains import Chain, SearchProgress, Tally, WalkStart, run_chains, run_in_processes, space_of
from bow.planning.search.explain import Explanation, explain
from bow.planning.search.lower_bounds import least_batch_ns
from bow.planning.search.metropolis import Improvement, SearchSettings
from bow.planning.search.problem import Problem
from bow.schedule import Timeline
from bow.seeds import derive_seed
from bow.values import given_path

FILE = "partition.json"  # in the folder that `bow plan` writes
PLANNED_FOR = "planned_for"  # key of what is in a partition's file besides: `Partition.from_json` leaves it out


@dataclass(frozen=True)
class Found:
    """A partition, for what it was found, and how: what `bow.plan` returns.

    Attributes:
        partition: which devices compute which part of every operator.
        makespan_ns: of a simulated step, in which each learner has a batch; 0: the file that it was read from does not
            say.
        topology: the devices; None: the file does not say.
        settings: of the search.
        problem: what was planned for; None: it was read from a file.
        chains: all walks of the search.
        seconds: that the search took.
        subject: model, and loss or step, that were planned for.

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
        """Whether Ctrl-C, or who was told of its progress, ended the search."""
        return any(chain.is_interrupted for chain in self.chains)

    def train(self, data: Any, loss: Any = None, *, model: Any = None, check: bool = True, **settings: Any) -> Any:
        """Train by the partition: operators are split and placed on devices, each of which is a process.

        Learners that the partition has are averaged once a step. The batch of a learner is as large as one device's
        would be, all its devices see the same one, and what is trained is what one device would train, to rounding.
        Batches of another size, as the last one may be, are left out. The step is captured once, before the training:
        Python code in it does not run again.

        Args:
            data: as in `bow.train`; batches of the size that was planned for.
            loss: None: what was planned with.
            model: None: the one that was planned for; of a partition from a file, it has to be given.
            check: before the training, time the partition beside data parallelism for some steps, refuse it if it is
                slower, and write when a step was expected to run what, and when it did, into `partition_timeline.json`
                of the run directory.
            **settings: those of `bow.train`.

        Returns:
            The `bow.Result`.

        Raises:
            BowError: as `bow.train`; or a setting that a partition does not carry out.
        """
        from bow.training.placed import train_by

        planned = {"model": model, "loss": loss, "step": settings.pop("step", None)}
        if loss is None and planned["step"] is None:
            planned |= {name: self.subject.get(name) for name in ("loss", "step")}
        if model is None:
            planned["model"] = self.subject.get("model")
        return train_by(self.partition, planned.pop("model"), data, check=check, **planned, **settings)

    def explain(self, keep: int = 3, budget_s: float | None = None) -> Explanation:
        """What was chosen for every operator, what that costs, and what else would cost; printed, it is a table.

        What else is tried are the splits that the search has chosen from.

        Args:
            keep: how many other choices are kept for each operator.
            budget_s: no operator's other choices are looked at after so many seconds; None: all are.

        Raises:
            ScheduleError: it was read from a file, which has no model.
        """
        begun = time.perf_counter()
        problem, learners, starts = self._known_problem, self.partition.learners, [chain.start for chain in self.chains]
        return explain(
            problem,
            self.partition.splits,
            learners,
            space=space_of(problem, starts, self.settings, learners),
            keep=keep,
            goes_on=lambda: budget_s is None or time.perf_counter() - begun < budget_s,
        )

    def timeline(self) -> Timeline:
        """When what runs where in a simulated step; `Timeline.save` writes it for Perfetto.

        Raises:
            ScheduleError: it was read from a file, which has no model.
        """
        return self._known_problem.simulate(self.partition.splits, self.partition.learners).timeline

    def save(self, path: str | Path) -> None:
        """Write the partition as JSON, for `load`, with the topology that it was found for.

        Args:
            path: of the file; folders that are missing are made.

        Raises:
            SettingError: it cannot be written.
        """
        save_text("the partition", path, self.to_json())

    def to_json(self, **others: Any) -> str:
        """The text of its file; `others` is what else it was planned for, as `bow plan` writes it."""
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
        """Read what `save` or `bow plan` wrote.

        Args:
            path: of the file, or of the folder that `bow plan` wrote it into.

        Raises:
            SettingError: it cannot be read.
            ScheduleError: it holds no partition.
            TopologyError: it holds no topology where one should be.
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
            raise ScheduleError("a partition that was read from a file comes without its model; use bow plan explain")
        return self.problem

    @property
    def batch_ns(self) -> float:
        """What a step takes for each learner's batch: by this partitions with different learners are compared."""
        return self.makespan_ns / self.partition.learners

    @property
    def sample_ns(self) -> float:
        """What a step takes for what it is worth: time to accuracy, by which batches of several sizes are compared.

        Raises:
            ScheduleError: it was read from a file, which has no model.
        """
        return self.makespan_ns / self.settings.worth(self._known_problem.batch_size, self.partition.learners)

    @property
    def bound_ns(self) -> float:
        """What a batch takes at least by any partition; the best possible `batch_ns` is not below it.

        It is a bound and not a time that can be reached: all computing is shared equally, and messages cost nothing.

        Raises:
            ScheduleError: it was read from a file, which has no model.
        """
        others = self.settings.learners if self.settings.noise_scale is None else ()  # what is worth the same
        return least_batch_ns(self._known_problem, {self.partition.learners, *others})

    @property
    def evaluated(self) -> int:
        """How many partitions were simulated."""
        parts = (part for chain in self.chains for part in (chain.walk, chain.descent) if part is not None)
        return sum(part.evaluated for part in parts)

    @property
    def chain(self) -> Chain:
        """The walk that found the partition."""
        return best_chain(self.chains)

    @property
    def bests(self) -> tuple[Improvement, ...]:
        """How the best time of that walk fell, its descent included."""
        walk, descent = self.chain.walk, self.chain.descent
        assert walk is not None
        return walk.bests if descent is None else walk.followed_by(descent).bests


def read_partition(path: str | Path) -> tuple[Path, Partition, Mapping[str, Any]]:
    """A file, or that of a folder which `bow plan` wrote: the partition, and what is known of its origin."""
    file = given_path("the file of a partition", path)
    file = file / FILE if file.is_dir() else file
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingError(f"{file} cannot be read ({why or error}); give a file that bow plan wrote") from error
    partition, known = Partition.from_json(text), json.loads(text).get(PLANNED_FOR) or {}
    if not isinstance(known, dict):
        raise damaged_origin(file, TypeError(f"{PLANNED_FOR} is no mapping"))
    return file, partition, known


def damaged_origin(file: Path, error: Exception) -> SettingError:
    """What to say of a file whose partition can be read, and what it was planned for cannot."""
    return SettingError(
        f"{file} does not say rightly what it was planned for ({type(error).__name__}: {error}); plan again"
    )


def best_chain(chains: Sequence[Chain]) -> Chain:
    """The walk that found the fastest partition for what its steps are worth; of equal ones the first."""
    return min(chains, key=lambda each: (each.sample_ns, each.start.number))


def search(problem: Problem, settings: SearchSettings, progress: SearchProgress | None = None) -> Found:
    """Find a fast partition."""
    begun = time.perf_counter()
    starts = list(_starts(problem, settings))
    shares = [starts[number :: settings.processes] for number in range(settings.processes)]
    tally = Tally(progress)
    if settings.processes > 1:
        chains = run_in_processes(problem, shares, settings, tally)
    else:
        chains = run_chains(problem, starts, settings, tally.report)
    chain = best_chain(chains) if chains else None
    if chain is None or chain.best is None:
        why = next((each.refusal for each in chains if each.refusal), "nothing was tried")
        raise ScheduleError(f"no partition to start from fits: {why}")
    partition = problem.partition(chain.best.splits, chain.start.learners)
    seconds = time.perf_counter() - begun
    return Found(partition, chain.best.makespan_ns, problem.topology, settings, problem, tuple(chains), seconds)


def _starts(problem: Problem, settings: SearchSettings) -> Iterator[WalkStart]:
    """A start of each name for each number of learners, and further ones until every process has one."""
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
