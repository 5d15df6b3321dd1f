"""Members of a sweep, their progress, and the interface of searches that propose them."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from bow.members.variant import Variant
from bow.training.evaluation import BestModel


class Member:
    """One member of a sweep: a variant, its training history and its model.

    Attributes:
        number: index among the variants.
        variant: the settings that differ from those of the sweep.
        name: name of the member.
        model: the model, a plain module in evaluation mode, on the CPU; None if it never trained. If the member
            diverged, its weights or buffers need not be finite.
        best: the model at its best evaluation, as `result.best` of `bow.train`; also saved as `best.safetensors` in its
            folder unless it is the last model. None if no evaluation had a value.
        history: one record per epoch: `train_loss`, `lr`, and the values of the validation data.
        stopped: why it ended early: `"diverged"`, `"patience"`, `"halving"`, `"target"`, `"interrupted"`, or the
            reason returned by a custom rule (`"pruned"`: by Optuna); None: it did not.
        engine: name of the engine that ran it.
        run_dir: folder with its settings, records and model.
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
        self.engine = ""
        self.run_dir = run_dir

    def __repr__(self) -> str:
        ended = f", stopped={self.stopped!r}" if self.stopped else ""
        return f"Member({self.name!r}, epochs={self.epochs:g}{ended})"

    @property
    def epochs(self) -> float:
        """Epochs trained."""
        return self.history[-1]["epoch"] if self.history else 0

    @property
    def metrics(self) -> dict[str, float]:
        """Values of the validation data after the last epoch, by name."""
        from bow.observe.records import metrics

        return metrics(self.history[-1]) if self.history else {}

    def value(self, name: str, epochs: float = math.inf) -> float:
        """Return a value after the last epoch, or the last one up to `epochs`; NaN if it is missing.

        Without validation data, `loss` is the training loss.
        """
        last: Mapping[str, Any] = next((record for record in reversed(self.history) if record["epoch"] <= epochs), {})
        value = last.get(name, last.get("train_loss") if name == "loss" else None)
        return math.nan if value is None else float(value)


@dataclass
class Progress:
    """Progress of a member that is training or waits for a row."""

    member: Member
    kind: Hashable  # members of one kind share a matrix
    round: int = 0
    samples: int = 0
    epoch: int = 0
    rung: int = 0  # epochs at the next comparison with others; 0: never
    state: Mapping[str, Any] | None = None  # training state to resume from, while it is on no row
    best: dict[str, Any] = field(default_factory=dict)  # its best evaluation so far, as `BestEvaluation` keeps it
    scheduler: LRScheduler | None = None
    losses: list[Tensor] = field(default_factory=list)  # of the rounds of this epoch


@runtime_checkable
class MemberSearch(Protocol):
    """Protocol of objects that propose members of a sweep as rows become free: `bow.sweep(variants=search)`.

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
        """Return the variant of the next member; None: there are no more."""

    def tell(self, member: Member) -> None:
        """Receive a member that has ended; `member.stopped` is the reason if it ended early."""
