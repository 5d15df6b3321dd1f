"""Pairs of a model and a batch size: the tuner's choice, compared with the best of an exhaustive search."""

import functools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch._inductor.cpu_vec_isa import valid_vec_isa_list

from benchmarks.harness import apart, median_interval, ratios, spread
from benchmarks.trainings import SGD, Data
from benchmarks.tuner.exhaustive import Tried, everything, take_turns, try_all
from benchmarks.workloads import CLASSES, COLOR, WORKLOADS, Workload
from bow.engines import LearningConfig, step_from_loss
from bow.engines.choice import MIN_ROUNDS_PER_EPOCH
from bow.models import LogisticRegression
from bow.sync import SMA
from bow.training.batches import DataSource
from bow.training.replicas import ReplicasConfig
from bow.training.trials import Trials, has_choice_of_format
from bow.training.tuning import make_request, tune
from bow.tuner import EngineSetting, Tuner

# Samples in memory for each pair, or more if the largest number of learners needs them: if the number of learners is
# tuned, each learner has a minimum number of batches per epoch. The data are noise, see `benchmarks.workloads`
SAMPLES, MOST_LEARNERS = 4096, 8


@dataclass(frozen=True)
class Pair:
    workload: Workload  # the model and its data
    batch_size: int  # samples per learner and round

    @property
    def num_samples(self) -> int:
        """Return enough samples for the largest number of learners."""
        return max(SAMPLES, MOST_LEARNERS * MIN_ROUNDS_PER_EPOCH * self.batch_size)

    def make_data(self) -> Data:
        return self.workload.make_data(self.num_samples)


# By name; in the last two, one learner is expected to be best
PAIRS: dict[str, Pair] = {
    "logistic_regression_16": Pair(WORKLOADS["logistic_regression"], 16),
    "mlp_16": Pair(WORKLOADS["mlp"], 16),
    "lenet_4": Pair(WORKLOADS["lenet"], 4),
    "lenet_16": Pair(WORKLOADS["lenet"], 16),
    "resnet8_16": Pair(WORKLOADS["resnet8"], 16),
    "lstm_64": Pair(WORKLOADS["lstm"], 64),
    # Memory-bound: more learners compete for the same memory bandwidth.
    "logistic_regression_512": Pair(WORKLOADS["logistic_regression"], 512),
    "color_64": Pair(
        Workload("logistic regression, color", functools.partial(LogisticRegression, 3 * 32 * 32, CLASSES), COLOR), 64
    ),
}


TARGET_RATIO = 0.95  # smallest ratio of the choice's throughput to that of the best

TARGET_SHARE = 0.05  # largest fraction of the run for calibration

FINALISTS = 5  # number of the fastest of the exhaustive search that are compared with the choice

Verdict: TypeAlias = Literal["reached", "undecided", "missed"]


@dataclass(frozen=True)
class Task:
    """The arguments of a process."""

    pair: str  # a name in `PAIRS`
    run_s: float  # approximate duration of the training to tune for
    passes: int  # over settings close to the fastest in the exhaustive search, including the first pass
    first_s: float  # seconds of a setting in the first pass
    stint_s: float  # of a measurement after that
    compile_s: float  # as in `try_all`
    turns: int  # measurements of the choice and the finalists
    threads: int  # torch's threads
    most: int  # largest number of learners
    caches: Mapping[str, str]  # variables of empty caches for the tuner; empty: the caches of this process


@dataclass(frozen=True)
class Calibrated:
    """The tuner's result."""

    choice: EngineSetting | None  # None if it measured nothing and used the rule of thumb
    seconds: float  # duration of tuning
    summary: str  # message in the log
    rows: Sequence[Mapping[str, Any]]  # the decision table
    compiled_later: EngineSetting | None = None  # the choice as the training would compile it beside its rounds


