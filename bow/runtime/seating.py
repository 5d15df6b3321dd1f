"""What a schedule makes of executors: their cores and threads, and what operators wait for on their account."""

from collections.abc import Sequence
from dataclasses import dataclass

from bow.devices import core_sets
from bow.schedule import Schedule


@dataclass(frozen=True)
class Seating:
    """Executors for a schedule.

    Attributes:
        order: by executor: the operators that it runs, each on one executor only; empty where there is no order.
        waits: operators that share executors: which others they wait for though they read nothing of theirs.
        operator_threads: by operator; empty: as many as its executor has.
        cores: by executor: those that its thread, and those that it starts, keep to.
        threads: by executor: the most that one of its operators uses.
    """

    order: tuple[tuple[int, ...], ...]
    waits: dict[int, list[int]]
    operator_threads: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    threads: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule, operators: int, cores: Sequence[Sequence[int]] | None = None) -> "Seating":
        """The executors of a schedule that fits."""
        own = tuple(map(tuple, core_sets(list(schedule.threads)) if cores is None else cores))
        order, waits = schedule.on_executors()
        holds = schedule.executors_of(operators)
        if all(len(held) <= 1 for held in holds):
            return cls(tuple(map(tuple, order)), waits, (), own, schedule.threads)
        threads = tuple(sum(schedule.threads[each] for each in held) for held in holds)
        # The threads that an operator shares its work with keep to the cores of the executor that starts them.
        reach = [
            {*mine, *(core for index in lane for each in holds[index] for core in own[each])}
            for mine, lane in zip(own, order, strict=True)
        ]
        most = tuple(
            max((threads[index] for index in lane), default=least)
            for lane, least in zip(order, schedule.threads, strict=True)
        )
        return cls(tuple(map(tuple, order)), waits, threads, tuple(tuple(sorted(cores)) for cores in reach), most)
