"""How partitions are searched for."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from bow.errors import SettingError
from bow.planning.search.metropolis import TEMPERATURE, Limits
from bow.planning.search.search_space import DeviceLists
from bow.values import number, processes, whole, whole_seed

Moves: TypeAlias = Literal["paper", "symmetric", "guided"]  # what walks change next

MOVES: tuple[Moves, ...] = ("paper", "symmetric", "guided")

STARTS = ("data", "expert", "random", "model", "single", "optcnn")  # what a walk may start from

DESCENT = 0.3  # this part of a budget is kept for going down from the best partition of each walk


@dataclass(frozen=True)
class SearchSettings:
    """How partitions are searched for.

    Attributes:
        budget_s: seconds in all; None: walks end by their patience or number of proposals.
        proposals: of each walk; None: as many as there is time for.
        patience: a walk ends when nothing better was found for this part of it; None: it does not. Trials have none.
        temperature: see `metropolis`.
        starts: what walks start from: one walk for each and each number of learners; a name may stand several times,
            or one name alone.
        trial: a process with several walks divides this part of its time among them, in rounds after each of which
            the better half goes on, and goes on from the best partition for the rest; 0, or with `proposals`: all is
            divided among them, as in the paper.
        learners: numbers of learners to choose from, or one number: so many groups of equal size are made of the
            devices, one for each learner.
        seed: of all random numbers.
        processes: that walk at the same time.
        devices: which lists of devices are tried, see `SplitSpace`.
        even: tiles must have equal sizes.
        moves: `"paper"`: any operator gets any split; `"symmetric"`: families of operators that are alike, too, as
            likely forth as back; `"guided"`: guesses at what could be better, see `GuidedProposals`.
        descend: whether the best partitions are improved until no neighbour is better or the budget is spent.

    Raises:
        SettingError: a value outside its range.
    """

    budget_s: float | None = 30.0
    proposals: int | None = None
    patience: float | None = 0.5
    temperature: float = TEMPERATURE
    starts: tuple[str, ...] = ("data", "expert", "single", "random")
    trial: float = 0.4
    learners: tuple[int, ...] = (1,)
    seed: int = 0
    processes: int = 1
    devices: DeviceLists = "auto"
    even: bool = False
    moves: Moves = "guided"
    descend: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", _listed(self.starts))
        object.__setattr__(self, "learners", _listed(self.learners))
        unknown = next((start for start in self.starts if start not in STARTS), None)
        if unknown is not None or not self.starts:
            raise SettingError(f"starts must be of {', '.join(STARTS)}, got {unknown if self.starts else 'none'}")
        if self.moves not in MOVES:
            raise SettingError(f"moves must be one of {', '.join(MOVES)}, got {self.moves!r}")
        if self.devices not in get_args(DeviceLists):
            raise SettingError(f"devices must be one of {', '.join(get_args(DeviceLists))}, got {self.devices!r}")
        if not isinstance(self.even, bool):
            raise SettingError(f"even must be true or false, got {self.even!r}")
        Limits(self.budget_s, self.proposals, self.patience)
        number("temperature", self.temperature, least=0, remedy=f"{TEMPERATURE} is usual")
        number("trial", self.trial, least=0, below=1, remedy="0.4 is usual")
        if not self.learners:
            raise SettingError("learners must list numbers of at least 1, got none")
        object.__setattr__(self, "learners", tuple(whole("learners", count) for count in self.learners))
        processes("processes", self.processes, os.cpu_count() or 1)
        object.__setattr__(self, "seed", whole_seed(self.seed))


def _listed(values: Any) -> tuple[Any, ...]:
    """Several values, or one alone, as several."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)