@dataclass(frozen=True)
class Comparison:
    pair: str  # its name
    run_s: float  # duration of the training with the best of the exhaustive search
    tried: Tried  # exhaustive search
    calibrated: Calibrated  # the tuner's choice and its cost
    turns: Mapping[
        EngineSetting, Sequence[float]
    ]  # samples per second, an entry per turn, of the finalists and the choice
    dropped: Mapping[EngineSetting, str]  # finalists that failed in the final, and why

    @property
    def choice(self) -> EngineSetting | None:
        """What the training would come to: what was compiled beside its rounds, where that is faster in these turns."""
        chosen, compiled = self.calibrated.choice, self.calibrated.compiled_later
        if chosen is None or compiled is None or not {chosen, compiled} <= set(self.turns):
            return chosen
        low, gain, _ = statistics.quantiles(ratios(self.turns[compiled], self.turns[chosen]))  # as a training decides
        return compiled if low > 1 and gain > 1 + Tuner().threshold else chosen

    @property
    def ranking(self) -> list[EngineSetting]:
        """Measured settings, the highest median first."""
        return sorted(self.turns, key=lambda setting: -statistics.median(self.turns[setting]))

    @property
    def best(self) -> EngineSetting:
        return self.ranking[0]

    @property
    def next_best(self) -> EngineSetting | None:
        """The setting with the second highest median; None if there is none."""
        return next(iter(self.ranking[1:]), None)

    @property
    def ratio(self) -> dict[str, Any] | None:
        """Ratio of the choice's throughput to the best's, by turn; None if they are the same, or there is no choice."""
        if self.choice is None or self.choice == self.best or self.choice not in self.turns:
            return None
        return median_interval(ratios(self.turns[self.choice], self.turns[self.best]))

    @property
    def margin(self) -> dict[str, Any] | None:
        """Ratio of the choice's throughput to the next best's, if the choice is the best."""
        if self.choice != self.best or self.next_best is None:
            return None
        return median_interval(ratios(self.turns[self.best], self.turns[self.next_best]))

    @property
    def one_learner(self) -> dict[str, Any] | None:
        """Ratio of the best setting with one learner to the best with several, by turn; None without both kinds."""
        one = next((setting for setting in self.ranking if setting.learners == 1), None)
        several = next((setting for setting in self.ranking if setting.learners > 1), None)
        return None if one is None or several is None else median_interval(ratios(self.turns[one], self.turns[several]))

    @property
    def share(self) -> float:
        """Fraction of the run for calibration."""
        return self.calibrated.seconds / self.run_s

    @property
    def speed_verdict(self) -> Verdict:
        """Whether the choice is fast enough; undecided: its median is too low, but the interval is not."""
        if self.choice is not None and self.choice == self.best:
            return "reached"
        found = self.ratio
        if found is None or found["high"] < TARGET_RATIO:
            return "missed"
        return "reached" if found["median"] >= TARGET_RATIO else "undecided"

    @property
    def verdict(self) -> Verdict:
        """Whether the choice is fast enough and tuning cheap enough."""
        return self.speed_verdict if self.share <= TARGET_SHARE else "missed"

    @property
    def reason(self) -> str:
        """Why there is no ratio although the choice is not the best; otherwise empty."""
        if self.choice is None:
            return f"the tuner chose nothing: {self.calibrated.summary}"
        return f"the choice failed: {self.dropped[self.choice]}" if self.choice in self.dropped else ""


def compare(task: Task) -> dict[str, Any]:
    """Search exhaustively, tune in a separate process, and measure the choice and the fastest in turns."""
    _begin(task)
    pair = PAIRS[task.pair]
    replicas_config, opened = _prepare(pair)
    request = make_request(replicas_config, opened, 1, steps=1)
    settings = everything(min(task.most, request.most), task.threads, has_formats=has_choice_of_format(replicas_config))
    trials = Trials(replicas_config, opened.feed())
    try:
        tried = try_all(
            trials,
            settings,
            passes=task.passes,
            first_s=task.first_s,
            stint_s=task.stint_s,
            compile_s=task.compile_s,
        )
        finalists = tried.by_speed[:FINALISTS]
        steps = round(task.run_s * statistics.median(tried.rates[finalists[0]]) / pair.batch_size)
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **task.caches}
        calibrated = apart(calibrate, task, max(1, steps), environment=environment)
        finalists += [
            setting
            for setting in (calibrated.choice, calibrated.compiled_later)
            if setting is not None and setting not in finalists
        ]
        turns, dropped = take_turns(trials, finalists, turns=task.turns, stint_s=task.stint_s)
    finally:
        trials.close()
    return as_dict(Comparison(task.pair, task.run_s, tried, calibrated, turns, dropped))


