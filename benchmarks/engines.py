"""Samples per second of PyTorch, plain and compiled, and of bow's engines, side by side.

For every model and batch size, PyTorch and bow with each engine and several numbers of learners take turns: PyTorch in
a process of its own with torch's default policy for idle threads, bow in one as its command sets it. What follows: the
best of bow against the best of PyTorch, and what a second learner on a second core brings.

With `cores=` the processes are pinned to so many cores: k learners of one thread against one model with k threads.
"""

import contextlib
import functools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

import bow
from benchmarks import carry_out, harness
from benchmarks.harness import Host, counted, ratios, setting, spread, take_turns, warm_up
from benchmarks.trainings import (
    ENDLESS,
    LEARNING_RATE,
    MOMENTUM,
    BowTraining,
    Data,
    Feed,
    PlainTraining,
    StepTraining,
    Training,
    compiled_step,
)
from benchmarks.workloads import WORKLOADS, Workload
from bow.data import open_stream
from bow.devices import available_cores, physical_first, pin_here
from bow.engines import EngineName
from bow.errors import SettingError

PLAIN, COMPILED, COMPILED_STEP = "pytorch", "compiled", "compiled_step"
# As it is; forward and backward compiled; the whole step as one function; the first two with convolutions' weights and
# inputs in torch.channels_last.
PLAIN_LAST, COMPILED_LAST = "channels_last", "compiled+channels_last"
PYTORCH = (PLAIN, COMPILED, COMPILED_STEP, PLAIN_LAST, COMPILED_LAST)
EAGER, FUSED, STREAMS, GRAPH, GRAPH_COMPILED = "eager", "fused", "streams", "graph", "graph+compiled"
GRAPH_LAST, GRAPH_COMPILED_LAST = "graph+channels_last", "graph+compiled+channels_last"
BOW = (EAGER, FUSED, STREAMS, GRAPH, GRAPH_COMPILED, GRAPH_LAST, GRAPH_COMPILED_LAST)
RIVALS = (*PYTORCH[1:], *BOW)
# Each side has one process for all of its contestants, stopped while the other side runs.
SIDES = {"pytorch": PYTORCH, "bow": BOW}
ENVIRONMENTS = {"pytorch": {}, "bow": {"OMP_WAIT_POLICY": "PASSIVE"}}
FLOAT32, BFLOAT16 = "float32", "bfloat16"
COMPARED = (PLAIN, GRAPH)  # with themselves in float32
STEMS = ("engines", "engines_bfloat16", "engines_cores", "engines_bfloat16_cores")


@dataclass(frozen=True)
class Config(harness.Config):
    models: tuple[str, ...] = setting(
        tuple(WORKLOADS), "models to train", choices=tuple(WORKLOADS), quick=("logistic_regression",)
    )
    batches: tuple[int, ...] = setting((4, 16, 32, 64), "batch sizes, per learner", quick=(4,))
    learners: tuple[int, ...] = setting((1, 2, 4, 8), "numbers of learners, of those that make sense for a model")
    rivals: tuple[str, ...] = setting(RIVALS, "what runs besides plain PyTorch", choices=RIVALS)
    threads: tuple[int, ...] = setting((1, 2), "numbers of torch's threads, without cores=")
    precision: str = setting(FLOAT32, "of everybody, by autocast", choices=(FLOAT32, BFLOAT16))
    cores: tuple[int, ...] = setting((0,), "cores by affinity: k learners of a thread, a model with k threads; 0: all")
    repeats: int = setting(7, "turns of each case", quick=3)
    stint_s: float = setting(0.2, "seconds of a turn", quick=0.05)
    samples: int = setting(16384, "samples in memory", quick=1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.cores) > len(available_cores()):
            raise SettingError(f"cores={max(self.cores)} is more than the {len(available_cores())} of this process")

    @property
    def stem(self) -> str:
        """Name of the files of the result."""
        return f"engines{f'_{BFLOAT16}' if self.precision == BFLOAT16 else ''}{'_cores' if any(self.cores) else ''}"


