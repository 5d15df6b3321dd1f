"""Successive halving: compare members at rungs, and end the worse ones early."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bow.errors import SettingError
from bow.members.member import Member, Progress
from bow.training.metrics import is_higher_better
from bow.training.stopping import StopRule, check_metric, check_rules, value_of
from bow.values import shortened, whole

BEATEN = ("halving", "pruned")  # values of `stopped` for members ended because others were better


@dataclass(frozen=True)
class Halving:
    """Successive halving: compare members at increasing numbers of epochs, and end all but the best.

    Members are compared after `first`, `first * reduction`, `first * reduction**2`, ... epochs (the rungs), where the
    best `1 / reduction` of them continue. Free rows are given to waiting members.

    Args:
        metric: `"loss"` or the name of a metric of the validation data.
        reduction: one of this many members continues.
        first: epochs before the first comparison.
        asynchronous: continue a member as soon as it is among the best that have reached the rung so far (ASHA),
            without waiting for the others; which members continue then depends on how many train at once. When all
            wait, the best `1 / reduction` of the lowest rung continue.
        higher_is_better: direction of the metric; None: as for `bow.EarlyStopping`.

    Raises:
        SettingError: a value is not valid.

    Example:
        >>> Halving(reduction=3).next_rung(3)
        9

    References:
        Jamieson, Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, 2016.
        Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020 (ASHA).
    """

    metric: str = "loss"
    reduction: int = 3
    first: int = 1
    asynchronous: bool = False
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        check_metric(self.metric, self.higher_is_better)
        whole("reduction", self.reduction, least=2)
        whole("first", self.first)
        if not isinstance(self.asynchronous, bool):
            raise SettingError(f"asynchronous must be True or False, got {shortened(self.asynchronous)}")

    def next_rung(self, epochs: float) -> int:
        """Return the next rung of a member that has trained this many epochs."""
        rung = self.first
        while rung <= epochs:
            rung *= self.reduction
        return rung

    def share(self, members: int, epochs: int) -> float:
        """Return the fraction of all members' epochs that is trained."""
        total, before, going, rung = 0, 0, members, self.first
        while before < epochs:
            total += going * (min(rung, epochs) - before)
            before, rung, going = min(rung, epochs), rung * self.reduction, math.ceil(going / self.reduction)
        return total / (members * epochs)

    def num_kept(self, members: int) -> int:
        """Return how many of the members at a rung continue, if no others come to it."""
        return math.ceil(members / self.reduction)

    def best(self, values: Mapping[int, float], count: int) -> list[int]:
        """Return the numbers of the members with the best values; ties by number. NaN is never included."""
        sign = -1 if is_higher_better(self.metric, self.higher_is_better) else 1
        ranked = sorted((sign * value, member) for member, value in values.items() if not math.isnan(value))
        return [member for _, member in ranked[:count]]


Stop = StopRule | Halving


def check_stop(stop: Any) -> Sequence[Stop]:
    rules = check_rules(stop, Stop, "bow.EarlyStopping, bow.Halving")
    if sum(isinstance(rule, Halving) for rule in rules) > 1:
        raise SettingError("stop contains several bow.Halving rules; keep one")
    return rules


class Rungs:
    """Values of members at each rung, and the members that wait there; `members` are all, with their histories."""

    def __init__(self, rule: Halving, members: Sequence[Member], under_way: Container[int] = ()) -> None:
        self.paused: dict[int, Progress] = {}
        self._rule = rule
        self._values: dict[int, dict[int, float]] = {}  # by rung and member
        for member in members:
            self._recall(member, member.number not in under_way)

    def admit(self, waiting: Iterable[Progress]) -> list[Progress]:
        """Return the members to train; keep those that waited at a rung when the sweep was interrupted."""
        admitted = []
        for each in waiting:
            each.rung = each.rung or self._rule.first
            if each.epoch < each.rung:
                admitted.append(each)
            else:
                self.paused[each.member.number] = each
        return admitted

    def note(self, member: Member, rung: int) -> None:
        """Record a member's value at a rung; members that ended before it count as well."""
        is_lost = member.stopped == "diverged" or not member.history
        value = math.nan if is_lost else value_of(member.history[-1], self._rule.metric)
        self._values.setdefault(rung, {})[member.number] = value

    def pause(self, progress: Progress) -> list[Progress]:
        """Pause a member at its rung; return the members that continue now."""
        self.note(progress.member, progress.rung)
        self.paused[progress.member.number] = progress
        if not self._rule.asynchronous:
            return []
        values = self._values[progress.rung]
        best = self._rule.best(values, len(values) // self._rule.reduction)
        return [self._go_on(n) for n in best if n in self.paused and self.paused[n].rung == progress.rung]

    def decide(self) -> tuple[list[Progress], list[Progress]]:
        """Decide the lowest rung with waiting members; return those that continue, and those that end."""
        rung = min(each.rung for each in self.paused.values())
        values = self._values[rung]
        best = self._rule.best(values, self._rule.num_kept(len(values)))
        here = [number for number, each in self.paused.items() if each.rung == rung]
        going_on = [self._go_on(number) for number in here if number in best]
        return going_on, [self.paused.pop(number) for number in here if number not in best]

    def _go_on(self, number: int) -> Progress:
        progress = self.paused.pop(number)
        progress.rung = self._rule.next_rung(progress.epoch)
        return progress

    def _recall(self, member: Member, has_ended: bool) -> None:
        rung, is_at_rung = self._rule.first, False
        for record in member.history:
            is_at_rung = record["epoch"] >= rung
            if is_at_rung:
                self._values.setdefault(rung, {})[member.number] = value_of(record, self._rule.metric)
                rung = self._rule.next_rung(record["epoch"])
        if member.stopped == "diverged" or (has_ended and member.stopped != "halving" and not is_at_rung):
            self.note(member, rung)
