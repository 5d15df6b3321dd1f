"""The result of a sweep: members, the best one, their ensemble, comparisons of settings."""

import functools
import itertools
import math
import operator
import signal
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from bow.errors import SettingError
from bow.members.member import Member
from bow.members.stopping import BEATEN
from bow.observe.text import gap_text, interval_text
from bow.training.metrics import Metric, is_higher_better
from bow.values import shortened

CONFIDENCE = 0.95
MOST_NAMED = 8  # members listed in a message

Combine = Literal["probabilities", "sigmoid", "outputs"]  # an ensemble averages softmax, sigmoid, or raw outputs


class Difference(NamedTuple):
    """Paired difference between two values of a setting, over members with otherwise equal settings.

    Attributes:
        low: the first value of the setting.
        high: the second value.
        mean: mean of the differences, `high` minus `low`.
        interval: 95 % confidence interval of the mean (Student's t); infinite with one pair.
        pairs: number of pairs.
    """

    low: Any
    high: Any
    mean: float
    interval: tuple[float, float]
    pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval[0] > 0 or self.interval[1] < 0


class Differences(list[Difference]):
    """Paired differences between all values of a setting, as a list."""

    def __init__(self, setting: str, metric: str, differences: Sequence[Difference]) -> None:
        super().__init__(differences)
        self.setting = setting
        self.metric = metric

    def __str__(self) -> str:
        lines = [f"{self.metric} by {self.setting}, paired, 95 % intervals"]
        for each in self:
            interval = interval_text(self.metric, *each.interval)
            lines.append(f"  {each.high} - {each.low}: {gap_text(self.metric, each.mean)} ({interval}, n={each.pairs})")
        return "\n".join(lines)

    __repr__ = __str__


