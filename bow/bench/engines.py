"""`bow bench engines`: samples per second of plain PyTorch and of bow's engines, side by side.

For every model and batch size, plain PyTorch, PyTorch compiled, and bow with each engine and number of learners take
turns within one process, each with one and with two threads. The compiled regions of `fused` have one thread by
design; there, the second one serves large operators only.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, cast

import torch

from bow.bench.arguments import check_positive, setting
from bow.bench.contestants import LEARNING_RATE, MODELS, MOMENTUM, BowTraining, Data, PlainTraining, make_data
from bow.bench.engines_report import PLAIN, Group, Lane, markdown, summary, table
from bow.bench.environment import inspect_environment
from bow.bench.measure import Contestant, race, warm_up
from bow.bench.results import RESULTS, Result, console, prepare_output, write_json, write_text
from bow.engine import EngineName
from bow.errors import BowError

COMPILED = "compiled"
RIVALS = (COMPILED, "eager", "fused")

Training: TypeAlias = PlainTraining | BowTraining


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark.

    Raises:
        SettingError: a value outside its range.
    """

    out: Path = setting(RESULTS, "folder for engines.json and engines.md")  # noqa: RUF009 - it is dataclasses.field
    models: tuple[str, ...] = setting(tuple(MODELS), "models to train", choices=tuple(MODELS))
    batches: tuple[int, ...] = setting((4, 16, 32), "batch sizes, per learner")
    learners: tuple[int, ...] = setting((1, 2, 4, 8), "numbers of learners")
    rivals: tuple[str, ...] = setting(RIVALS, "what runs besides plain PyTorch", choices=RIVALS)
    threads: tuple[int, ...] = setting((1, 2), "numbers of torch's threads")
    repeats: int = setting(7, "turns of each contestant")
    stint_s: float = setting(0.2, "seconds of a turn")
    samples: int = setting(16384, "images in memory")
    quick: bool = setting(False, "a small part, to see that it works: logistic regression, batch 4, short turns")

    def __post_init__(self) -> None:
        check_positive(self, "batches", "learners", "threads", "repeats", "stint_s", "samples")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(self, models=("logistic_regression",), batches=(4,), repeats=3, stint_s=0.05, samples=1024)


def run(settings: Settings, command: str) -> int:
    """Measure all groups, print the table, and write `engines.json` and `engines.md`."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began, threads = time.perf_counter(), torch.get_num_threads()
    data = make_data(settings.samples)
    groups: list[Group] = []
    try:
        for model in settings.models:
            for batch in settings.batches:
                groups.append(measure_group(model, batch, data, settings))
                console().print(summary(groups[-1]), highlight=False)
    finally:
        torch.set_num_threads(threads)
    findings = {
        "fixed": f"SGD with learning rate {LEARNING_RATE:g} and momentum {MOMENTUM:g}, SMA in every round, float32, "
        f"images of 28x28 in memory, {settings.samples} of them",
        "ratio": "to plain PyTorch with its better number of threads, repeat by repeat",
        "groups": [group.as_dict() for group in groups],
    }
    environment = inspect_environment()
    result = Result("engines", command, environment, settings, time.perf_counter() - began, findings)
    values = result.as_dict()
    write_json(settings.out / "engines.json", values)
    write_text(settings.out / "engines.md", markdown(groups, values, environment))
    table(groups).show(f"samples per second (threads), and the ratio to plain PyTorch; {environment}")
    for note in (note for group in groups for note in group.notes):
        console().print(note, highlight=False)
    return 0


def line_up(settings: Settings) -> list[Lane]:
    """Who takes part in every group."""
    implementations = [PLAIN, *(rival for rival in RIVALS if rival in settings.rivals)]
    return [
        Lane(implementation, threads, learners)
        for implementation in implementations
        for learners in ((None,) if implementation in (PLAIN, COMPILED) else settings.learners)
        for threads in settings.threads
    ]


def measure_group(model: str, batch_size: int, data: Data, settings: Settings) -> Group:
    """Let everybody train one model with one batch size."""
    began = time.perf_counter()
    entries: list[tuple[Lane, Contestant]] = []
    notes: list[str] = []
    trainings: dict[object, Training] = {}
    for lane in line_up(settings):
        try:
            training = _shared(trainings, lane, model, batch_size, data)
            contestant = Contestant(training, lane.threads)
            entries.append((replace(lane, first_call_s=warm_up(contestant)), contestant))
        except BowError:
            raise
        except Exception as error:  # a machine without a C++ compiler, for one
            reason = (str(error).splitlines() or [""])[0]
            notes.append(f"{model}, batch {batch_size}, {lane}: left out, {type(error).__name__}: {reason}")
            continue
        if isinstance(training, BowTraining) and training.engine != lane.implementation:
            notes.append(f"{model}, batch {batch_size}, {lane}: ran as {training.engine}")
    rates = race([contestant for _, contestant in entries], settings.repeats, settings.stint_s)
    torch._dynamo.reset()  # what was compiled for this group is not needed any more
    lanes = tuple(replace(lane, rates=tuple(own)) for (lane, _), own in zip(entries, rates, strict=True))
    return Group(model, batch_size, lanes, tuple(notes), time.perf_counter() - began)


def _shared(trainings: dict[object, Training], lane: Lane, model: str, batch_size: int, data: Data) -> Training:
    # One compiled step of plain PyTorch belongs to the threads that it was compiled with; bow's learners serve all.
    key = lane if lane.learners is None else (lane.implementation, lane.learners)
    if key not in trainings:
        trainings[key] = make(lane, model, batch_size, data)
    return trainings[key]


def make(lane: Lane, model: str, batch_size: int, data: Data) -> Training:
    """The training that a contestant runs."""
    if lane.learners is None:
        return PlainTraining(MODELS[model], data, batch_size, compile=lane.implementation == COMPILED)
    engine = cast(EngineName, lane.implementation)
    return BowTraining(MODELS[model], data, batch_size, lane.learners, engine)
