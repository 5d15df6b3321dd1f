"""When members end before their time: patience, and successive halving."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bow.errors import SettingError
from bow.training.metrics import is_higher_better
from bow.training.stopping import StopRule, check_metric, check_rules
from bow.values import whole

BEATEN = ("halving", "pruned")  # why a member ended that others were better than


@dataclass(frozen=True)
class Halving:
    """Successive halving: all members train for a little, the best part goes on for longer, and so on.

    The epochs at which members are compared are `first`, `first * reduction`, `first * reduction**2`, ...; there the
    best `1 / reduction` of them go on. Rows that are freed are refilled, so that the machine stays full.

    Args:
        metric: `"loss"` or the name of a metric of the validation data.
        reduction: the best one of so many goes on.
        first: epochs of every member, at least.
        asynchronous: a member goes on as soon as it is among the best of those that have come so far (ASHA), so that
            none waits for the others; which ones go on then depends on how many train at once.
        higher_is_better: which way; None: as for `bow.EarlyStopping`.

    Raises:
        SettingError: a value that cannot be carried out.

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

    def next_rung(self, epochs: float) -> int:
        """The number of epochs at which a member with so many is compared next."""
        rung = self.first
        while rung <= epochs:
            rung *= self.reduction
        return rung

    def share(self, members: int, epochs: int) -> float:
        """Which part of all epochs of all members comes about."""
        total, before, going, rung = 0, 0, members, self.first
        while before < epochs:
            total += going * (min(rung, epochs) - before)
            before, rung, going = min(rung, epochs), rung * self.reduction, math.ceil(going / self.reduction)
        return total / (members * epochs)

    def num_kept(self, members: int) -> int:
        """How many of those that have come to a rung go on."""
        return members // self.reduction if self.asynchronous else math.ceil(members / self.reduction)

    def best(self, values: Mapping[int, float], count: int) -> list[int]:
        """The members with the best values, by their numbers; of equal ones the first. NaN is never among them."""
        sign = -1 if is_higher_better(self.metric, self.higher_is_better) else 1
        ranked = sorted((sign * value, member) for member, value in values.items() if not math.isnan(value))
        return [member for _, member in ranked[:count]]


Stop = StopRule | Halving


def check_stop(stop: Any) -> Sequence[Stop]:
    rules = check_rules(stop, Stop, "bow.EarlyStopping, bow.Halving")
    if sum(isinstance(rule, Halving) for rule in rules) > 1:
        raise SettingError("stop has two rules of halving; give one")
    return rules
