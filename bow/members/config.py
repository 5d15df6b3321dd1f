"""The settings of a sweep."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import nn

from bow.members.search import MemberSearch
from bow.members.stopping import Halving, Stop
from bow.members.variant import Variant
from bow.replicas import kind_of
from bow.training.config import PerRound, SchedulerFactory, TrainConfig

Dealing = Literal["own", "shared"]
"""Whether every member has an order of the data of its own, or all see the same batches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepConfig:
    """What all members have in common, and what sets them apart."""

    train: TrainConfig
    variants: Sequence[Variant]
    search: MemberSearch | None = None  # proposes those behind the first
    at_once: int | Literal["auto"] = "auto"
    batches: Dealing = "own"
    stop: Sequence[Stop] = ()
    has_report: bool = True
    jobs: Mapping[str, TrainConfig] = field(default_factory=dict)  # by name, the training that a member stands for
    usual_batches: dict[Hashable, int | None] = field(
        default_factory=dict
    )  # by kind, the samples of all but short ones
    go_on: str = "go on with bow.sweep(..., run=bow.Run('{path}', resume='auto'))"  # said of one that was interrupted

    @property
    def num_members(self) -> int:
        """How many there are."""
        return len(self.variants)

    @property
    def halving(self) -> Halving | None:
        """The rule by which the worse part of members ends."""
        return next((rule for rule in self.stop if isinstance(rule, Halving)), None)

    def kind_of(self, variant: Variant) -> Hashable:
        """Variants of one kind share a matrix: they have models alike, batches of one size, and step in one way."""
        optimizer = kind_of(variant.make_optimizer(self.train.optimizer))
        return repr(sorted(variant.model.items())), variant.batch_size, optimizer

    def batch_size_of(self, variant: Variant) -> int | None:
        """Samples of a member's batches."""
        return self.train.batch_size if variant.batch_size is None else variant.batch_size

    def model_of(self, variant: Variant) -> nn.Module | Callable[[], nn.Module]:
        """A member's model, or what makes it."""
        job = self.jobs.get(variant.name or "")
        return variant.make_model(self.train.model) if job is None else job.model

    def run_dir_of(self, variant: Variant) -> Path | None:
        """The directory that a member's own training named."""
        job = self.jobs.get(variant.name or "")
        return None if job is None or job.run.path is None else Path(job.run.path)

    def order_seed(self, variant: Variant) -> int:
        """The seed of the order in which a member sees its data."""
        return self.train.seed if self.batches == "shared" else variant.seed

    def scheduler_of(self, variant: Variant) -> SchedulerFactory | None:
        """A member's learning-rate scheduler."""
        own = variant.scheduler
        if own is None:
            return self.train.scheduler_factory
        return own.factory if isinstance(own, PerRound) else own

    def is_per_round(self, variant: Variant) -> bool:
        """Whether that is stepped after every round."""
        return isinstance(variant.scheduler, PerRound) if variant.scheduler is not None else self.train.is_per_round