class Ensemble(nn.Module):
    """An ensemble: a module that averages the predictions of several models.

    Args:
        models: the modules.
        combine: what to average: `"probabilities"` (softmax), `"sigmoid"`, or `"outputs"`.

    Example:
        >>> both = Ensemble([nn.Identity(), nn.Flatten()], "outputs")
        >>> both(torch.ones(2, 3)).shape
        torch.Size([2, 3])

    References:
        Lakshminarayanan, Pritzel, Blundell, Simple and Scalable Predictive Uncertainty Estimation using Deep
        Ensembles, 2017.
    """

    def __init__(self, models: Sequence[nn.Module], combine: Combine) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.combine = combine

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the mean over the models of probabilities or outputs."""
        return self.each(*args, **kwargs).mean(0)

    def spread(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the standard deviation over the models of probabilities or outputs; 0 with one model."""
        return self.each(*args, **kwargs).std(0, correction=min(1, len(self.models) - 1))

    def each(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the probabilities or outputs of every model `[models, batch, ...]`."""
        outputs = torch.stack([model(*args, **kwargs) for model in self.models])
        if self.combine == "probabilities":
            return outputs.softmax(2 if outputs.dim() > 2 else -1)
        return outputs.sigmoid() if self.combine == "sigmoid" else outputs


@dataclass(frozen=True, eq=False)
class Sweep:
    """The result of `bow.sweep`.

    Attributes:
        members: the members, in the order of the variants.
        run_dir: run directory, which contains the folders of the members.
        report_path: HTML page with curves, the table of members and comparisons; None: it could not be written.
        seconds: time from the first round to the end, including evaluation.
        engine: engine that ran the members, after any fallback.
        at_once: number of members that trained concurrently.
        throughput: training samples per second of all members together.
        interrupted_by: signal that interrupted the sweep, with `on_interrupt="return"`.
    """

    members: list[Member]
    run_dir: Path
    seconds: float
    engine: str
    at_once: int
    throughput: float
    loss: Any = field(default=None, repr=False)
    metrics: Sequence[Metric] = field(default=(), repr=False)
    report_path: Path | None = None
    interrupted_by: signal.Signals | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __getitem__(self, name: str | int) -> Member:
        names, number = [member.name for member in self.members], name
        if name in names:
            number = names.index(str(name))
        if hasattr(number, "__index__") and -len(names) <= (index := operator.index(number)) < len(names):
            return self.members[index]
        known = f"{', '.join(names[:MOST_NAMED])}{', ...' * (len(names) > MOST_NAMED)} (0 to {len(names) - 1})"
        raise SettingError(f"there is no member {shortened(name)}; there are {known}")

    @property
    def metric(self) -> str:
        """Name of the value that ranks members: the first metric of the validation data, else the loss."""
        measured = {name for member in self.members for name in member.metrics}
        return next((metric.name for metric in self.metrics if metric.name in measured), "loss")

    @property
    def varying(self) -> list[str]:
        """Names of the settings in which members differ, except the seed."""
        values = [member.variant.values for member in self.members]
        names = dict.fromkeys(name for each in values for name in each if name != "seed")
        return [name for name in names if len({repr(each.get(name)) for each in values}) > 1]

    @property
    def best(self) -> Member:
        """The member with the best final value, among those not ended by halving or pruning."""
        return self.ranked()[0]

    def ranked(self, metric: str | None = None) -> list[Member]:
        """Return the members, best first; those ended by halving or pruning after the others, diverged ones last."""
        name = metric or self.metric
        self._check_has(name)
        ways = {metric.name: metric.higher_is_better for metric in self.metrics}
        sign = -1 if is_higher_better(name, ways.get(name)) else 1

        def key(member: Member) -> tuple[bool, float, float, int]:
            value = member.value(name)
            halved = -member.epochs if member.stopped in BEATEN else -math.inf
            return member.stopped == "diverged" or math.isnan(value), halved, sign * value, member.number

        return sorted(self.members, key=key)

    @property
    def ensemble(self) -> Ensemble:
        """Ensemble of all members with a model, except those that diverged or were ended by halving or pruning."""
        models = [m.model for m in self.members if m.model is not None and m.stopped not in ("diverged", *BEATEN)]
        if not models:
            raise SettingError("no member has a model that is complete and finite; see `stopped` of the members")
        return Ensemble(models, combine_for(self.loss))

    def mean(self, metric: str | None = None) -> tuple[float, float]:
        """Return mean and standard deviation of a value over the members; NaN if a member has no value."""
        name = metric or self.metric
        self._check_has(name)
        values = torch.tensor([member.value(name) for member in self.members], dtype=torch.float64)
        return float(values.mean()), float(values.std()) if len(values) > 1 else 0.0

    def compare(self, setting: str, metric: str | None = None) -> Differences:
        """Compare the values of a setting by paired differences between members with otherwise equal settings.

        If halving or pruning ended one member of a pair, both are compared after as many epochs as the shorter one
        trained. Diverged members are left out.
        Folds share training samples, so that over folds, intervals are too narrow (Nadeau and Bengio, 2003).

        Args:
            setting: name of a setting of the variants, such as `"lr"`.
            metric: name of a value; None: the first metric of the validation data, else the loss.

        Raises:
            SettingError: no member has the setting, or there are no pairs.
        """
        name = metric or self.metric
        self._check_has(name)
        known = sorted({key for member in self.members for key in member.variant.values})
        if setting not in known:
            raise SettingError(f"no variant has a setting {setting!r}; there are {', '.join(known)}")
        beside = {setting, *(self._settings_of_optimizers() if setting == "optimizer" else ())}
        by_value: dict[str, dict[str, Member]] = {}
        shown: dict[str, Any] = {}
        for member in self.members:
            values = dict(member.variant.values)
            own = values.get(setting)
            alike = sorted(each for each in values.items() if each[0] not in beside)
            shown[repr(own)] = own
            if member.stopped != "diverged":
                parts = id(member.variant.train_on), id(member.variant.validate_on)
                by_value.setdefault(repr(own), {})[repr((alike, parts))] = member
        differences = []
        for low, high in itertools.combinations(by_value, 2):
            both = [key for key in by_value[low] if key in by_value[high]]
            gaps = [_gap(by_value[low][key], by_value[high][key], name) for key in both]
            if gaps := [gap for gap in gaps if math.isfinite(gap)]:
                mean, interval = statistics.fmean(gaps), _interval(gaps)
                differences.append(Difference(shown[low], shown[high], mean, interval, len(gaps)))
        if not differences:
            raise SettingError(f"no two members differ in {setting!r} alone; give them the same seeds and samples")
        return Differences(setting, name, differences)

    def _settings_of_optimizers(self) -> set[str]:
        by_optimizer: dict[str, dict[str, set[str]]] = {}
        for variant in (member.variant for member in self.members):
            values, keywords = variant.values, getattr(variant.optimizer, "keywords", {})
            own = by_optimizer.setdefault(repr(values.get("optimizer")), {})
            for name in {*variant.settings, *keywords}:
                own.setdefault(name, set()).add(repr(values[name]))
        names = {name for own in by_optimizer.values() for name in own}
        return {name for name in names if all(len(own.get(name, ())) < 2 for own in by_optimizer.values())}

    def _check_has(self, name: str) -> None:
        known = dict.fromkeys(("loss", "train_loss", "lr", *(key for member in self.members for key in member.metrics)))
        if name not in known:
            raise SettingError(f"members have no value {name!r}; there are {', '.join(known)}")


def combine_for(loss: Any) -> Combine:
    while isinstance(loss, functools.partial):
        loss = loss.func
    name = getattr(loss, "__name__", type(loss).__name__)
    if name in ("cross_entropy", "CrossEntropyLoss"):
        return "probabilities"
    if name in ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"):
        return "sigmoid"
    return "outputs"


def _gap(low: Member, high: Member, name: str) -> float:
    is_beaten = low.stopped in BEATEN or high.stopped in BEATEN
    epochs = min(low.epochs, high.epochs) if is_beaten else math.inf
    return high.value(name, epochs) - low.value(name, epochs)


def _interval(gaps: Sequence[float]) -> tuple[float, float]:
    mean, count = statistics.fmean(gaps), len(gaps)
    if count < 2:
        return -math.inf, math.inf
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(gaps) / math.sqrt(count)
    return mean - half, mean + half
