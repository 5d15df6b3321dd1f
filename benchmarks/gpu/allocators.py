"""Figure 4.2 of Budea, 2019: no caching of memory, one cache for all learners, and one for each learner's stream.

The paper had to write the third; in PyTorch blocks belong to the stream that they were allocated on, so that every
learner of engine `streams` has a cache of its own. All learners on one stream share one, and their kernels take turns.
"""

import math

from benchmarks.gpu.machine import ONE_STREAM
from benchmarks.gpu.parts import Context
from benchmarks.gpu.peers import Spec
from benchmarks.gpu.racing import Race, Runner
from benchmarks.gpu.settings import Config
from benchmarks.gpu.throughput import PEERS_S

MODEL, BATCH, LEARNERS = "lenet", 16, 4
BY_STREAM, SHARED, UNCACHED = "a cache for each learner's stream", "one cache and one stream for all", "no cache"
EAGER, EAGER_UNCACHED = "eager", "eager, no cache"
SAME_ROUNDS = (BY_STREAM, SHARED, UNCACHED)


def measure(context: Context) -> None:
    """Let them race; before that, after as many rounds of all on the same batches, losses have to be the same."""
    race = Race.of(context, MODEL, BATCH)
    race.bow(BY_STREAM, LEARNERS, engine="streams")
    race.bow(SHARED, LEARNERS, device=context.machine.variant(ONE_STREAM), engine="streams")
    race.bow(EAGER, LEARNERS, engine="eager")
    race.peers(PEERS_S, {spec.name: LEARNERS for spec in peers(context.settings)})
    # All of them have made as many rounds by now to get warm.
    context.record(losses={name: _loss(race.runners[name]) for name in SAME_ROUNDS if name in race.runners})
    race.run(context.settings.repeats, context.settings.stint_s)
    race.close()


def peers(settings: Config) -> list[Spec]:
    """Those without a cache."""
    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return [
        Spec(name, "allocators", "bow", MODEL, BATCH, {"learners": LEARNERS, "engine": engine}, uncached)
        for name, engine in ((UNCACHED, "streams"), (EAGER_UNCACHED, "eager"))
    ]


def _loss(runner: Runner) -> float | None:
    loss = runner.loss()
    return round(loss, 6) if math.isfinite(loss) else None
