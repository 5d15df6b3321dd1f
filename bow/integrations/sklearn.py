"""`bow.sklearn`: deep ensembles of PyTorch models as scikit-learn estimators."""

import functools
import inspect
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import check_cv, train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from bow.engines import EngineName
from bow.engines.config import Engine
from bow.errors import SettingError, warn_user
from bow.members import Ensemble, Variant
from bow.members.config import SweepConfig
from bow.members.result import Combine
from bow.members.sweep import run_sweep
from bow.training.config import Run, TrainConfig
from bow.training.stopping import EarlyStopping
from bow.values import number, shortened, whole

Module = Callable[[int, int], nn.Module]
Splits = Sequence[tuple[Tensor | None, Tensor | None]]
ROWS = 4096  # samples predicted at once


def mlp(num_features: int, num_outputs: int) -> nn.Module:
    """Build the default model: an MLP with two hidden layers of 64."""
    return nn.Sequential(
        nn.Linear(num_features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_outputs)
    )


class MemberEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of `Classifier` and `Regressor`."""

    _combine: Combine
    _wanted: str  # what there is one output for

    def __init__(
        self,
        module: Module = mlp,
        *,
        members: int = 8,
        cv: Any = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        lr: float | None = 0.003,
        batch_size: int = 32,
        epochs: int = 10,
        early_stopping: EarlyStopping | None = None,
        validation_fraction: float = 0.1,
        engine: EngineName | Engine = "auto",
        devices: int | Literal["auto", "cpu", "cuda"] = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.module = module
        self.members = members
        self.cv = cv
        self.loss = loss
        self.optimizer = optimizer
        self.lr = lr
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.engine = engine
        self.devices = devices
        self.random_state = random_state
        self.verbose = verbose

    def spread(self, X: Any) -> np.ndarray:
        """Return the standard deviation over the members, a measure of uncertainty.

        Args:
            X: samples `[samples, features]`.

        Returns:
            Standard deviation of probabilities `[samples, classes]`, or of predictions, in their shape; 0 with one
            member.
        """
        outputs = self._each(X)
        return np.asarray(outputs.std(0, correction=min(1, len(outputs) - 1)))  # as `Ensemble.spread`

    def _each(self, X: Any) -> Tensor:
        """Return the outputs of every member `[members, samples, outputs]`."""
        check_is_fitted(self)
        return each(self.ensemble_, torch.tensor(validate_data(self, X, dtype=np.float32, reset=False)))

    def _train(self, X: np.ndarray, y: np.ndarray, targets: Tensor, num_outputs: int, loss: Any) -> None:
        try:
            inspect.signature(self.module).bind(X.shape[1], num_outputs)
        except TypeError:
            is_wrong = True
        else:
            is_wrong = isinstance(self.module, nn.Module)
        if is_wrong:
            raise SettingError(f"module must be a function module(num_features, num_outputs), got {self.module!r}")
        if not callable(self.optimizer):
            raise SettingError(
                f"optimizer must be a factory optimizer(parameters, lr=...), got {shortened(self.optimizer)}"
            )
        if self.early_stopping is not None and not isinstance(self.early_stopping, EarlyStopping):
            raise SettingError(f"early_stopping must be bow.EarlyStopping(...) or None, got {self.early_stopping!r}")
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=whole("members", self.members))
        splits = self._splits(X, y)
        inputs = torch.tensor(X)
        variants = [
            Variant(seed=int(seed), train_on=train, validate_on=held_out, name=f"fold={fold} member={number}")
            for fold, (train, held_out) in enumerate(splits)
            for number, seed in enumerate(seeds)
        ]
        fewest = min(len(X) if train is None else len(train) for train, _ in splits)
        with tempfile.TemporaryDirectory(prefix="bow-") as folder:
            train = TrainConfig(
                model=functools.partial(self.module, X.shape[1], num_outputs),
                data=(inputs, targets),
                loss=loss if self.loss is None else self.loss,
                optimizer=self.optimizer if self.lr is None else functools.partial(self.optimizer, lr=self.lr),
                batch_size=min(whole("batch_size", self.batch_size), fewest),
                epochs=self.epochs,
                learners=1,
                engine=Engine.of(self.engine),
                devices=self.devices,  # type: ignore[arg-type]
                run=Run(Path(folder) / "sweep", checkpoint_every=None, progress=bool(self.verbose)),
            )
            stop = () if self.early_stopping is None else (self.early_stopping,)
            # No report: the folder is temporary.
            result = run_sweep(SweepConfig(train=train, variants=variants, stop=stop, has_report=False))
        models = {m.number: m.model for m in result if m.model is not None and m.stopped != "diverged"}
        if num_lost := len(variants) - len(models):
            lost = f"{num_lost} of {len(variants)} members diverged (NaN or infinite weights)"
            if not models:
                raise SettingError(f"{lost}; use a lower lr than {self.lr}, or scale the data")
            warn_user(f"{lost}; the others are used", ConvergenceWarning)
        self.ensemble_ = Ensemble(list(models.values()), self._combine)
        if (outputs := each(self.ensemble_, inputs[:1]).shape[2:]) != (num_outputs,):
            raise SettingError(
                f"the module returns {list(outputs)} outputs per sample for {num_outputs} {self._wanted}; return "
                f"[batch, {num_outputs}]"
            )
        self.histories_ = [member.history for member in result]
        if self.cv is not None:
            by_fold = [[m for n, m in models.items() if n // len(seeds) == fold] for fold in range(len(splits))]
            self._keep_held_out(inputs, y, splits, by_fold)

    def _splits(self, X: np.ndarray, y: np.ndarray) -> Splits:
        """Return the indices of training and held-out samples by fold; (None, None): all, and none held out."""
        of_classes = is_classifier(self)
        if self.cv is not None:
            pairs: Iterable[Any] = check_cv(self.cv, y, classifier=of_classes).split(X, y)
        elif self.early_stopping is not None:
            by_class = y if of_classes else None
            share = number("validation_fraction", self.validation_fraction, above=0, below=1)
            settings = {"test_size": share, "random_state": self.random_state}
            pairs = [train_test_split(np.arange(len(X)), stratify=by_class, **settings)]
        else:
            return [(None, None)]
        splits = [(torch.as_tensor(train), torch.as_tensor(held_out)) for train, held_out in pairs]
        if not splits:
            raise SettingError(f"cv={self.cv!r} yields no folds; an iterator can be used only once, so pass a list")
        return splits

    def _keep_held_out(
        self, inputs: Tensor, y: np.ndarray, splits: Splits, by_fold: Sequence[Sequence[nn.Module]]
    ) -> None:
        sums, counts, scores = torch.zeros((), dtype=torch.float64), torch.zeros(len(inputs)), []
        for (_, held_out), models in zip(splits, by_fold, strict=True):
            assert held_out is not None
            if not models:
                scores.append(float("nan"))
                continue
            said = each(Ensemble(models, self._combine), inputs[held_out])
            if sums.dim() == 0:
                sums = sums.new_zeros(len(inputs), *said.shape[2:])
            sums[held_out] += said.sum(0)
            counts[held_out] += len(models)
            scores.append(self._score_of(y[held_out.numpy()], said.mean(0).numpy()))
        self.oof_ = self._shaped((sums / counts.view(-1, *[1] * (sums.dim() - 1))).numpy())
        self.cv_scores_ = np.array(scores)

    def _shaped(self, mean: np.ndarray) -> np.ndarray:
        """Return a mean over the members in the shape of the targets."""
        return mean

    def _score_of(self, y: np.ndarray, mean: np.ndarray) -> float:
        raise NotImplementedError


class Classifier(ClassifierMixin, MemberEstimator):  # type: ignore[misc]
    """A deep ensemble for classification: the mean of members with different seeds, trained concurrently.

    A scikit-learn estimator, for pipelines, `cross_val_score`, `GridSearchCV` and `clone`. With `cv` it trains
    `members` models on every fold, as stackers and AutoML libraries do, keeps the out-of-fold predictions, and predicts
    with all models. Features are not scaled: put a `StandardScaler` before it.

    Args:
        module: a function or class `module(num_features, num_outputs)` that makes the model, whose outputs are logits
            `[batch, num_outputs]`; the default is an MLP with two hidden layers of 64.
        members: number of models; with `cv`, per fold.
        cv: None, or folds as in scikit-learn: a number, a splitter, or pairs of indices.
        loss: a function of outputs and class indices `[batch]`; None: cross-entropy.
        optimizer: a factory `optimizer(parameters, lr=...)`.
        lr: learning rate; None: the optimizer's default.
        batch_size: batch size of a member, at most all samples.
        epochs: passes of every member over its samples.
        early_stopping: a `bow.EarlyStopping`, applied to a member's values on held-out samples: those of its fold, or
            `validation_fraction` of all.
        validation_fraction: share held out for `early_stopping` without `cv`.
        engine: as for `bow.train`.
        devices: as for `bow.train`; one.
        random_state: seed of the members' seeds and of the held-out samples.
        verbose: show progress.

    Attributes:
        classes_: the labels.
        n_features_in_: number of features.
        ensemble_: the members as one module on the CPU; the models are `ensemble_.models`.
        histories_: by member, one record per epoch, like `Member.history`.
        oof_: with `cv`, out-of-fold probabilities `[samples, classes]`; NaN for samples that no fold holds out.
        cv_scores_: with `cv`, accuracy of each fold's members on its held-out samples.

    Raises:
        SettingError: in `fit`, an argument is not valid, or all members diverged.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, y = make_blobs(90, centers=3, cluster_std=0.5, random_state=0)
        >>> ensemble = Classifier(members=2, cv=3, lr=0.01, engine="eager", random_state=0).fit(X, y)
        >>> ensemble.predict_proba(X).shape, ensemble.cv_scores_.shape, len(ensemble.ensemble_.models)
        ((90, 3), (3,), 6)

    References:
        Lakshminarayanan, Pritzel, Blundell, Simple and Scalable Predictive Uncertainty Estimation using Deep
        Ensembles, 2017.
    """

    _combine: Combine = "probabilities"
    _wanted = "classes"

    def fit(self, X: Any, y: Any) -> "Classifier":
        """Train the members on samples `[samples, features]` and labels `[samples]`."""
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self._train(X, y, torch.as_tensor(numbers), len(self.classes_), nn.functional.cross_entropy)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the mean of the members' probabilities `[samples, classes]`."""
        return np.asarray(self._each(X).mean(0))

    def predict(self, X: Any) -> np.ndarray:
        """Return the label with the highest mean probability `[samples]`."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])

    def _score_of(self, y: np.ndarray, mean: np.ndarray) -> float:
        return float(accuracy_score(y, self.classes_[mean.argmax(1)]))


class Regressor(RegressorMixin, MemberEstimator):  # type: ignore[misc]
    """A deep ensemble for regression: the mean of members with different seeds, trained concurrently.

    Like `Classifier`, for numeric targets. Targets are not scaled: unless they are of the order of 1, wrap it in
    scikit-learn's `TransformedTargetRegressor`.

    Args:
        module: as for `Classifier`; outputs `[batch, num_outputs]` are the predictions.
        loss: a function of outputs and targets, both `[batch, num_outputs]`; None: the mean squared error. All other
            arguments are those of `Classifier`.

    Attributes:
        oof_: with `cv`, out-of-fold predictions; NaN for samples that no fold holds out.
        cv_scores_: with `cv`, R² of each fold's members on its held-out samples. All others as for `Classifier`.

    Raises:
        SettingError: in `fit`, an argument is not valid, or all members diverged.

    Example:
        >>> from sklearn.datasets import make_regression
        >>> X, y = make_regression(100, 4, random_state=0)
        >>> ensemble = Regressor(members=3, epochs=2, engine="eager", random_state=0).fit(X, y / y.std())
        >>> ensemble.predict(X).shape, ensemble.spread(X).shape
        ((100,), (100,))
    """

    _combine: Combine = "outputs"
    _wanted = "target values"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> "Regressor":
        """Train the members on samples `[samples, features]` and targets `[samples]` or `[samples, outputs]`."""
        X, y = validate_data(self, X, y, dtype=np.float32, multi_output=True, y_numeric=True)
        self._is_flat = y.ndim == 1
        targets = torch.tensor(y.astype(np.float32)).view(len(y), -1)
        self._train(X, y, targets, targets.shape[1], nn.functional.mse_loss)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the mean of the members' predictions, in the shape of the targets."""
        return self._shaped(np.asarray(self._each(X).mean(0)))

    def spread(self, X: Any) -> np.ndarray:
        return self._shaped(super().spread(X))

    def _shaped(self, mean: np.ndarray) -> np.ndarray:
        return mean[:, 0] if self._is_flat else mean

    def _score_of(self, y: np.ndarray, mean: np.ndarray) -> float:
        return float(r2_score(y, mean))


@torch.no_grad()
def each(ensemble: Ensemble, inputs: Tensor) -> Tensor:
    """Return the outputs of every model as float64, computed `ROWS` samples at a time."""
    return torch.cat([ensemble.each(part) for part in torch.split(inputs, ROWS)], dim=1).double()
