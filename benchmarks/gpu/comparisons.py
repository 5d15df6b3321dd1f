"""Races of a few on LeNet and ResNet-32: averaging or not, allocators, cores, compiled learning tasks."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.machine import ONE_STREAM, UNPINNED
from benchmarks.gpu.parts import Context
from benchmarks.gpu.peers import Spec
from benchmarks.gpu.racing import Race, bow_name, gain
from benchmarks.harness import spread
from bow.sync import SMA, Independent, Synchroniser

if TYPE_CHECKING:
    from benchmarks.gpu import Config

MODEL, BATCH, LEARNERS = "lenet", 16, 4
PEERS_S = 2.0  # so long a part waits for contestants in other processes: what is not ready by now is stopped

# `never` is `SMA` that is never due: the same kernels for the steps, and no averaging. `Independent` steps in PyTorch,
# behind all learners, and so is no measure of averaging alone; it is what a user would compare with.
NEVER = 2**40
SYNCS: dict[str, Callable[[], Synchroniser]] = {
    "sma": SMA,
    "never": lambda: SMA(every=NEVER),
    "independent": Independent,
}

BY_STREAM, SHARED, UNCACHED = "a cache for each learner's stream", "one cache and one stream for all", "no cache"
EAGER, EAGER_UNCACHED = "eager", "eager, no cache"
PINNED, FREE = "on the cores near the GPU", "on any core"
COMPILED_LEARNERS = (1, 4)


def averaging(context: Context, model: str, batch_size: int) -> None:
    """What averaging costs: rounds with a synchronisation task against rounds without, repeat by repeat."""
    config, race = context.config, Race(context, model, batch_size)
    learners = [count for count in (4, 8, 2) if count in config.learners]
    cases = [(engine, count) for count in learners for engine in ("graph", "graph+round")]
    for engine, count in cases:
        for sync, make in SYNCS.items():
            race.bow(f"{engine}, {count}, {sync}", count, engine=engine, sync=make())
    rates = race.run(config.repeats, config.stint_s)
    context.record(rows=[row for case in cases if (row := _overhead(rates, *case)) is not None])
    race.close()


def _overhead(rates: dict[str, list[float]], engine: str, learners: int) -> dict[str, Any] | None:
    own = {sync: rates.get(f"{engine}, {learners}, {sync}") for sync in SYNCS}
    if not own["sma"] or not own["never"]:
        return None
    row: dict[str, Any] = {"engine": engine, "learners": learners}
    for other in ("never", "independent"):
        if others := own[other]:
            overheads = [100 * (base / rate - 1) for rate, base in zip(own["sma"], others, strict=True)]
            row[f"percent_over_{other}"] = spread(overheads, 2)
    return row


def allocators(context: Context) -> None:
    """Figure 4.2 of Budea, 2019: no caching of memory, one cache for all learners, and one for each learner's stream.

    The paper had to write the third; in PyTorch blocks belong to the stream that they were allocated on, so that every
    learner of engine `streams` has a cache of its own. All learners on one stream share one, and their kernels take
    turns. Before that, after as many rounds of all on the same batches, losses have to be the same.
    """
    race = Race(context, MODEL, BATCH)
    race.bow(BY_STREAM, LEARNERS, engine="streams")
    race.bow(SHARED, LEARNERS, device=context.machine.variant(ONE_STREAM), engine="streams")
    race.bow(EAGER, LEARNERS, engine="eager")
    race.peers(PEERS_S, {spec.name: LEARNERS for spec in uncached()})
    # All of them have made as many rounds by now to get warm.
    losses = {name: race.runners[name].loss() for name in (BY_STREAM, SHARED, UNCACHED) if name in race.runners}
    context.record(losses={name: round(loss, 6) if math.isfinite(loss) else None for name, loss in losses.items()})
    race.run(context.config.repeats, context.config.stint_s)
    race.close()


def uncached() -> list[Spec]:
    variables = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return [
        Spec(name, "allocators", "bow", MODEL, BATCH, {"learners": LEARNERS, "engine": engine}, variables)
        for name, engine in ((UNCACHED, "streams"), (EAGER_UNCACHED, "eager"))
    ]


def pinning(context: Context) -> None:
    """Section 5.4 of Budea, 2019: threads on the cores of the GPU's socket, or wherever the system puts them."""
    race, free = Race(context, MODEL, BATCH), context.machine.variant(UNPINNED)
    race.bow(PINNED, LEARNERS, engine="streams")
    race.bow(FREE, LEARNERS, device=free, engine="streams")
    context.record(cores={PINNED: len(context.machine.device.cores()), FREE: len(free.cores())})
    rates = race.run(context.config.repeats, context.config.stint_s)
    context.record(pinned_over_free=gain(rates, PINNED, FREE))
    race.close()


def compiling(context: Context) -> None:
    """Learning tasks that are compiled before they are captured, with one learner and with several."""
    config, race = context.config, Race(context, MODEL, BATCH)
    learners = [count for count in COMPILED_LEARNERS if count in config.learners]
    for count in learners:
        race.bow(bow_name("graph", count), count, engine="graph")
        if not config.processes:
            race.bow(_compiled(count), count, engine="graph", compile=True)
    if config.processes:
        race.peers(PEERS_S, {_compiled(count): count for count in learners})
    rates = race.run(config.repeats, config.stint_s)
    gains = {str(count): gain(rates, _compiled(count), bow_name("graph", count)) for count in learners}
    context.record(compiled_over_not=gains)
    race.close()


def compiled(config: "Config") -> list[Spec]:
    settings = {
        n: {"learners": n, "engine": "graph", "compile": True} for n in COMPILED_LEARNERS if n in config.learners
    }
    return [Spec(_compiled(n), "compiling", "bow", MODEL, BATCH, each) for n, each in settings.items()]


def _compiled(learners: int) -> str:
    return f"graph compiled, {learners}"
