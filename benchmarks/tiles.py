"""A real training by a strategy that the planner found, against data parallelism and one device.

RNNLM on the characters of Python's help texts, on two processes with a core each. The planner measures the machine and
the network's tiles, searches, and then `bow.train` trains by the strategy found, by data parallelism and on one device,
with the same batches in the same order: all of them make the same losses, to rounding, and take other times for it.
"""

import copy
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import tiles_report
from benchmarks.arguments import check_positive, setting
from benchmarks.environment import inspect_environment
from benchmarks.quartiles import Quartiles
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from benchmarks.tiles_runs import OPTIMIZER, Training, train
from bow.cluster import WorkerJob, is_leader, join, start
from bow.data import text
from bow.devices import available_cores
from bow.errors import SettingError
from bow.models import sequence_cross_entropy
from bow.models.recurrent import RNNLanguageModel
from bow.planning.problem.partition import Partition, Split, everything_on
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.search.problem import Problem
from bow.planning.search.search import Found, search
from bow.planning.search.search_settings import SearchSettings
from bow.planning.tiles import CapturedOperators, capture_operators
from bow.planning.tiles.planning import COSTS, problem_of, topology_of
from bow.planning.tiles.tile_costs import measured_costs

DEVICES = 2

CPU = torch.device("cpu")

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}

FOUND, DATA, ONE = "found", "data parallel", "one device"

# By how much of its value a loss may differ from that on one device, over the whole training
OFF = {"float32": 1e-3, "float64": 1e-9}


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for tiles.json and tiles.md")  # noqa: RUF009 - it is dataclasses.field
    hidden: int = setting(512, "units of each LSTM layer")
    layers: int = setting(2, "LSTM layers")
    length: int = setting(10, "characters of a sequence")
    batch: int = setting(32, "sequences of a batch")
    steps: int = setting(100, "of each training")
    turns: int = setting(3, "in which each strategy trains once, in float32; in float64 each trains once")
    budget_s: float = setting(60.0, "seconds of the search")
    proposals: int = setting(0, "that the search looks at; 0: as many as it can in its time")
    costs: str = setting("measured", "of tiles and links: measured here, or by roofline", choices=COSTS)
    seed: int = setting(0, "of all random numbers")
    quick: bool = setting(False, "a small part, to see that it works")

    def __post_init__(self) -> None:
        check_positive(self, "hidden", "layers", "length", "batch", "turns", "budget_s")
        if self.steps < 2 or self.proposals < 0:
            raise SettingError(
                f"steps must be at least 2 and proposals at least 0, got {self.steps} and {self.proposals}"
            )

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(self, hidden=16, layers=1, length=3, steps=4, turns=1, proposals=20, costs="roofline")


@dataclass(frozen=True)
class Task:
    """What is trained."""

    model: nn.Module  # RNNLM
    data: tuple[Tensor, Tensor]  # sequences of characters, and what follows each character
    settings: Settings  # of the benchmark

    @classmethod
    def of(cls, settings: Settings) -> "Task":
        """The task of some settings."""
        splits = text(settings.length)
        torch.manual_seed(settings.seed)
        return cls(RNNLanguageModel(splits.classes, settings.hidden, settings.layers), splits.train, settings)

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        """A batch of it."""
        return self.data[0][: self.settings.batch], self.data[1][: self.settings.batch]

    @functools.cached_property
    def captured(self) -> CapturedOperators:
        """Its step."""
        return capture_operators(self.model, self.batch, sequence_cross_entropy)


def run(settings: Settings, command: str) -> int:
    """Plan and train; write `tiles.json` and `tiles.md`; 1 where an aim is missed, else 0."""
    settings = settings.reduced()
    prepare_output(settings.out)
    if len(available_cores()) < DEVICES:
        raise SettingError(f"{DEVICES} processes need a core each, this one has {len(available_cores())}")
    began = time.perf_counter()
    task = Task.of(settings)
    console().print("planning ...", highlight=False)
    problem, found = _planned(task)
    strategies = {
        FOUND: found.partition.splits,
        DATA: data_parallel(task.captured.graph, RULES, DEVICES),
        ONE: everything_on(task.captured.graph),
    }
    job = functools.partial(_all_trainings, task, strategies)
    with start(DEVICES, CPU, WorkerJob(functools.partial(_elsewhere, job))):
        trainings = job()
    findings = {
        "operators": len(task.captured.graph.operators),
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "evaluated": found.evaluated,
        "strategy": found.partition.to_json(),
        "predicted_ms": {name: problem.simulate(splits).makespan_ns / 1e6 for name, splits in strategies.items()},
        "trainings": {precision: _row(of_all) for precision, of_all in trainings.items()},
    }
    environment = inspect_environment()
    values = Result("tiles", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    write_json(settings.out / "tiles.json", values)
    write_text(settings.out / "tiles.md", tiles_report.markdown(values, str(environment)))
    tiles_report.table(values).show("RNNLM on text, two processes")
    console().print(tiles_report.told(values), highlight=False)
    return int(not settings.quick and tiles_report.misses(values, OFF))


def _planned(task: Task) -> tuple[Problem, Found]:
    """What is planned for, and the strategy that is found."""
    settings, captured = task.settings, task.captured
    if settings.costs == "measured":
        devices = topology_of("machine", DEVICES)
        problem = problem_of(
            captured.graph, devices, RULES, measured_costs(captured, task.model, task.batch, devices, OPTIMIZER)
        )
    else:
        problem = problem_of(captured.graph, "two_cores")
    budget_s, proposals = settings.budget_s, settings.proposals
    chosen = SearchSettings(None if proposals else budget_s, proposals or None, seed=settings.seed)
    return problem, search(problem, chosen)


def _elsewhere(job: Callable[[], object]) -> None:
    with join(CPU):
        job()


def _all_trainings(task: Task, strategies: Mapping[str, Sequence[Split]]) -> dict[str, dict[str, list[Training]]]:
    """By precision and strategy: the trainings, in every process."""
    return {precision: _trainings(task, strategies, precision) for precision in PRECISIONS}


def _trainings(task: Task, strategies: Mapping[str, Sequence[Split]], precision: str) -> dict[str, list[Training]]:
    """By strategy: its trainings, which took turns."""
    found: dict[str, list[Training]] = {name: [] for name in strategies}
    model = copy.deepcopy(task.model).to(PRECISIONS[precision])
    graph = capture_operators(model, task.batch, sequence_cross_entropy).graph
    for turn in range(task.settings.turns if precision == "float32" else 1):
        for name, splits in strategies.items():
            if is_leader():
                console().print(f"{precision}, turn {turn + 1}: {name} ...", highlight=False)
            strategy = Partition(graph.hash, tuple(splits))
            found[name].append(train(model, task.data, strategy, DEVICES, task.settings.batch, task.settings.steps))
    return found


def _row(of_all: dict[str, list[Training]]) -> dict[str, Any]:
    """What is told of the trainings in one precision."""
    reference = of_all[ONE][0]
    return {
        name: {
            "losses": [round(loss, 12) for loss in trainings[0].losses],
            "step_ms": asdict(Quartiles.of([step for training in trainings for step in training.steps_ms])),
            "turns_ms": [Quartiles.of(training.steps_ms).median for training in trainings],
            "loss_off": max(training.loss_off(reference) for training in trainings),
            "weight_off": max(training.weight_off(reference) for training in trainings),
        }
        for name, trainings in of_all.items()
    }
