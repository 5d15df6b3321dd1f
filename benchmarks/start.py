"""Whole trainings with default settings, start included, against fixed settings.

The same samples are trained on by `bow.train` as it chooses itself, and with each engine and number of learners. A
contestant has a process of its own, and its time is that of the call, from which everything counts that a choice can
change: imports, trials, capture, compilation, rounds. What torch compiled earlier is not there.

Then the first round: wall and processor time from the call to its end, of engine `graph` plain and compiled, in a first
training and in a second one, which finds what the first has kept on disk.
"""

import functools
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn

import bow
from benchmarks import harness
from benchmarks.caches import empty_caches
from benchmarks.harness import CaseError, apart, ratios, setting, spread, take_turns
from benchmarks.workloads import GREY, VOCABULARY, WORKLOADS, Workload, noise_text
from bow.models import MLP, Transformer, sequence_cross_entropy

AIM = 0.9
"""The best setting's time over the rule's, in no cell less."""

RULE = "rule"
COMPILED = "graph+compiled"
ENGINES = ("eager", "graph", COMPILED, "fused")
FIXED = tuple(f"{engine}-{learners}" for engine in ENGINES for learners in (1, 2, 4, 8))
FIRST_ROUND_S = 0.5
"""The aim for the first round of a second training."""

MODELS = {
    "logistic": ("logistic_regression", 4),
    "mlp": ("mlp", 16),
    "lenet": ("lenet", 16),
    "resnet8": ("resnet8", 16),
    "lstm": ("lstm", 16),
    "wide": ("wide", 64),
    "narrow": ("narrow", 16),
    "convolutions": ("convolutions", 8),
    "deep": ("deep", 32),
    "transformer": ("transformer", 8),
}
"""By name: the workload and the batch size."""

