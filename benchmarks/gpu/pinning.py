"""Section 5.4 of Budea, 2019: learners' threads on the cores of the GPU's socket, or wherever the system puts them."""

from benchmarks.gpu.machine import UNPINNED
from benchmarks.gpu.parts import Context
from benchmarks.gpu.racing import Race, gain

MODEL, BATCH, LEARNERS = "lenet", 16, 4
PINNED, FREE = "on the cores near the GPU", "on any core"


def measure(context: Context) -> None:
    """Let the two race."""
    race = Race.of(context, MODEL, BATCH)
    free = context.machine.variant(UNPINNED)
    race.bow(PINNED, LEARNERS, engine="streams")
    race.bow(FREE, LEARNERS, device=free, engine="streams")
    cores = {PINNED: len(context.machine.device.cores()), FREE: len(free.cores())}
    context.record(cores=cores)
    rates = race.run(context.settings.repeats, context.settings.stint_s)
    context.record(pinned_over_free=gain(rates, PINNED, FREE))
    race.close()
