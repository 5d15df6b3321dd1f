"""`bow.optuna`: run trials of an Optuna study concurrently."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from bow.errors import MissingDependencyError, SettingError, warn_user
from bow.members import Member, Sweep, Variant, sweep
from bow.members.member import ModelFactory
from bow.members.stopping import BEATEN
from bow.training.config import Validation
from bow.training.metrics import is_higher_better
from bow.training.stopping import names_of_epochs, value_of
from bow.values import whole

try:
    import optuna
except ModuleNotFoundError as error:
    raise MissingDependencyError("bow.optuna needs the package optuna; pip install 'bow-trainer[optuna]'") from error

ObjectiveSettings = Callable[["optuna.trial.Trial"], Variant]


def optimize(
    study: "optuna.Study",
    objective_settings: ObjectiveSettings,
    model: nn.Module | ModelFactory,
    data: Any,
    loss: Any = None,
    *,
    n_trials: int,
    side_by_side: int = 8,
    metric: str | None = None,
    **settings: Any,
) -> Sweep:
    """Run trials of a study concurrently, as members of a `bow.sweep`.

    A trial is requested from the study whenever a row is free, and its result is reported when it ends, so a sampler
    knows up to `side_by_side - 1` fewer results than in a sequential loop. With `side_by_side=1`, or a sampler that
    does not learn, the trials equal those of a loop. The value is reported after every epoch; if `should_prune()`
    returns true, the member ends and its row is used for the next trial. Members that diverge or are interrupted are
    failed trials. There are no checkpoints: if the process dies, finished trials are in the study's storage, and the
    next call, with another run directory, continues the study. It warns of trials that are still marked as running.

    Args:
        study: a study with one objective, whose direction matches `metric`. Its storage may be shared.
        objective_settings: a function that takes a trial, suggests its parameters and returns the `bow.Variant` to
            train; it may raise `optuna.TrialPruned`. Trials whose settings change shapes, such as
            `Variant(model={"width": ...})`, train concurrently, too.
        model: as for `bow.sweep`.
        data: as for `bow.sweep`.
        loss: as for `bow.sweep`.
        n_trials: number of trials.
        side_by_side: number of members that train at once.
        metric: the value to optimise, `"loss"` or a metric of the validation data; None: its first metric, else the
            loss.
        settings: other arguments of `bow.sweep`, except `variants` and `at_once`.

    Returns:
        The members, named `trial 0`, `trial 1`, ... by trial number. The user attribute `run_dir` of a trial is the
        member's folder.

    Raises:
        SettingError: the study has several objectives, its direction does not match the metric, or the function does
            not return a variant.
        BowError: as `bow.sweep`.

    Example:
        >>> import torch, optuna, bow
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = optuna.create_study(direction="minimize", sampler=optuna.samplers.RandomSampler(seed=0))
        >>> def settings(trial):
        ...     return Variant(settings={"lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True)})
        >>> inputs = torch.randn(64, 8)
        >>> result = optimize(
        ...     study, settings, lambda: nn.Linear(8, 1), (inputs, inputs.sum(1, keepdim=True)), nn.functional.mse_loss,
        ...     n_trials=4, epochs=2, engine="eager", run=bow.Run(getfixture("tmp_path") / "study", progress=False),
        ... )
        >>> len(study.trials), result[f"trial {study.best_trial.number}"].value("loss") == study.best_value
        (4, True)

    References:
        Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, 2019.
    """
    for name in ("variants", "at_once"):
        if name in settings:
            raise SettingError(f"bow.optuna.optimize sets {name} itself; use n_trials= and side_by_side=")
    if not isinstance(study, optuna.Study) or not callable(objective_settings):
        raise SettingError(f"pass an optuna.Study and a function of a trial, got {study!r} and {objective_settings!r}")
    if len(study.directions) != 1:
        raise SettingError(f"the study has {len(study.directions)} objectives; use one with a single objective")
    validation = settings.get("validation")
    metrics = validation.metrics if isinstance(validation, Validation) else Validation().metrics
    known = {each.name: each.higher_is_better for each in metrics}
    if metric is not None and settings.get("step") is None and metric not in (names := names_of_epochs(metrics)):
        raise SettingError(f"metric={metric!r} is not measured; choose from {', '.join(names)}")
    at_once = whole("side_by_side", side_by_side)
    if at_once > 1 and settings.get("learners", 1) != 1:
        raise SettingError(f"trials of several learners run one after another, got side_by_side={at_once}; use 1")
    trials = StudyTrials(study, objective_settings, whole("n_trials", n_trials), metric, known)
    if running := [trial.number for trial in study.get_trials(deepcopy=False) if trial.state.name == "RUNNING"]:
        warn_user(
            f"trials {running} of the study are running in another process, or were left by one that died; end the "
            "latter by study.tell(number, state=optuna.trial.TrialState.FAIL)",
        )
    stop = settings.pop("stop", None)
    rules = [] if stop is None else list(stop) if isinstance(stop, (list, tuple)) else [stop]
    try:
        return sweep(model, data, loss, variants=trials, at_once=at_once, stop=[trials, *rules], **settings)
    finally:
        trials.fail_others()


class StudyTrials:
    """Member search and stop rule of a sweep that ask, report to and prune the trials of a study."""

    def __init__(
        self,
        study: "optuna.Study",
        objective_settings: ObjectiveSettings,
        count: int,
        metric: str | None,
        higher_is_better: dict[str, bool],
    ) -> None:
        self._study = study
        self._settings = objective_settings
        self._left = count
        self._metric = metric
        self._higher_is_better = higher_is_better
        self._running: dict[str, optuna.trial.Trial] = {}

    def ask(self) -> Variant | None:
        """Return the next trial's variant; trials pruned before they start count towards `n_trials`."""
        while self._left:
            self._left -= 1
            trial = self._study.ask()
            name = f"trial {trial.number}"
            self._running[name] = trial
            try:
                variant = self._settings(trial)
            except optuna.TrialPruned:
                self._end(name, state=optuna.trial.TrialState.PRUNED)
                continue
            if not isinstance(variant, Variant):
                raise SettingError(f"objective_settings must return a bow.Variant, got {variant!r}")
            return dataclasses.replace(variant, name=name)
        return None

    def tell(self, member: Member) -> None:
        self._running[member.name].set_user_attr("run_dir", str(member.run_dir))
        if member.stopped in ("diverged", "interrupted"):
            self._end(member.name, state=optuna.trial.TrialState.FAIL)
        elif member.stopped in BEATEN:
            self._end(member.name, state=optuna.trial.TrialState.PRUNED)
        else:
            self._end(member.name, self._value(member))

    def why_over(self, member: Member) -> str | None:
        """Report the value of an epoch; return `"pruned"` if the trial is to be pruned."""
        trial = self._running[member.name]
        trial.report(self._value(member), step=len(member.history))
        return "pruned" if trial.should_prune() else None

    def fail_others(self) -> None:
        for name in list(self._running):
            self._end(name, state=optuna.trial.TrialState.FAIL)

    def _end(self, name: str, value: float | None = None, state: Any = None) -> None:
        self._study.tell(self._running.pop(name), value, state)

    def _value(self, member: Member) -> float:
        if self._metric is None:
            self._metric = next((name for name in self._higher_is_better if name in member.metrics), "loss")
        value = value_of(member.history[-1], self._metric)
        higher = is_higher_better(self._metric, self._higher_is_better.get(self._metric))
        if higher != (self._study.direction == optuna.study.StudyDirection.MAXIMIZE):
            way, better, other = ("maximize", "higher", "minimizes") if higher else ("minimize", "lower", "maximizes")
            raise SettingError(
                f"{better} {self._metric} is better, but the study {other} it; use a study with direction={way!r}"
            )
        return value
