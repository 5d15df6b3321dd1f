"""Samples per second of one model at one batch size: PyTorch beside bow, in turns."""

import functools
from typing import TYPE_CHECKING

from benchmarks.gpu.comparisons import PEERS_S
from benchmarks.gpu.parts import PARTS, Context
from benchmarks.gpu.peers import Spec
from benchmarks.gpu.racing import (
    COMPILED,
    COMPILED_GRAPHED,
    GRAPHED,
    PLAIN,
    REDUCED,
    Race,
    best_of_bow,
    bow_name,
    one_graphed,
)

if TYPE_CHECKING:
    from benchmarks.gpu import Config

# Each number is compiled by itself, which takes most of a minute
FUSED_LEARNERS = {
    "throughput_lenet_16": (8, 16, 4, 2, 1),
    "throughput_resnet32_32": (4, 8, 2),
    "throughput_lenet_4": (16, 4),
    "throughput_resnet32_16": (4,),
    "throughput_resnet32_64": (4,),
}

PARTS_WITH_ALL = ("throughput_lenet_16", "throughput_resnet32_32")


def measure(context: Context, model: str, batch_size: int) -> None:
    config = context.config
    race = Race(context, model, batch_size)
    race.plain(PLAIN)
    race.graphed(GRAPHED)
    for learners in config.learners:
        for engine in ("graph", "graph+round"):
            race.bow(bow_name(engine, learners), learners, engine=engine)
    for learners in config.learners:
        race.bow(bow_name("streams", learners), learners, engine="streams")
    if config.processes:
        own = {spec.name: spec.settings.get("learners") for spec in peers(config)}
        race.peers(PEERS_S, own)
        if COMPILED_GRAPHED in context.peers and COMPILED_GRAPHED not in race.runners:
            context.cut(f"{COMPILED_GRAPHED}: left out")  # without it there is no verdict
    else:
        _enter_here(race, config)
    race.run(config.repeats, config.stint_s)
    _race_final(race)
    race.close()


def _race_final(race: Race) -> None:
    """Let the best of bow and the best single graphed learner race again alone.

    Who is the fastest of many was lucky as well; this race knows nothing of that choice.
    """
    config, rows = race.context.config, race.context.findings["contestants"]
    best, one = best_of_bow(rows), one_graphed(rows)
    if best is None or one is None:
        return
    rates = race.again((best["name"], one["name"]), config.repeats, config.stint_s)
    if len(rates) == len({best["name"], one["name"]}):
        race.context.record(final={"best": best["name"], "one": one["name"], "rates": rates})


def peers(config: "Config") -> list[Spec]:
    """What is compiled, the most important ones first."""
    specs = []
    for part in PARTS:
        if part.function != "throughput":
            continue
        spec = functools.partial(Spec, part=part.name, **part.arguments)
        if part.name in PARTS_WITH_ALL:
            specs.append(spec(name=COMPILED_GRAPHED, kind="graphed", settings={"compile": True}))
        specs += [
            spec(name=COMPILED, kind="plain", settings={"compile": "default"}),
            spec(name=REDUCED, kind="plain", settings={"compile": "reduce-overhead"}),
        ]
        for learners in FUSED_LEARNERS[part.name]:
            if learners in config.learners:
                settings = {"learners": learners, "engine": "fused"}
                specs.append(spec(name=bow_name("fused", learners), kind="bow", settings=settings))
    return specs


def _enter_here(race: Race, config: "Config") -> None:
    """What is compiled, in this process; not what empties workspaces that graphs of others need."""
    race.plain(COMPILED, compile="default")
    race.graphed(COMPILED_GRAPHED, compile=True)
    for learners in config.learners[:2]:
        race.bow(bow_name("fused", learners), learners, engine="fused")
