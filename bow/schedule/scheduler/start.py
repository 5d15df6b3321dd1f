"""What a scheduler of operators says, and what it hears."""

import dataclasses
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, repr=False)
class Start:
    """Run an operator, now.

    Attributes:
        operator: its number.
        executor: whose thread runs it. Where executors are cores, the lowest of its cores; the executors of second
            hardware threads follow behind those of all cores.
        threads: how many it uses.
        cores: the logical cores that it holds, ascending; none where every executor has cores of its own.
        sibling: it runs on the second hardware thread of its core, beside whatever holds the core.

    Example:
        >>> Start(4, executor=1), Start(5, executor=0, threads=2, cores=(0, 1))
        (Start(operator=4, executor=1), Start(operator=5, executor=0, threads=2, cores=(0, 1)))
    """

    operator: int
    executor: int
    threads: int = 1
    cores: tuple[int, ...] = ()
    sibling: bool = False

    def __repr__(self) -> str:
        told = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return f"Start({', '.join(f'{field.name}={value!r}' for field, value in told if value != field.default)})"


class Scheduler(Protocol):
    """Decides, when operators have finished, which ones start.

    A step begins with `start` and is over when `done`. A runtime, the simulator and tests drive the same object. Those
    that do not plan with times do not look at the clock.
    """

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step; what can be run at once."""

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """Hear that an operator has finished, and say what can be run now."""
