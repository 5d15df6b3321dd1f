"""A member: a training of its own, among others that it owes nothing; and what proposes members one by one."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from bow.members.variant import Variant
from bow.training.best import BestModel


class Member:
    """One model of a sweep.

    Attributes:
        number: its place among the variants.
        variant: what sets it apart.
        name: what it is called.
        model: its model, a plain module in evaluation mode, on the CPU; None where it never got a row; of a member
            that diverged, the model as it was then, whose weights or buffers need not be finite.
        best: the model as it was at its best evaluation, as `result.best` of `bow.train` has it; also in
            `best.safetensors` of its folder, where it is not the last. None where no evaluation had a value.
        history: one record per epoch: `train_loss`, `lr`, and the values of the validation data.
        stopped: why it ended before its time: `"diverged"`, `"patience"`, `"halving"`, `"target"`, `"interrupted"`, or
            what a rule of the user's said (`"pruned"`: by Optuna); None: it did not.
        run_dir: where its settings, records and model are.
    """

    def __init__(self, number: int, variant: Variant, run_dir: Path) -> None:
        assert variant.name is not None
        self.number = number
        self.variant = variant
        self.name: str = variant.name
        self.model: nn.Module | None = None
        self.best: BestModel | None = None
        self.history: list[dict[str, Any]] = []
        self.stopped: str | None = None
        self.run_dir = run_dir

    def __repr__(self) -> str:
        ended = f", stopped={self.stopped!r}" if self.stopped else ""
        return f"Member({self.name!r}, epochs={self.epochs:g}{ended})"

    @property
    def epochs(self) -> float:
        """Passes over its data."""
        return self.history[-1]["epoch"] if self.history else 0

    @property
    def metrics(self) -> dict[str, float]:
        """The last epoch's values of the validation data, by name."""
        from bow.observe.records import metrics

        return metrics(self.history[-1]) if self.history else {}

    def value(self, name: str, epochs: float = math.inf) -> float:
        """The value of this name after the last epoch, or the last within so many; NaN where that has none.

        Of `loss` without validation data it is that of training.
        """
        last: Mapping[str, Any] = next((record for record in reversed(self.history) if record["epoch"] <= epochs), {})
        value = last.get(name, last.get("train_loss") if name == "loss" else None)
        return math.nan if value is None else float(value)


@dataclass
class Progress:
    """How far a member is that is on a row, or waits for one."""

    member: Member
    kind: Hashable  # members of one kind share a matrix
    round: int = 0
    samples: int = 0
    epoch: int = 0
    rung: int = 0  # epochs at which it is compared with others next; 0: never
    state: Mapping[str, Any] | None = None  # what it takes to go on, while it is on no row
    best: dict[str, Any] = field(default_factory=dict)  # its best evaluation so far, as `BestEvaluation` keeps it
    scheduler: LRScheduler | None = None
    losses: list[Tensor] = field(default_factory=list)  # of the epoch's rounds


@runtime_checkable
class MemberSearch(Protocol):
    """Proposes the members of a sweep as rows become free: `bow.sweep(variants=search)`.

    Example:
        >>> class Doubling:
        ...     lr = 0.01
        ...     def ask(self):
        ...         self.lr *= 2
        ...         return Variant(settings={"lr": self.lr}) if self.lr < 1 else None
        ...     def tell(self, member):
        ...         print(member.name, member.value("loss"))
        >>> isinstance(Doubling(), MemberSearch)
        True
    """

    def ask(self) -> Variant | None:
        """The next member; None: there are no more."""

    def tell(self, member: Member) -> None:
        """A member has ended; `stopped` says whether before its time."""
