"""A real training with a strategy found by the planner, compared with data parallelism and one device.

RNNLM on the characters of Python's help texts, on two processes with one core each. The planner measures the machine
and the network's tiles, and searches; then `bow.train` trains with the strategy found, with data parallelism and on one
device, with the same batches in the same order: all have equal losses up to rounding, and different times.
"""

import copy
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bow
from benchmarks import harness
from benchmarks.harness import quartiles, setting
from bow.cluster import World, is_leader
from bow.data import text
from bow.models import sequence_cross_entropy
from bow.models.recurrent import RNNLanguageModel
from bow.planning.problem.partition import Partition, Split, everything_on
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.problem import Problem
from bow.planning.search.search import Found, search
from bow.planning.tiles import CapturedOperators, capture_operators
from bow.planning.tiles.planning import COSTS, problem_of, topology_of
from bow.planning.tiles.tile_costs import measured_costs
from bow.training.placed import train_by

DEVICES = 2
OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9)
WARM_UP = 10  # steps that are not timed, or half of a shorter training
SLOWER = 1.05  # aim: the strategy found takes at most this many times as long as data parallelism; turns vary as much

CPU = torch.device("cpu")

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}

FOUND, DATA, ONE = "found", "data parallel", "one device"

# Permitted relative deviation of a loss from that on one device, over the whole training
OFF = {"float32": 1e-3, "float64": 1e-9}


@dataclass(frozen=True)
class Config(harness.Config):
    hidden: int = setting(512, "units of each LSTM layer", quick=16)
    layers: int = setting(2, "LSTM layers", quick=1)
    length: int = setting(10, "characters of a sequence", quick=3)
    batch: int = setting(32, "sequences of a batch")
    steps: int = setting(100, "steps of each training", quick=4, least=2)
    turns: int = setting(3, "number of trainings with each strategy in float32; once in float64", quick=1)
    budget_s: float = setting(60.0, "time of the search in seconds")
    proposals: int = setting(0, "maximum number of proposals of the search; 0: limited by time only", quick=20, least=0)
    costs: str = setting("measured", "costs of tiles and links: measured or roofline", choices=COSTS, quick="roofline")
    seed: int = setting(0, "random seed")


@dataclass(frozen=True)
class Training:
    losses: Sequence[float]  # of all steps
    steps_ms: Sequence[float]  # milliseconds of each step after the warm-up
    weights: Tensor = field(repr=False)  # trained weights, flattened

    def loss_off(self, other: "Training") -> float:
        """Return the largest difference between the losses of two trainings, relative to the loss."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.losses, other.losses, strict=True))

    def weight_off(self, other: "Training") -> float:
        """Return the largest difference between the weights of two trainings, relative to the largest weight."""
        return float((self.weights - other.weights).abs().max() / other.weights.abs().max())


class Watch(bow.Callback):
    """Records the loss of every step, and its time."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.ends_s: list[float] = []

    def on_round_end(self, run: Any) -> None:
        self.losses.append(float(run.replicas.last.losses.mean()))
        self.ends_s.append(time.perf_counter())


