"""`bow.lightning`: train a `LightningModule`, with its data module and callbacks."""

import copy
import dataclasses
import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bow.data import batch_length
from bow.errors import SettingError, reason
from bow.observe.records import metrics
from bow.training import Result
from bow.training import train as train_model
from bow.training.config import PerRound, Validation
from bow.training.stopping import EarlyStopping, value_of

PACKAGES = ("lightning", "pytorch_lightning")
OWN = ("model", "loss", "step", "optimizer", "scheduler")  # arguments of `bow.train` that the module provides

# Methods of modules other than `on_...` that are not supported
OF_MODULES = (
    "backward", "configure_callbacks", "configure_gradient_clipping", "lr_scheduler_step", "optimizer_step",
    "optimizer_zero_grad", "transfer_batch_to_device",
)  # fmt: skip

# Hooks of callbacks that are called
OF_CALLBACKS = (
    "setup", "teardown", "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start",
    "on_train_epoch_end", "on_train_batch_end", "on_validation_epoch_end", "on_validation_end",
)  # fmt: skip

# Substrings of the names of hooks that never apply here, and are ignored
NEVER = ("test", "predict", "sanity_check", "on_exception", "on_save_checkpoint", "on_load_checkpoint")

LOGGED = "_logged_by_bow"
OF_THE_LOSS = ("loss", "train_loss")  # logged names of the loss, which records contain anyway


def train(
    module: nn.Module, data: Any = None, *, validation: Any = None, callbacks: Sequence[object] = (), **settings: Any
) -> Result:
    """Train a `LightningModule` by `bow.train`, with one or more learners.

    Learners run its `training_step`, the central model is evaluated by its `validation_step`, and
    `configure_optimizers` makes optimizer and learning-rate scheduler; an interval of `"step"` is one round, and a
    `ReduceLROnPlateau` monitors `"val_loss"`, without validation data `"loss"`. Values passed to `self.log` appear in
    records and in `result.metrics`: those of `validation_step` by their name, those of `training_step` as `train_...`,
    averaged over the samples of the epoch, also with `on_step=True`. With one learner, weights and averages equal those
    of Lightning's `Trainer`.

    Lightning callbacks are called at the start and end of training and epochs, and after each round
    (`on_train_batch_end`, without the batch). They receive the central model and a trainer with `current_epoch`,
    `global_step`, `max_epochs` (-1 with `steps`), `callback_metrics`, `optimizers`, `is_global_zero` and a writable
    `should_stop`. `callback_metrics` has the logged values and `"train_loss"`, not the validation loss as `"loss"`.
    Lightning's `EarlyStopping` is converted to `bow.EarlyStopping`. Other features raise an error that names them:
    manual optimization, several optimizers, `batch_idx`, other hooks.

    Args:
        module: a `LightningModule`. It is not modified; the trained copy is `result.model`.
        data: a `LightningDataModule`, or as for `bow.train`; None: the module's own `train_dataloader`.
        validation: as for `bow.train`; None: `val_dataloader` of the data module, or else of the module, if any.
        callbacks: callbacks of Lightning and of bow.
        settings: other arguments of `bow.train`, such as `epochs`, `learners`, `engine`, `clip_norm` and `run`.

    Raises:
        BowError: as `bow.train`, and for features of Lightning that are not supported.

    Example:
        >>> import lightning, bow
        >>> class Linear(lightning.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = nn.Linear(8, 2)
        ...     def training_step(self, batch):
        ...         inputs, targets = batch
        ...         return nn.functional.cross_entropy(self.layer(inputs), targets)
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> data = torch.randn(64, 8), torch.randint(0, 2, (64,))
        >>> result = train(
        ...     Linear(), data, learners=2, engine="eager", run=bow.Run(getfixture("tmp_path") / "run", progress=False)
        ... )
        >>> type(result.model).__name__, result.learners
        ('Linear', 2)
    """
    base = _base(module, "LightningModule")
    if base is None:
        raise SettingError(f"module must be a LightningModule, got {type(module).__name__}; use bow.train for others")
    for name in OWN:
        if name in settings:
            raise SettingError(f"bow.lightning.train takes {name} from the module, got {name}=; leave it out")
    _check_module(module, base)
    prepared = _prepared(module)
    train_data, own_validation = _loaders(prepared, data)
    if _overrides(module, base, "validation_step"):
        given = validation if isinstance(validation, Validation) else Validation(validation)
        validation = given if given.data is not None else dataclasses.replace(given, data=own_validation)
    elif validation is not None:
        raise SettingError(f"{type(module).__name__} has no validation_step; write one, or leave validation= out")
    is_evaluated = validation is not None and validation.data is not None
    optimization = Optimization(prepared, is_evaluated)
    rules = [rule for each in callbacks if (rule := _stop_rule(each, is_evaluated)) is not None]
    if rules:
        stop = settings.get("stop") or ()
        settings["stop"] = [*rules, *(stop if isinstance(stop, Sequence) else [stop])]
    others = [each for each in callbacks if _stop_rule(each, is_evaluated) is None]
    hooked = [each for each in others if _base(each, "Callback") is not None]
    own = [Hooked(hooked, settings.get("epochs", 1), settings.get("steps"))] if hooked else []
    result = train_model(
        prepared,
        train_data,
        step=_step,
        optimizer=optimization.optimizer,
        scheduler=optimization.scheduler_factory,
        validation=validation,
        callbacks=[*own, *(each for each in others if each not in hooked)],
        **settings,
    )
    for model in (result.model, None if result.best is None else result.best.model):
        if model is not None:
            model.__class__ = type(module)
    return result


