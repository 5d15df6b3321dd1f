"""What averaging costs: rounds with a synchronisation task against rounds without.

`never` is `SMA` that is never due: the same kernels for the steps, and no averaging. `Independent` steps in PyTorch,
behind all learners, and so is no measure of averaging alone; it is there because it is what a user would compare with.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.parts import Context
from benchmarks.gpu.racing import Race, spread
from bow.sync import SMA, Independent, Synchroniser

ENGINES = ("graph", "whole_round")
LEARNERS = (2, 4, 8)
NEVER = 2**40

SYNCS: dict[str, Callable[[], Synchroniser]] = {
    "sma": SMA,
    "never": lambda: SMA(every=NEVER),
    "independent": Independent,
}


def measure(context: Context, model: str, batch_size: int) -> None:
    """Let them race, and compare repeat by repeat."""
    settings = context.settings
    race = Race.of(context, model, batch_size)
    cases = [(engine, learners) for learners in (4, 8, 2) if learners in settings.learners for engine in ENGINES]
    for engine, learners in cases:
        for sync, make in SYNCS.items():
            race.bow(_name(engine, learners, sync), learners, engine=engine, sync=make())
    rates = race.run(settings.repeats, settings.stint_s)
    context.record(rows=[row for case in cases if (row := _overhead(rates, *case)) is not None])
    race.close()


def _name(engine: str, learners: int, sync: str) -> str:
    return f"{engine}, {learners}, {sync}"


def _overhead(rates: dict[str, list[float]], engine: str, learners: int) -> dict[str, Any] | None:
    own = {sync: rates.get(_name(engine, learners, sync)) for sync in SYNCS}
    if not own["sma"] or not own["never"]:
        return None
    row: dict[str, Any] = {"engine": engine, "learners": learners}
    for other in ("never", "independent"):
        if others := own[other]:
            overheads = [100 * (base / rate - 1) for rate, base in zip(own["sma"], others, strict=True)]
            row[f"percent_over_{other}"] = spread(overheads, 2)
    return row