def train(
    model: nn.Module, data: tuple[Tensor, Tensor], strategy: Partition, devices: int, batch: int, steps: int
) -> Training:
    """Train a language model with a strategy."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        result = train_by(
            strategy,
            model,
            data,
            loss=sequence_cross_entropy,
            optimizer=OPTIMIZER,
            batch_size=batch,
            steps=steps,
            devices=devices,
            check=False,
            callbacks=[watch],
            run=bow.Run(Path(folder) / "run", progress=False),
        )
    warm = min(WARM_UP, steps // 2)
    ends = watch.ends_s[warm - 1 :]
    steps_ms = [1e3 * (end - start) for start, end in itertools.pairwise(ends)]
    weights = torch.cat([parameter.detach().flatten() for parameter in result.model.parameters()])
    return Training(watch.losses, steps_ms, weights)


@dataclass(frozen=True)
class Task:
    model: nn.Module  # RNNLM
    data: tuple[Tensor, Tensor]  # sequences of characters, and the next characters
    config: Config  # of the benchmark

    @classmethod
    def of(cls, config: Config) -> "Task":
        splits = text(config.length)
        torch.manual_seed(config.seed)
        return cls(RNNLanguageModel(splits.classes, config.hidden, config.layers), splits.train, config)

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        return self.data[0][: self.config.batch], self.data[1][: self.config.batch]

    @functools.cached_property
    def captured(self) -> CapturedOperators:
        return capture_operators(self.model, self.batch, sequence_cross_entropy)


def measure(config: Config) -> dict[str, Any]:
    """Plan, and train with each strategy."""
    task = Task.of(config)
    harness.say("planning ...")
    problem, found = _planned(task)
    strategies = {
        FOUND: found.partition.splits,
        DATA: data_parallel(task.captured.graph, RULES, DEVICES),
        ONE: everything_on(task.captured.graph),
    }
    trainings = harness.together(DEVICES, functools.partial(_all_trainings, task, strategies))
    return {
        "operators": len(task.captured.graph.operators),
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "evaluated": found.evaluated,
        "strategy": found.partition.to_json(),
        "predicted_ms": {name: problem.simulate(splits).makespan_ns / 1e6 for name, splits in strategies.items()},
        "trainings": {precision: _row(of_all) for precision, of_all in trainings.items()},
    }


def missed(values: Mapping[str, Any]) -> bool:
    """Whether losses differ by more than rounding, or the strategy found is slower than data parallelism."""
    trainings = values["trainings"]
    differ = any(row["loss_off"] > OFF[precision] for precision in trainings for row in trainings[precision].values())
    found, data = (trainings["float32"][name]["step_ms"]["median"] for name in (FOUND, DATA))
    return differ or found > SLOWER * data


def _planned(task: Task) -> tuple[Problem, Found]:
    config, captured = task.config, task.captured
    if config.costs == "measured":
        devices = topology_of("machine", DEVICES)
        problem = problem_of(
            captured.graph, devices, RULES, measured_costs(captured, task.model, task.batch, devices, OPTIMIZER)
        )
    else:
        problem = problem_of(captured.graph, "two_cores")
    budget_s, proposals = config.budget_s, config.proposals
    chosen = SearchSettings(None if proposals else budget_s, proposals or None, seed=config.seed)
    return problem, search(problem, chosen)


def _all_trainings(
    task: Task, strategies: Mapping[str, Sequence[Split]], world: World
) -> dict[str, dict[str, list[Training]]]:
    """Return the trainings by precision and strategy, in every process."""
    return {precision: _trainings(task, strategies, precision) for precision in PRECISIONS}


def _trainings(task: Task, strategies: Mapping[str, Sequence[Split]], precision: str) -> dict[str, list[Training]]:
    """Return the trainings by strategy, which took turns."""
    found: dict[str, list[Training]] = {name: [] for name in strategies}
    model = copy.deepcopy(task.model).to(PRECISIONS[precision])
    graph = capture_operators(model, task.batch, sequence_cross_entropy).graph
    for turn in range(task.config.turns if precision == "float32" else 1):
        for name, splits in strategies.items():
            if is_leader():
                harness.say(f"{precision}, turn {turn + 1}: {name} ...")
            strategy = Partition(graph.hash, tuple(splits))
            found[name].append(train(model, task.data, strategy, DEVICES, task.config.batch, task.config.steps))
    return found


def _row(of_all: dict[str, list[Training]]) -> dict[str, Any]:
    """Return the results of the trainings in one precision."""
    reference = of_all[ONE][0]
    return {
        name: {
            "losses": [round(loss, 12) for loss in trainings[0].losses],
            "step_ms": quartiles([step for training in trainings for step in training.steps_ms], 6),
            "turns_ms": [statistics.median(training.steps_ms) for training in trainings],
            "loss_off": max(training.loss_off(reference) for training in trainings),
            "weight_off": max(training.weight_off(reference) for training in trainings),
        }
        for name, trainings in of_all.items()
    }