class Logging:
    """Replaces the methods of `LightningModule` that need a trainer."""

    def log(
        self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", batch_size: int | None = None, **__: Any
    ) -> None:
        if reduce_fx not in ("mean", torch.mean):
            raise SettingError(
                f"{name!r} is logged with reduce_fx={reduce_fx!r}; only 'mean' is supported, leave it out"
            )
        if (of_step := vars(self).get(LOGGED)) is None:
            raise SettingError(
                f"{name!r} is logged outside of training_step and validation_step; log it in one of them"
            )
        logged, samples = of_step
        if batch_size not in (None, samples):
            raise SettingError(
                f"{name!r} is logged with batch_size={batch_size}, and its mean is over samples, of which the batch "
                f"has {samples}; leave batch_size out"
            )
        if isinstance(value, nn.Module):
            raise SettingError(
                f"{name!r} is a stateful metric, which concurrent learners cannot share; log a value computed from the "
                "batch, as the functions of torchmetrics.functional do"
            )
        logged[name] = value

    def log_dict(self, dictionary: Mapping[str, Any], *given: Any, **settings: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, *given, **settings)

    @property
    def current_epoch(self) -> int:
        raise _not_here("current_epoch")

    @property
    def global_step(self) -> int:
        raise _not_here("global_step")


def _not_here(name: str) -> SettingError:
    return SettingError(
        f"the module reads {name}, which is not available in a learner's step; use a callback's "
        "trainer, or a scheduler in configure_optimizers"
    )


class BatchIndex:
    """Placeholder for `batch_idx`, which learners do not have; any use raises an error."""

    def _refuse(self, *_: Any) -> Any:
        raise _not_here("batch_idx")

    __mod__ = __add__ = __sub__ = __mul__ = __floordiv__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __eq__ = __ne__ = __hash__ = __bool__ = __int__ = __index__ = __float__ = __format__ = _refuse


