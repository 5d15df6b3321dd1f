"""What single ideas of the papers bring, each against the same thing without it."""

from typing import Any

from benchmarks.quartiles import Quartiles
from benchmarks.schedule_contestants import python_queue_name, shape
from benchmarks.schedule_races import Times, fastest

RUNTIME = "native runtime over PyTorch, one thread"
EXECUTORS = "native executors over Python's, first come"
CRITICAL = "critical path first over first come"
AT_ONCE = "small operators at once"
STAY = "staying where the operator before ran"
FIXED = "the simulated order over asking each time"
BY_KIND = "strategy 2 over 1: one number of threads a type"
CO_RUNNING = "strategy 3 over 2: side by side"

IDEAS = (RUNTIME, EXECUTORS, CRITICAL, AT_ONCE, STAY, FIXED, BY_KIND, CO_RUNNING)


def effects(race: Times, cores: int) -> dict[str, Any]:
    """How many times as fast a step is with an idea as without, by idea.

    Where several numbers of executors were timed, it is that with which critical path first is fastest.
    """
    shapes = [name.removeprefix("first come, ") for name in race]
    critical = fastest(race, [f"critical path, {each}" for each in shapes])
    with_shape = critical.removeprefix("critical path, ")
    at_once = f"critical path, small at once, {with_shape}"
    compared = {
        RUNTIME: ("sequential, 1 thread", "PyTorch, 1 thread"),
        EXECUTORS: (f"first come, {shape(cores, 1)}", python_queue_name(cores)),
        CRITICAL: (critical, f"first come, {with_shape}"),
        AT_ONCE: (at_once, critical),
        STAY: (f"critical path, stay, {with_shape}", at_once),  # it has small ones at once as well
        FIXED: (f"critical path, fixed order, {with_shape}", critical),
        BY_KIND: ("strategy 2", "strategy 1"),
        CO_RUNNING: ("strategy 3", "strategy 2"),
    }
    return {idea: Quartiles.of_ratios(race[over], race[own]).as_dict(4) for idea, (own, over) in compared.items()}