@dataclass(frozen=True)
class Case:
    """One way to train."""

    implementation: str  # one of PYTORCH or BOW
    threads: int
    learners: int | None = None  # of bow

    def __str__(self) -> str:
        learners = "" if self.learners is None else f" with {counted(self.learners, 'learner')}"
        return f"{self.implementation}{learners} on {counted(self.threads, 'thread')}"

    @property
    def side(self) -> str:
        """Whose it is."""
        return "pytorch" if self.learners is None else "bow"

    @property
    def short(self) -> str:
        """For tables."""
        learners = "" if self.learners is None else f", {counted(self.learners, 'learner')}"
        threads = "" if self.threads == 1 else f", {counted(self.threads, 'thread')}"
        return f"{self.implementation}{learners}{threads}"

    @property
    def engine(self) -> str:
        return self.implementation.partition("+")[0]

    @property
    def is_compiled(self) -> bool:
        """Whether forward and backward are compiled."""
        return COMPILED in self.implementation.split("+")

    @property
    def is_last(self) -> bool:
        """Whether memory has the order of torch.channels_last."""
        return PLAIN_LAST in self.implementation.split("+")

    @property
    def is_float32(self) -> bool:
        """Whether it is float32 for comparison, where the others are bfloat16."""
        return FLOAT32 in self.implementation.split("+")

    @property
    def expected(self) -> str:
        """How bow describes what runs, where nothing falls back."""
        return f"{self.engine} (compiled)" if self.is_compiled else self.engine


def cases_of(workload: Workload, config: Config, cores: int = 0) -> list[Case]:
    """The cases of a model: what has a core for every learner runs with one thread, more are for idle cores."""
    rivals = [PLAIN, *(rival for rival in RIVALS if rival in config.rivals)]
    if not has_convolutions(workload):
        rivals = [rival for rival in rivals if not Case(rival, 1).is_last]
    if cores:
        torchs = [Case(rival, cores) for rival in rivals if rival in PYTORCH]
        graphs = [rival for rival in rivals if Case(rival, 1).engine == GRAPH]
        ones = [Case(GRAPH, cores, 1)] if GRAPH in graphs and cores > 1 else []
        return [*torchs, *ones, *(Case(rival, 1, cores) for rival in graphs)]
    if config.precision == BFLOAT16:
        rivals += [f"{each}+{FLOAT32}" for each in COMPARED if each in rivals]
    most = max(workload.learners)
    own: dict[str, Sequence[int | None]] = {EAGER: (1, most), FUSED: (workload.fused,), STREAMS: (2, most)}
    found = []
    for implementation in rivals:
        for count in (
            (None,)
            if implementation.removesuffix(f"+{FLOAT32}") in PYTORCH
            else own.get(implementation, workload.learners)
        ):
            # A compiled region has one thread by design; in `fused`, large operators between regions still use more.
            several = (
                count is None or implementation == FUSED or (count == 1 and not Case(implementation, 1).is_compiled)
            )
            if count is None or count in config.learners:
                found += [
                    Case(implementation, n, count) for n in (config.threads if several else [min(config.threads)])
                ]
    return found


def has_convolutions(workload: Workload) -> bool:
    """Whether the order of memory can matter."""
    return any(isinstance(module, nn.modules.conv._ConvNd) for module in workload.model().modules())


def run(config: Config, command: str) -> int:
    """Measure and write, under a name for each precision, and for what is pinned to cores."""
    return carry_out(config.stem, sys.modules[__name__], config, command)


