"""Variants, the members of a sweep that they make, and the interface of searches that propose them."""

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from bow.errors import SettingError, reason
from bow.observe.records import metrics, plain
from bow.replicas import OptimizerFactory
from bow.training.config import PerRound, SchedulerFactory
from bow.training.epoch import TaskValues
from bow.training.evaluation import BestModel
from bow.values import shortened, whole, whole_seed

ModelFactory: TypeAlias = Callable[..., nn.Module]
Indices: TypeAlias = Sequence[int] | Tensor

INDICES = "a list or tensor of sample indices, or a mask"
OWN = ("seed", "batch_size", "model", "optimizer", "scheduler")  # fields set by `grid`; others: optimizer's
FOLD = "fold"  # key of a variant in the settings of a sweep: index of its training and held-out samples (fold)
FOLDER = "folder"  # key of a variant in the settings of a sweep: its directory, if outside those of members
TAKEN = (*OWN, "name", FOLD, FOLDER)  # in settings, keywords of the model with these names get a prefix


@dataclass(frozen=True, kw_only=True, eq=False)
class Variant:
    """The settings of one member of a sweep that differ from those of the sweep.

    Args:
        seed: seed of the initial weights, the data order, and the random numbers drawn in training.
        settings: keyword arguments for the optimizer factory, such as `{"lr": 0.02}`.
        optimizer: optimizer factory; None: the sweep's.
        scheduler: learning-rate scheduler; None: the sweep's.
        batch_size: batch size; None: the sweep's.
        model: keyword arguments for the model factory, such as `{"width": 64}`.
        train_on: indices of the training samples; None: all.
        validate_on: indices of samples of the training data to evaluate on, those of `bow.data.ShiftedAndMirrored`
            without random changes; None: the sweep's validation data.
        name: name of the member; None: derived from its settings.

    Raises:
        SettingError: a value is not valid.

    Example:
        >>> Variant(seed=3, settings={"lr": 0.02}).values
        {'seed': 3, 'lr': 0.02}
    """

    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    optimizer: OptimizerFactory | None = None
    scheduler: SchedulerFactory | PerRound | None = None
    batch_size: int | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    train_on: Indices | None = None
    validate_on: Indices | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_seed(self.seed))
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", whole("batch_size", self.batch_size))
        for name in ("settings", "model"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise SettingError(f"{name} of a variant must be a mapping with string keys, got {shortened(value)}")
        object.__setattr__(self, "settings", _numbers(self.settings))
        if self.name is not None and (not isinstance(self.name, str) or not self.name.strip()):
            raise SettingError(f"the name of a variant must be a non-empty string, got {shortened(self.name)}")

    @property
    def values(self) -> dict[str, Any]:
        """Settings by name, including the keywords of a `functools.partial` given as optimizer."""
        factory, opened = self.optimizer, {}
        if isinstance(factory, functools.partial):
            factory, opened = functools.partial(factory.func, *factory.args), factory.keywords
            factory = factory if factory.args else factory.func
        own = {"seed": self.seed, **_numbers(opened), **self.settings}
        own |= {f"model.{key}" if key in own or key in TAKEN else key: value for key, value in self.model.items()}
        named = {"batch_size": self.batch_size, "optimizer": factory, "scheduler": self.scheduler}
        return {**own, **{name: plain(value) for name, value in named.items() if value is not None}}

    def make_optimizer(self, base: OptimizerFactory) -> OptimizerFactory:
        """Return the optimizer factory, its own or the given one, with its settings."""
        factory = self.optimizer or base
        return functools.partial(factory, **self.settings) if self.settings and callable(factory) else factory

    def make_model(self, model: nn.Module | ModelFactory) -> nn.Module | Callable[[], nn.Module]:
        """Return the model or model factory, with its settings."""
        if not self.model:
            return model
        if isinstance(model, nn.Module):
            raise SettingError(
                f"a variant has settings of the model ({', '.join(self.model)}), but the model is a module; pass a "
                "function that builds it"
            )
        return functools.partial(_made_with, model, dict(self.model))


def _numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with numbers in place of tensors and NumPy scalars, whose text would be another or rounded."""
    return {name: value.item() if getattr(value, "shape", None) == () else value for name, value in settings.items()}


def _made_with(model: ModelFactory, settings: Mapping[str, Any]) -> nn.Module:
    try:
        return model(**settings)
    except TypeError as error:
        given = ", ".join(f"{name}={shortened(value)}" for name, value in settings.items())
        raise SettingError(
            f"the model cannot be built with {given} ({reason(error)}); pass arguments that its factory accepts"
        ) from error


def grid(**values: Iterable[Any] | Any) -> list[Variant]:
    """Return all combinations of some settings, as variants.

    Args:
        values: the values of each setting, by name. `seed`, `batch_size`, `scheduler`, `optimizer` and `model` (keyword
            arguments of the model factory) set the field of `Variant`; other names are keyword arguments of the
            optimizer factory. A value that is not iterable counts as a list of one.

    Returns:
        The variants; the last setting changes fastest.

    Raises:
        SettingError: there are no settings, or one has no values.

    Example:
        >>> [variant.values for variant in grid(seed=range(2), lr=[0.1, 0.2])][:3]
        [{'seed': 0, 'lr': 0.1}, {'seed': 0, 'lr': 0.2}, {'seed': 1, 'lr': 0.1}]
    """
    if not values:
        raise SettingError("grid needs at least one setting, got none; give for instance seed=range(4)")
    lists = {name: _listed(name, value) for name, value in values.items()}
    made = []
    for combination in itertools.product(*lists.values()):
        given = dict(zip(lists, combination, strict=True))
        own = {name: given.pop(name) for name in OWN if name in given}
        made.append(Variant(**own, settings=given))
    return made


def _listed(name: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return [value]
    listed = list(value)
    if not listed:
        raise SettingError(f"grid has no values for {name}, got {shortened(value)}; give at least one")
    return listed


def check_variants(variants: Any) -> list[Variant]:
    """Check that variants are a list of `Variant` with unique names; name those without a name."""
    if isinstance(variants, (Variant, Mapping, str)) or not isinstance(variants, Iterable):
        raise SettingError(
            f"variants must be a list of bow.Variant, got {type(variants).__name__}; "
            "use bow.grid(...) or [bow.Variant(...)]"
        )
    listed = list(variants)
    if not listed:
        raise SettingError("variants are empty, got []; give at least one bow.Variant")
    for each in listed:
        if not isinstance(each, Variant):
            raise SettingError(f"variants must be bow.Variant objects, got {shortened(each)}; use bow.grid(...)")
    names = [each.name or name_of(each, listed) for each in listed]
    for index, name in enumerate(names):
        if name in names[:index]:
            if listed[index].name is not None:
                raise SettingError(f"two variants are named {shortened(name)}; give each a name of its own")
            raise SettingError(
                f"two variants are equal ({shortened(name)}); give them different seeds or settings, or names"
            )
    return [replace(each, name=name) for each, name in zip(listed, names, strict=True)]


def check_proposed(variant: Any, names: Sequence[str]) -> Variant:
    """Check type and name of a proposed variant; name it if it has no name, with a number if needed."""
    if not isinstance(variant, Variant):
        raise SettingError(
            f"a search must propose bow.Variant objects, got {shortened(variant)}; return None to end the search"
        )
    if variant.name in names:
        raise SettingError(
            f"a search proposes two variants named {shortened(variant.name)}; give each a name of its own"
        )
    name = variant.name or _named(variant, list(variant.values))
    return replace(variant, name=f"{name} #{len(names)}" if name in names else name)


def name_of(variant: Variant, others: Sequence[Variant]) -> str:
    differing = [n for n in variant.values if len({repr(other.values.get(n)) for other in others}) > 1]
    return _named(variant, differing or ["seed"])


def _named(variant: Variant, settings: Iterable[str]) -> str:
    values = {name: variant.values[name] for name in settings}
    texts = {name: f"{value:g}" if isinstance(value, float) else plain(value) for name, value in values.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())


def check_indices(name: str, indices: Any, num_samples: int) -> Tensor:
    try:
        made = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError) as error:
        why = reason(error)
        raise SettingError(f"{name} must be {INDICES}, got {shortened(indices)} ({why})") from None
    if made.dim() == 0:
        raise SettingError(f"{name} must be {INDICES}, got {shortened(indices)}")
    made = made.flatten()
    if made.dtype == torch.bool:
        if len(made) != num_samples:
            raise SettingError(
                f"{name} is a mask of {len(made)} samples, but the data have {num_samples}; give {num_samples}"
            )
        made = made.nonzero().flatten()
    if not len(made):
        raise SettingError(f"{name} has no samples, got {shortened(indices)}; give at least one")
    if made.is_floating_point() or made.is_complex():
        raise SettingError(f"{name} must be integer sample indices, got {made.dtype}; give an int64 tensor or a mask")
    if int(made.min()) < 0 or int(made.max()) >= num_samples:
        raise SettingError(
            f"{name} has indices from {int(made.min())} to {int(made.max())}, but the data have {num_samples} samples; "
            f"use 0 to {num_samples - 1}"
        )
    return made.to(torch.int64)


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
        events: one record per event, such as a change of the engine: `event`, `message`, `round` of the engine.
        stopped: why it ended early: `"diverged"` (a step was not finite), `"patience"`, `"halving"`, `"target"`,
            `"interrupted"`, or the reason returned by a custom rule (`"pruned"`: by Optuna); None: it did not.
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
        self.events: list[dict[str, Any]] = []
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
    losses: TaskValues = field(default_factory=TaskValues)  # of the rounds of this epoch


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
