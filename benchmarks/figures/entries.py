"""Who is measured: plain PyTorch, or bow with so many learners."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import counted
from bow.sync import SMA, Independent, Synchroniser

PYTORCH, BOW = "pytorch", "bow"
PLAIN_TITLE = "plain PyTorch"
INDEPENDENT, AVERAGED = "independent", "SMA"

SYNCS: dict[str, Callable[[], Synchroniser]] = {INDEPENDENT: Independent, AVERAGED: SMA}
SYNC_TITLES = {INDEPENDENT: "no synchronisation", AVERAGED: "SMA"}

Row = Mapping[str, Any]  # What was measured of an entry, as plain values, the fields of `Entry` among them


@dataclass(frozen=True)
class Entry:
    """What is measured."""

    batch_size: int  # samples per batch; for bow, per learner
    learners: int | None = None  # of bow, on each device; None for plain PyTorch
    sync: str | None = None  # what keeps the learners together, a name in `SYNCS`; None for plain PyTorch
    devices: int = 1  # how many train

    @property
    def system(self) -> str:
        """`"pytorch"` or `"bow"`."""
        return PYTORCH if self.learners is None else BOW

    def synchroniser(self) -> Synchroniser:
        """A new one, of bow."""
        assert self.sync is not None
        return SYNCS[self.sync]()

    def as_dict(self) -> dict[str, Any]:
        """The entry as plain values."""
        return {"system": self.system, **asdict(self)}


def bow_entries(
    batch_size: int, learners: Iterable[int], syncs: Iterable[str], devices: Iterable[int] = (1,)
) -> list[Entry]:
    """Entries of bow with all of these."""
    return [Entry(batch_size, k, sync, n) for n in devices for sync in syncs for k in learners]


def title(row: Row) -> str:
    """Plain PyTorch, or bow with its learners."""
    return PLAIN_TITLE if row["system"] == PYTORCH else f"bow, {counted(row['learners'], 'learner')}"


def matches(row: Row, pick: Mapping[str, Any]) -> bool:
    """Whether the row has all of these values."""
    return all(row[field] == value for field, value in pick.items())