def measure(config: Config) -> dict[str, Any]:
    groups = []
    for cores in config.cores:
        pinned = (pin_here, (physical_first(available_cores())[:cores],)) if cores else None
        with contextlib.ExitStack() as stack:
            hosts = {side: stack.enter_context(contextlib.closing(Host(ENVIRONMENTS[side], prepare=pinned)))
                     for side in SIDES}  # fmt: skip
            for model in config.models:
                for batch_size in config.batches:
                    groups.append(measure_group(model, batch_size, config, hosts, cores))
    contests = [group.pop("contest") for group in groups]
    factors = [contest["ratio"]["median"] for contest in contests if contest["ratio"] is not None]
    return {
        "fixed": f"fused SGD with learning rate {LEARNING_RATE:g} and momentum {MOMENTUM:g}, SMA in every round, "
        f"{config.precision}{'' if config.precision == FLOAT32 else ' by autocast'}, {config.samples} samples in "
        "memory: images of 28x28, for ResNet-8 of 3x32x32, for LSTM 20 tokens",
        "environments": {name: ENVIRONMENTS[side] for side, names in SIDES.items() for name in names},
        "processes": "all contestants of PyTorch in one process, all of bow in another, one of the two stopped while "
        "the other has its turn; torch.set_num_threads before every turn, nothing else set about threads",
        "contest": "best of PyTorch and best of bow by the race of everybody, raced again alone: figures of that race",
        "contests": contests,
        "geometric_mean": round(statistics.geometric_mean(factors), 3) if factors else None,
        "two_learners_over_one": [gains for group in groups if (gains := group.pop("gains"))],
        "over_float32": [gains for group in groups if (gains := group.pop("over_float32"))],
        "ratio": "to plain PyTorch with its better number of threads, repeat by repeat",
        "groups": groups,
    }


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"titles": {name: workload.title for name, workload in WORKLOADS.items()}}


def measure_group(
    model: str, batch_size: int, config: Config, hosts: Mapping[str, Host], cores: int = 0
) -> dict[str, Any]:
    """Everybody's turns with one model and one batch size, and the best of both sides again, still warm, alone.

    The fastest of many was lucky as well; the turns of the second race know nothing of that choice.
    """
    began = time.perf_counter()
    for host in hosts.values():
        host.call(_begin, model, batch_size, config.samples, config.precision)
    first_s: dict[Case, float] = {}
    notes: list[str] = []
    for case in cases_of(WORKLOADS[model], config, cores):
        host = hosts[case.side]
        seconds, note = host.call(_enter, case)
        host.stop()
        first_s |= {} if seconds is None else {case: seconds}
        notes += [f"{model}, batch {batch_size}, {case}: {note}"] if note else []
    turns = {case: functools.partial(_turn_in, hosts[case.side], case, config.stint_s)
             for case in first_s}  # fmt: skip
    rates = take_turns(turns, config.repeats)

    def fastest(implementations: Sequence[str]) -> Case | None:
        own = [case for case in rates if case.implementation in implementations]
        return max(own, key=lambda case: statistics.median(rates[case]), default=None)

    plain, pytorch, bow = fastest([PLAIN]), fastest(PYTORCH), fastest(BOW)
    final = {} if pytorch is None or bow is None else take_turns({c: turns[c] for c in (pytorch, bow)}, config.repeats)
    head = {"model": model, "batch_size": batch_size, **({"cores": cores} if cores else {})}
    half = {}
    for name in COMPARED:
        both = fastest([name]), fastest([f"{name}+{FLOAT32}"])
        half[name] = None if None in both else spread(ratios(*(rates[case] for case in both if case)), 3)
    over = None if pytorch is None or bow is None else spread(ratios(final[bow], final[pytorch]), 3)
    contest = {**head, "pytorch": _side(pytorch, final or rates), "bow": _side(bow, final or rates), "ratio": over}
    harness.say(f"{WORKLOADS[model].title}, batch {batch_size}: {contest['pytorch']} {contest['bow']} {over}")
    return {
        **head,
        "seconds": round(time.perf_counter() - began, 1),
        "notes": notes,
        "contestants": [
            {
                "implementation": case.implementation,
                "learners": case.learners,
                "threads": case.threads,
                "samples_per_s": spread(own, 1),
                "ratio": None if plain is None else spread(ratios(own, rates[plain]), 3),
                "first_call_s": round(first_s[case], 2),
            }
            for case, own in rates.items()
        ],
        "contest": contest,
        "over_float32": {**head, **half} if any(half.values()) else None,
        "gains": None if cores else {**head, **{name: _gain(rates, name) for name in (GRAPH, GRAPH_COMPILED)}},
    }


