"""`bow.cross_validate`: train a model on every fold of the data, as members of a sweep."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bow.data import as_torch_data, open_stream
from bow.engines import Loss
from bow.errors import SettingError
from bow.members.result import Sweep
from bow.members.sweep import sweep
from bow.members.variant import ModelFactory, Variant
from bow.training.checks import all_labels
from bow.training.config import Validation
from bow.values import shortened, whole


def cross_validate(
    model: nn.Module | ModelFactory,
    data: Any,
    loss: Loss | None = None,
    *,
    folds: int | Sequence[tuple[Any, Any]] = 5,
    seeds: Iterable[int] = (0,),
    stratify: bool | None = None,
    **settings: Any,
) -> Sweep:
    """Train a model on every fold of the data concurrently, and evaluate each on its held-out samples.

    Args:
        model: as for `bow.sweep`.
        data: tensors or a `Dataset`; it is not copied.
        loss: as for `bow.sweep`.
        folds: number of folds, or pairs (train, test) of sample indices.
        seeds: seeds that each fold is trained with.
        stratify: keep the class proportions in every fold; None: if targets are classes.
        settings: other arguments of `bow.sweep`.

    Returns:
        The members, named `fold=0 seed=0` and so on, with their values on the held-out samples.

    Raises:
        BowError: as `bow.sweep`, or the folds are not valid.

    Example:
        >>> import bow, torch
        >>> inputs, targets = torch.randn(60, 8), torch.arange(60) % 2
        >>> result = cross_validate(
        ...     lambda: nn.Linear(8, 2), (inputs, targets), nn.functional.cross_entropy, folds=3, engine="eager",
        ...     run=bow.Run(getfixture("tmp_path") / "folds", progress=False),
        ... )
        >>> [round(member.epochs) for member in result.members]
        [1, 1, 1]
    """
    for name in ("variants", "validation"):
        if isinstance(settings.get(name), Validation) and settings[name].data is None:
            continue
        if name in settings:
            raise SettingError(f"cross_validate sets {name} itself; use bow.sweep(...) to pass it")
    return sweep(model, data, loss, variants=fold_variants(data, folds, seeds, stratify), **settings)


def fold_variants(data: Any, count: Any, seeds: Any, stratify: bool | None) -> list[Variant]:
    if not isinstance(seeds, Iterable):
        raise SettingError(f"seeds must be a list of seeds, got {shortened(seeds)}; give for instance range(4)")
    seeds = list(seeds)  # an iterator would end after the first fold
    if not isinstance(count, Iterable):
        data = as_torch_data(data)
        labels = all_labels(data)
        is_classes = labels is not None and labels.dim() == 1 and not labels.is_floating_point()
        if stratify and not is_classes:
            raise SettingError("stratify=True needs data (inputs, targets) with classes as targets; leave it out")
        by_class = labels if is_classes and stratify is not False else None
        samples = open_stream(data, batch_size=1).samples_per_epoch
        if samples is None:
            raise SettingError("folds need data with a length; give tensors or a Dataset")
        pairs: Sequence[tuple[Any, Any]] = folds(samples, count, labels=by_class)
    else:
        pairs = list(count)
        if not pairs or any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
            raise SettingError(
                f"folds must be a number, or pairs (train, test) of sample indices, got {shortened(count)}"
            )
    return [
        Variant(seed=seed, train_on=train, validate_on=test, name=f"fold={fold} seed={seed}")
        for fold, (train, test) in enumerate(pairs)
        for seed in seeds
    ]


def folds(num_samples: int, count: int, *, seed: int = 0, labels: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """Return the indices of training and held-out samples by fold of a cross-validation (Stone, 1974).

    With `labels`, classes `[samples]`, folds are stratified.

    Example:
        >>> train, test = folds(10, 5)[0]
        >>> len(train), len(test)
        (8, 2)
    """
    count = whole("folds", count, least=2)
    if num_samples < count:
        raise SettingError(f"folds={count} are more than the {num_samples} samples; use fewer folds")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(num_samples, generator=generator)
    fold = torch.empty(num_samples, dtype=torch.int64)
    if labels is None:
        fold[order] = torch.arange(num_samples) % count
    else:
        start = 0
        for label in torch.unique(labels):
            own = order[labels[order] == label]
            if len(own) < count:
                raise SettingError(
                    f"class {label.item()} has {len(own)} samples and there are {count} folds, so some folds would "
                    "have none of it; use fewer folds, or stratify=False"
                )
            fold[own] = (torch.arange(len(own)) + start) % count
            start += len(own)
    return [((fold != number).nonzero().flatten(), (fold == number).nonzero().flatten()) for number in range(count)]