FIRST_ROUNDS = 5
"""Of the trainings whose first round is timed."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Config(harness.Config):
    models: tuple[str, ...] = setting(tuple(MODELS), "what is trained", choices=tuple(MODELS), quick=tuple(MODELS)[:1])
    rounds: tuple[int, ...] = setting((5, 300, 3_000), "lengths, in rounds of two learners", quick=(5,))
    fixed: tuple[str, ...] = setting(FIXED, "engines and learners", choices=FIXED, quick=FIXED[:1])
    repeats: int = setting(3, "of every training", quick=1)
    second: tuple[str, ...] = setting(
        ("graph-2", f"{COMPILED}-2"), "whose first rounds are timed", choices=FIXED, quick=("graph-2",)
    )
    limit_s: float = setting(600.0, "seconds after which a contestant fails")


def measure(config: Config) -> dict[str, Any]:
    """Seconds of everybody, by model and length."""
    from bow.runtime.loading import build

    build()
    starts = [_start(config, name, contestant) for name in config.models for contestant in config.second]
    cells = [_cell(config, name, rounds) for name in config.models for rounds in config.rounds]
    lowest = min((cell["ratio"]["median"] for cell in cells), default=None)
    return {"aim": AIM, "cells": cells, "lowest": lowest, "first_round_s": FIRST_ROUND_S, "starts": starts}


def missed(values: Row) -> bool:
    """Whether the rule was too slow in some cell."""
    slow = any(each["second"]["wall_s"]["median"] > FIRST_ROUND_S for each in values["starts"])
    return slow or any(cell["ratio"]["median"] < AIM for cell in values["cells"])


def _start(config: Config, name: str, contestant: str) -> dict[str, Any]:
    """First rounds of a first and a second training, with one pair of caches for every repeat."""
    found: dict[str, list[dict[str, Any]]] = {"first": [], "second": []}
    for _ in range(config.repeats):
        with empty_caches() as caches:
            for own in found.values():
                own.append(_train_apart(config, contestant, name, FIRST_ROUNDS, caches))
    made = {"model": name, "contestant": contestant, "ran": found["second"][0]["chosen"]}
    for which, own in found.items():
        made[which] = {key: spread([each["first_round"][key] for each in own], 3) for key in ("wall_s", "processor_s")}
    harness.say(f"{name}, {contestant}: {made}")
    return made


def _cell(config: Config, name: str, rounds: int) -> dict[str, Any]:
    def turn(contestant: str) -> dict[str, Any]:
        with empty_caches() as caches:
            return _train_apart(config, contestant, name, rounds, caches)

    def note(contestant: str, error: Exception) -> None:
        if contestant == RULE or not isinstance(error, CaseError):
            raise error
        failed.append({"name": contestant, "why": str(error).splitlines()[0]})

    failed: list[dict[str, str]] = []
    turns = {each: functools.partial(turn, each) for each in (RULE, *config.fixed)}
    found = take_turns(turns, config.repeats, failed=note)
    seconds = {each: [made["seconds"] for made in own] for each, own in found.items()}
    others = [each for each in seconds if each != RULE]
    best = min(others, key=lambda each: statistics.median(seconds[each]))
    cell = {
        "processor_s": {each: spread([made["processor_s"] for made in own], 3) for each, own in found.items()},
        "model": name,
        "rounds": rounds,
        "chosen": found[RULE][0]["chosen"],
        "best": best,
        "ratio": spread(ratios(seconds[best], seconds[RULE]), 3),
        "rows": [{"name": each, "seconds": spread(own, 3)} for each, own in seconds.items()],
        "failed": failed,
    }
    harness.say(f"{name}, {rounds} rounds: {cell['chosen']}; best: {best}; {cell['ratio']['median']:.2f}")
    return cell


def _train_apart(config: Config, contestant: str, name: str, rounds: int, caches: Mapping[str, str]) -> dict[str, Any]:
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **caches}
    return apart(_train, contestant, name, rounds, environment=environment, limit_s=config.limit_s)


# What follows runs in the process of a contestant.


def workloads() -> dict[str, Workload]:
    """Five that the other benchmarks have, and five more."""

    def convolutions() -> nn.Module:
        layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(400, 10))

    def mlp(*hidden: int) -> Callable[[], nn.Module]:
        return lambda: MLP(28 * 28, 10, hidden)

    return {
        **WORKLOADS,
        "wide": Workload("wide MLP", mlp(2048, 2048), GREY),
        "narrow": Workload("narrow MLP", mlp(32), GREY),
        "convolutions": Workload("small convolutions", convolutions, GREY),
        "deep": Workload("deep MLP", mlp(*[128] * 8), GREY),
        "transformer": Workload(
            "transformer", functools.partial(Transformer, VOCABULARY), noise_text, sequence_cross_entropy
        ),
    }


def _train(contestant: str, name: str, rounds: int) -> dict[str, Any]:
    """Seconds of a training on as many samples for everybody."""
    name_of, _, learners = contestant.partition("-")
    engine = bow.Engine("graph", compile=True) if name_of == COMPILED else name_of
    workload, batch = workloads()[MODELS[name][0]], MODELS[name][1]
    settings = {} if contestant == RULE else {"engine": engine, "learners": int(learners)}
    model, data = workload.model(), workload.make_data(2 * batch * min(rounds, 100))
    epochs = max(1, rounds // 100)
    bow.train  # noqa: B018 - imports what it needs
    first: dict[str, float] = {}

    class FirstRound:
        def on_round_end(self, run: Any) -> None:
            if not first:
                first.update(wall_s=perf_counter() - began, processor_s=processor_s() - before)

    with tempfile.TemporaryDirectory() as folder:
        began, before = perf_counter(), processor_s()
        result = bow.train(
            model,
            data,
            workload.loss,
            optimizer=functools.partial(torch.optim.SGD, lr=0.001, momentum=0.9),
            batch_size=batch,
            epochs=epochs,
            run=bow.Run(f"{folder}/run", progress=False),
            callbacks=[FirstRound()] if rounds == FIRST_ROUNDS else [],  # else rounds run in groups
            **settings,  # type: ignore[arg-type]
        )
        seconds, used = perf_counter() - began, processor_s() - before
    return {
        "seconds": seconds,
        "processor_s": used,
        "first_round": first,
        "chosen": f"{result.engine}-{result.learners}",
    }


def processor_s() -> float:
    """Of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])