def _side(case: Case | None, rates: Mapping[Case, Sequence[float]]) -> dict[str, Any] | None:
    return None if case is None else {"setting": case.short, "samples_per_s": round(statistics.median(rates[case]), 1)}


def _gain(rates: Mapping[Case, Sequence[float]], name: str) -> dict[str, Any] | None:
    """Two learners over one learner on one thread, in the same engine."""
    two, one = rates.get(Case(name, 1, 2)), rates.get(Case(name, 1, 1))
    return None if one is None or two is None else spread(ratios(two, one), 3)


def _turn_in(host: Host, case: Case, seconds: float) -> float:
    found: float = host.call(_turn, case, seconds)
    host.stop()
    return found


# What follows runs in the process of a host.

_subject: tuple[Workload, Any, int, str] | None = None
_trainings: dict[object, Training] = {}


def _begin(model: str, batch_size: int, samples: int, precision: str) -> None:
    """Another model and batch size: nothing of one group shall run beside the next."""
    global _subject
    for training in _trainings.values():
        training.close()
    _trainings.clear()
    torch._dynamo.reset()
    _subject = WORKLOADS[model], WORKLOADS[model].make_data(samples), batch_size, precision


def _training(case: Case) -> Training:
    # A compiled step of PyTorch belongs to the threads that it was compiled with; bow's learners serve all.
    key = case if case.learners is None else (case.implementation, case.learners)
    if key not in _trainings:
        assert _subject is not None
        _trainings[key] = _made(case, *_subject)
    return _trainings[key]


def _made(case: Case, workload: Workload, data: Data, batch_size: int, precision: str) -> Training:
    model = workload.model()
    if case.is_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    is_half = precision == BFLOAT16 and not case.is_float32
    if case.learners is not None:
        half = BFLOAT16 if is_half else None
        engine = bow.Engine(cast(EngineName, case.engine), compile=case.is_compiled, precision=half)
        stream = open_stream(data, batch_size=batch_size, steps=ENDLESS)
        return BowTraining(model, workload.loss, stream, case.learners, engine)
    feed = Feed(data, batch_size, is_last=case.is_last)
    if case.implementation == COMPILED_STEP:
        return StepTraining(model, feed, compiled_step(model, workload.loss), autocast=is_half)
    return PlainTraining(model, workload.loss, feed, compile="default" if case.is_compiled else None, autocast=is_half)


def _enter(case: Case) -> tuple[float | None, str]:
    """Make a case and warm it up: seconds to make it and to call it once, or None, and what is to be noted."""
    torch.set_num_threads(case.threads)
    began = time.perf_counter()
    try:
        training = _training(case)
        made_s = time.perf_counter() - began
        # torch.compile leaves `nn.LSTM` alone unless it is told otherwise.
        with torch._dynamo.config.patch(allow_rnn=case.implementation in PYTORCH):
            first_s = made_s + warm_up(training)
    except SettingError:
        raise
    except Exception as error:  # a machine without a C++ compiler, for one
        return None, f"left out, {harness.first_words(error)}"
    ran = training.engine if isinstance(training, BowTraining) else case.expected
    return first_s, "" if ran == case.expected else f"ran as {ran}"


def _turn(case: Case, seconds: float) -> float:
    torch.set_num_threads(case.threads)
    return harness.rate(_training(case), seconds)