def calibrate(task: Task, steps: int) -> Calibrated:
    """Tune as `bow.train` does, for a training of `steps` batches."""
    _begin(task)
    pair = PAIRS[task.pair]
    replicas_config, opened = _prepare(pair)
    request = make_request(replicas_config, opened, 1, steps=steps)
    request = replace(request, most=min(task.most, request.most))
    began = time.perf_counter()
    tuned = tune(request, opened, Tuner(cache=False), loss=pair.workload.loss, say=lambda text: None)
    seconds = time.perf_counter() - began
    if tuned.engine == "auto":  # it used the rule of thumb
        return Calibrated(None, seconds, tuned.summary, tuned.rows)
    later = replace(tuned, compile=True).engine_setting if tuned.compiles_later else None
    return Calibrated(tuned.engine_setting, seconds, tuned.summary, tuned.rows, later)


def _begin(task: Task) -> None:
    """Import modules that trainings need anyway, and detect the processor's features, as is done once per machine."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    valid_vec_isa_list()
    replicas_config, _ = _prepare(PAIRS[task.pair])
    replicas_config.build("eager", 1).close()


def _prepare(pair: Pair) -> tuple[ReplicasConfig, DataSource]:
    data = pair.make_data()
    opened = DataSource(data, batch_size=pair.batch_size, epochs=1, steps=1, seed=0)
    replicas_config = ReplicasConfig(
        model=pair.workload.build(),
        task=LearningConfig(step_from_loss(pair.workload.loss)),
        optimizer=SGD,
        sync=SMA(),
        device=torch.device("cpu"),
        buffers="average",
        example=opened.example,
    )
    return replicas_config, opened


def as_dict(comparison: Comparison) -> dict[str, Any]:
    pair = PAIRS[comparison.pair]
    tried = comparison.tried
    intervals = {name: getattr(comparison, name) for name in ("ratio", "margin", "one_learner")}
    return {
        "pair": comparison.pair,
        "model": pair.workload.title,
        "batch_size": pair.batch_size,
        "choice": None if comparison.choice is None else str(comparison.choice),
        "chosen_first": None if comparison.calibrated.choice is None else str(comparison.calibrated.choice),
        "best": str(comparison.best),
        "next_best": None if comparison.next_best is None else str(comparison.next_best),
        "verdict": comparison.verdict,
        "speed_verdict": comparison.speed_verdict,
        "reason": comparison.reason,
        **intervals,
        "calibration_s": round(comparison.calibrated.seconds, 2),
        "run_s": round(comparison.run_s, 1),
        "share": round(comparison.share, 4),
        "log": comparison.calibrated.summary,
        "decision_table": [_rounded(row) for row in comparison.calibrated.rows],
        "turns": [_entry(setting, comparison.turns[setting]) for setting in comparison.ranking],
        "dropped": {str(setting): why for setting, why in comparison.dropped.items()},
        "exhaustive": [_entry(setting, tried.rates[setting]) for setting in tried.by_speed],
        "failures": {str(setting): why for setting, why in tried.failures.items()},
        "left_out": {str(setting): why for setting, why in tried.left_out.items()},
    }


def _entry(setting: EngineSetting, rates: Sequence[float]) -> dict[str, Any]:
    speed = spread(rates, 1)
    return {"setting": str(setting), "samples_per_s": speed, "rates": [round(rate, 1) for rate in rates]}


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
