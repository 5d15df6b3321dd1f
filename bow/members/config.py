"""The settings of a sweep."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import Tensor

from bow.members.member import MemberSearch, Progress, Variant
from bow.members.stopping import Halving, Stop
from bow.replicas import kind_of
from bow.training.config import TrainConfig
from bow.training.evaluation import BestEvaluation
from bow.training.stopping import StopRule

Dealing = Literal["own", "shared"]  # a separate data order for each member, or the same batches for all


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepConfig:
    """Settings common to all members, and the variants."""

    train: TrainConfig
    variants: Sequence[Variant]
    search: MemberSearch | None = None  # proposes variants after the first one
    at_once: int | Literal["auto"] = "auto"
    batches: Dealing = "own"
    cluster: Literal["ray"] | None = None
    part_of: int | None = None  # number of members of the whole sweep, if this is a part on a worker
    stop: Sequence[Stop] = ()
    has_report: bool = True
    jobs: Mapping[str, TrainConfig] = field(default_factory=dict)  # by name, the training a member replaces
    # by kind, the size of all batches except short ones
    usual_batches: dict[Hashable, int | None] = field(default_factory=dict)
    # by kind, the rounds of the longest member, which decide whether compiling pays off for all
    most_rounds: dict[Hashable, int | None] = field(default_factory=dict)
    parts: dict[bytes, Tensor] = field(default_factory=dict)  # by digest, sample indices: equal ones share a tensor
    _own: dict[str | None, TrainConfig] = field(default_factory=dict, init=False)  # by name, cache of `of`
    go_on: str = "resume with bow.sweep(..., run=bow.Run('{path}', resume='auto'))"  # message after an interruption

    @property
    def num_members(self) -> int:
        return len(self.variants)

    @property
    def has_learners(self) -> bool:
        return self.train.num_learners not in (1, "auto")

    @property
    def halving(self) -> Halving | None:
        return next((rule for rule in self.stop if isinstance(rule, Halving)), None)

    @property
    def rules(self) -> list[StopRule]:
        """Rules that also apply to a single training."""
        return [rule for rule in self.stop if not isinstance(rule, Halving)]

    @property
    def engine_name(self) -> str:
        """What runs members: `"auto"` is `graph`."""
        return "graph" if self.train.engine.name == "auto" else self.train.engine.name

    def kind_of(self, variant: Variant) -> Hashable:
        """Return a key of variants that can share a matrix: same model shape, batch size and optimizer kind."""
        return repr(sorted(variant.model.items())), variant.batch_size, kind_of(self.of(variant).optimizer)

    def of(self, variant: Variant) -> TrainConfig:
        if variant.name not in self._own:
            train, job = self.train, self.jobs.get(variant.name or "")
            self._own[variant.name] = dataclasses.replace(
                train,
                model=variant.make_model(train.model) if job is None else job.model,
                optimizer=variant.make_optimizer(train.optimizer),
                scheduler=variant.scheduler or train.scheduler,
                batch_size=variant.batch_size or train.batch_size,
                seed=variant.seed,
                source=None if job is None else job.source,
            )
        return self._own[variant.name]

    def batch_size_of(self, variant: Variant) -> int | None:
        return self.of(variant).batch_size or self.usual_batches.get(self.kind_of(variant))

    def best_of(self, progress: Progress) -> BestEvaluation:
        return BestEvaluation(self.rules, self.train.validation.metrics, progress.best)

    def run_dir_of(self, variant: Variant) -> Path | None:
        """Return the run directory of the training that a member replaces, if it names one."""
        job = self.jobs.get(variant.name or "")
        return None if job is None or job.run.path is None else Path(job.run.path)