def _step(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Run `training_step`, or in evaluation mode `validation_step`; return the loss and the logged values."""
    kind = "training_step" if model.training else "validation_step"
    logged: dict[str, Any] = {}
    vars(model)[LOGGED] = logged, batch_length(batch)
    try:
        function = getattr(model, kind)
        made = function(*(batch, BatchIndex(), 0)[: len(inspect.signature(function).parameters)])
    finally:
        del vars(model)[LOGGED]
    loss = made.get("loss") if isinstance(made, Mapping) else made
    if loss is None and not model.training:
        known: list[str] = [name for name in ("val_loss", "loss") if name in logged]
        losses = known[:1] or [name for name in logged if "loss" in name]
        if len(losses) > 1:
            raise SettingError(f"{kind} logs {', '.join(losses)}, which is ambiguous; return the loss, or log val_loss")
        loss = logged[losses[0]] if losses else None
    if loss is None:
        raise SettingError(f"{kind} returned no loss; return it{'' if model.training else ', or log it as val_loss'}")
    loss = torch.as_tensor(loss)
    values = {name: _scalar(value, loss) for name, value in logged.items() if name not in OF_THE_LOSS}
    return loss, values


def _scalar(value: Any, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().reshape(()) if value.numel() == 1 else value
    return torch.as_tensor(float(value), device=like.device)


def _base(thing: object, name: str) -> type | None:
    kinds = (each for each in type(thing).__mro__ if each.__module__.partition(".")[0] in PACKAGES)
    return next((each for each in kinds if each.__name__ == name), None)


def _overrides(thing: object, base: type, name: str) -> bool:
    return name in vars(thing) or getattr(type(thing), name, None) is not getattr(base, name, None)


def _overridden(thing: object, base: type, names: Iterable[str]) -> list[str]:
    return [n for n in names if _overrides(thing, base, n) and not any(part in n for part in NEVER)]


def _check_module(module: Any, base: type) -> None:
    name = type(module).__name__
    if not module.automatic_optimization:
        raise SettingError(f"{name} has automatic_optimization=False; use bow.Replicas for a loop of your own")
    hooks = [each for each in dir(base) if each.startswith("on_") and callable(getattr(base, each))]
    if others := _overridden(module, base, [*OF_MODULES, *hooks]):
        raise SettingError(
            f"{name} has {', '.join(others)}, which bow.lightning.train does not call; use a callback, or a setting of "
            "bow.train such as clip_norm"
        )
    for kind in ("training_step", "validation_step"):
        if "dataloader_iter" in inspect.signature(getattr(module, kind)).parameters:
            raise SettingError(f"{kind} takes dataloader_iter, but bow passes batches; use a batch parameter instead")


def _prepared(module: Any) -> Any:
    """Return a copy of the module, set up for training, whose `log` is that of `Logging`."""
    made = copy.deepcopy(module)
    kind = type(module)
    made.__class__ = type(kind.__name__, (Logging, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    made.prepare_data()
    made.setup("fit")
    made.configure_model()
    return made


def _loaders(module: Any, data: Any) -> tuple[Any, Any]:
    base, source = _base(data, "LightningDataModule"), data
    if base is not None:
        data.prepare_data()
        data.setup("fit")
    elif data is None:
        base, source = _base(module, "LightningModule"), module
    if base is None:
        return data, None
    if not _overrides(source, base, "train_dataloader"):
        raise SettingError(f"{type(source).__name__} has no train_dataloader; pass data=")
    validation = source.val_dataloader() if _overrides(source, base, "val_dataloader") else None
    if isinstance(validation, (list, tuple)):
        if len(validation) > 1:
            raise SettingError(f"val_dataloader returned {len(validation)} loaders; return one, or pass validation=")
        validation = validation[0] if validation else None
    return source.train_dataloader(), validation


class Optimization:
    """Factories of optimizer and scheduler that call `configure_optimizers` on a copy of the module."""

    SCHEDULER = "scheduler_of_lightning"

    def __init__(self, module: Any, is_evaluated: bool) -> None:
        self._module = module
        self._is_evaluated = is_evaluated
        _, self._scheduler, self._interval = self._configured(copy.deepcopy(module))

    @property
    def scheduler_factory(self) -> Any:
        """Return the `scheduler` argument of `bow.train`, or None without a scheduler."""
        if self._scheduler is None:
            return None
        return PerRound(self._made_with) if self._interval == "step" else self._made_with

    def optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        """Build the optimizer and replace its parameters by those of the same names; without any, use one group."""
        parameters, module = dict(named), copy.deepcopy(self._module)
        made, scheduler, _ = self._configured(module)
        others = {id(parameter): parameters.get(name) for name, parameter in module.named_parameters()}
        kept = [(others.get(id(old)), value) for old, value in made.state.items()]
        made.state = defaultdict(dict, {new: value for new, value in kept if new is not None})
        for group in made.param_groups:
            group["params"] = [new for old in group["params"] if (new := others.get(id(old))) is not None]
        if not any(group["params"] for group in made.param_groups):  # a trial run with other names
            made.param_groups[0]["params"] = list(parameters.values())
            del made.param_groups[1:]
        vars(made)[self.SCHEDULER] = scheduler
        return made

    def _made_with(self, optimizer: Optimizer) -> LRScheduler:
        scheduler: LRScheduler = vars(optimizer)[self.SCHEDULER]
        return scheduler

    def _configured(self, module: Any) -> tuple[Optimizer, LRScheduler | None, str]:
        try:
            given = module.configure_optimizers()
        except RuntimeError as error:  # for example, it needs a trainer
            raise SettingError(f"configure_optimizers fails ({reason(error)}); it must not need a trainer") from error
        monitor = None
        if isinstance(given, Mapping):
            monitor = given.get("monitor")
            optimizers, schedulers = [given["optimizer"]], [given["lr_scheduler"]] if "lr_scheduler" in given else []
        elif isinstance(given, Optimizer):
            optimizers, schedulers = [given], []
        else:
            parts = list(given or ())
            is_pair = len(parts) == 2 and isinstance(parts[0], (list, tuple))
            optimizers, schedulers = (list(parts[0]), list(parts[1])) if is_pair else (parts, [])
        if len(optimizers) != 1 or not isinstance(optimizers[0], Optimizer) or len(schedulers) > 1:
            raise SettingError(
                f"configure_optimizers returned {len(optimizers)} optimizers and {len(schedulers)} schedulers, and a "
                "learner has one optimizer and at most one scheduler; use bow.Replicas for a loop of your own"
            )
        settings: Any = schedulers[0] if schedulers else {}
        settings = settings if isinstance(settings, Mapping) else {"scheduler": settings, "monitor": monitor}
        scheduler, interval, monitor = (
            settings.get("scheduler"),
            settings.get("interval", "epoch"),
            settings.get("monitor"),
        )
        # A plateau is one of the validation loss after epochs with an evaluation, else of the training loss.
        seen = ("val_loss",) if self._is_evaluated and interval == "epoch" else ("loss", "train_loss")
        is_known = not isinstance(scheduler, ReduceLROnPlateau) or monitor in (None, *seen)
        if settings.get("frequency", 1) != 1 or interval not in ("epoch", "step") or not is_known:
            raise SettingError(
                f"unsupported scheduler settings { {k: v for k, v in settings.items() if k != 'scheduler'} }; "
                f"supported: frequency=1, interval='epoch' or 'step', monitor={' or '.join(map(repr, seen))}"
            )
        return optimizers[0], scheduler, interval


def _stop_rule(callback: Any, is_evaluated: bool) -> EarlyStopping | None:
    if _base(callback, "EarlyStopping") is None:
        return None
    if callback.monitor == "loss" and is_evaluated:
        raise SettingError(
            "EarlyStopping monitors 'loss', of which there are two with validation data; monitor 'val_loss' or "
            "'train_loss'"
        )
    if callback.stopping_threshold is not None or callback.divergence_threshold is not None:
        raise SettingError("EarlyStopping with a threshold is not supported; use bow.Validation(target=...)")
    return EarlyStopping(callback.monitor, callback.patience, abs(callback.min_delta), callback.mode == "max")


class TrainerView:
    """The trainer object that Lightning callbacks receive."""

    max_epochs: int
    current_epoch: int
    global_step: int
    callback_metrics: dict[str, Tensor]
    optimizers: list[Optimizer]
    is_global_zero: bool
    should_stop: bool

    def __init__(self, max_epochs: int) -> None:
        own = {"max_epochs": max_epochs, "current_epoch": 0, "global_step": 0, "callback_metrics": {}, "optimizers": []}
        vars(self).update(own, is_global_zero=True, should_stop=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refusal("reads", name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self):
            raise self._refusal("sets", name)
        super().__setattr__(name, value)

    def _refusal(self, what: str, name: str) -> SettingError:
        return SettingError(
            f"a callback {what} trainer.{name}, which bow.lightning.train does not have; available: "
            f"{', '.join(vars(self))}"
        )


class Hooked:
    """A callback of `bow.train` that calls Lightning callbacks."""

    def __init__(self, callbacks: Sequence[Any], epochs: int, steps: int | None) -> None:
        self._callbacks, self._steps = callbacks, steps
        self._trainer = TrainerView(epochs if steps is None else -1)  # -1 as in Lightning: no limit
        for each in callbacks:
            base = _base(each, "Callback")
            assert base is not None
            if _base(each, "Checkpoint") is not None:
                raise SettingError(
                    f"{type(each).__name__} writes Lightning checkpoints; leave it out: bow.Run writes checkpoints "
                    "of all learners, and result.best is the best model"
                )
            names = [name for name in dir(base) if name.startswith("on_") and name not in OF_CALLBACKS]
            if others := _overridden(each, base, names):
                raise SettingError(
                    f"{type(each).__name__} has {', '.join(others)}, which bow.lightning.train does not call; it calls "
                    f"{', '.join(OF_CALLBACKS)}"
                )

    def on_train_start(self, run: Any) -> None:
        self._trainer.optimizers = [run.replicas.optimizer]
        self._trainer.is_global_zero = run.replicas.world.leads
        self._trainer.current_epoch, self._trainer.global_step = run.epoch, run.round
        self._call(run, "setup", "fit")
        for hook in ("on_fit_start", "on_train_start", "on_train_epoch_start"):
            self._call(run, hook)

    def on_round_end(self, run: Any) -> None:
        self._trainer.global_step = run.round
        self._call(run, "on_train_batch_end", {"loss": run.replicas.last.losses.nanmean()}, None, run.round - 1)
        self._heed(run)

    def on_epoch_end(self, run: Any, record: Mapping[str, Any]) -> None:
        trainer, values = self._trainer, metrics(record)
        of_training = {name for name in values if name.startswith("train")}
        logged = {name: value_of(record, name) for name in run.replicas.last.metrics}  # by their names in the module
        # Without the loss of the validation data: in Lightning, "loss" is what the module logs by that name.
        known = logged | {name: value for name, value in values.items() if name not in (*of_training, "loss")}
        for name, value in {**known, "train_loss": record["train_loss"]}.items():
            trainer.callback_metrics[name] = torch.tensor(value)
        for hook in ("on_validation_epoch_end", "on_validation_end") if values.keys() - of_training else ():
            self._call(run, hook)
        self._call(run, "on_train_epoch_end")
        self._heed(run)
        trainer.current_epoch = run.epoch  # a round may complete several
        goes_on = run.epoch < trainer.max_epochs if self._steps is None else run.round < self._steps
        if goes_on and not trainer.should_stop:
            self._call(run, "on_train_epoch_start")

    def on_train_end(self, run: Any, result: Result) -> None:
        self._call(run, "on_train_end")
        self._call(run, "on_fit_end")
        self._call(run, "teardown", "fit")

    def _call(self, run: Any, hook: str, *arguments: Any) -> None:
        for each in self._callbacks:
            getattr(each, hook)(self._trainer, run.replicas.central, *arguments)

    def _heed(self, run: Any) -> None:
        if self._trainer.should_stop:
            run.stop()
