from __future__ import annotations

import dataclasses
import functools
import json
import re
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import bow
import bow.training.trials as trials_module
import bow.training.tuning as module
from bow.cluster import ALONE
from bow.devices import threads_loss
from bow.errors import SettingError
from bow.observe.records import read_records
from bow.runtime.loading import BUILD_S
from bow.training.replicas import ReplicasConfig
from bow.training.trials import Request, Trials, candidates
from bow.training.tuning import (
    Tuned,
    build,
    check_tuner,
    describe,
    most_while_training,
    tune,
    tuned_before,
    without_spinning,
)
from bow.tuner import EngineSetting, Trial, TrialResult, Tuner
from tests.training.blueprints import (
    Behind,
    Data,
    Train,
    assert_equal_models,
    linear,
    opened,
    replicas_config,
    request,
)

ALWAYS = Tuner(cache=False)


class Machine:
    """Throughput by setting, instead of trials.

    Attributes:
        trials: that were asked for.
        closed: how often learners were let go.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rate: Callable[[EngineSetting], float | None]) -> None:
        self.trials: list[EngineSetting] = []
        self.closed = 0
        self.rate = rate
        monkeypatch.setattr(Trials, "run", lambda _, trial: self._run(trial))
        monkeypatch.setattr(Trials, "probe", lambda *_: 1000.0)
        monkeypatch.setattr(Trials, "compile_s", lambda *_: None)
        monkeypatch.setattr(Trials, "close", lambda _: self._close())

    def _run(self, trial: Trial) -> TrialResult:
        self.trials.append(trial.setting)
        rate = self.rate(trial.setting)
        if rate is None:
            return TrialResult(trial.setting, failure="does not run", seconds=0.01)
        return TrialResult(trial.setting, [rate] * trial.repeats, trial.seconds)

    def _close(self) -> None:
        self.closed += 1


def streams_with_two(setting: EngineSetting) -> float:
    return 1000.0 * min(setting.learners, 2) * (2 if setting.engine == "streams" else 1)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, streams_with_two)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where choices are kept."""
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    return tmp_path / "choices"


def tuned(
    tuner: Tuner = ALWAYS, loss: Any = cross_entropy, plan: ReplicasConfig | None = None, **settings: Any
) -> Tuned:
    said: list[str] = []
    asked = request(**settings, **({} if plan is None else {"replicas": plan}))
    return tune(asked, opened(), tuner, loss=loss, say=said.append)


def test_the_fastest_setting_is_chosen(machine: Machine) -> None:
    found = tuned()
    assert (found.engine, found.learners, found.source) == ("streams", 2, "calibration")
    assert found.summary.startswith("streams, 2 learners; ")
    assert [row["status"] for row in found.rows].count("chosen") == 1
    assert found.is_complete
    assert machine.closed == 1


@pytest.mark.parametrize(
    ("given", "engines", "learners"),
    [({"learners": 3}, {"streams", "graph", "eager", "fused"}, {3}), ({"engine": "graph"}, {"graph"}, {1, 2, 3, 4})],
    ids=["learners", "engine"],
)
def test_what_is_given_is_not_searched(
    machine: Machine, given: dict[str, Any], engines: set[str], learners: set[int]
) -> None:
    found = tuned(**given)
    assert {setting.engine for setting in machine.trials} == engines
    assert {setting.learners for setting in machine.trials} <= learners
    for name, value in given.items():
        assert getattr(found, name) == value


def test_nothing_is_measured_where_nothing_is_open(machine: Machine) -> None:
    found = tuned(engine="eager", learners=2)
    assert (found.source, found.summary, machine.trials) == ("given", "", [])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rounds": 99}, "99 rounds are too few"),
        ({"samples": 1000}, "about 500 ms is too short to measure in 5 % of it"),
    ],
    ids=str,
)
@pytest.mark.parametrize("built", [True, False])
def test_short_trainings_follow_the_rule(
    machine: Machine, given: dict[str, Any], why: str, built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.choice.is_built", lambda: built)
    found = tuned(**given)
    assert (found.engine, found.learners, found.source) == (
        "graph" if built and "samples" in given else "eager",
        3,
        "rule",
    )
    assert why in found.summary
    assert machine.trials == []


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("can", "rounds"), [(True, 1000), (False, 1000), (True, 99)])
def test_the_rule_does_not_wait_for_the_runtime_and_says_how_to_build_it(
    can: bool, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.choice.is_built", lambda: False)
    monkeypatch.setattr(module, "can_be_built", lambda: can)
    found = tuned(samples=1000, rounds=rounds)
    assert found.engine == "eager"
    assert ("python -m bow.runtime" in found.summary) is can


def test_trainings_of_unknown_length_are_measured(machine: Machine) -> None:
    assert tuned(samples=None, rounds=None).source == "calibration"


def test_the_rule_takes_over_where_nothing_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.engines.choice.is_built", lambda: True)
    machine.rate = lambda setting: None
    found = tuned()
    assert (found.engine, found.learners, found.source) == ("graph", 3, "rule")
    assert found.summary.endswith("no setting ran")
    assert {row["why"] for row in found.rows if row["status"] == "failed"} == {"does not run"}


def test_the_rule_takes_over_where_there_is_no_room_for_any_engine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplicasConfig, "most_learners", lambda self, engine, wanted: 0)
    assert tuned(engine="fused").summary.endswith("not enough memory for any engine")


def test_the_rule_takes_over_where_a_learning_task_cannot_be_compiled(machine: Machine) -> None:
    assert tuned(engine="graph", compile=True).summary.endswith("its learning task cannot be compiled")


@pytest.mark.parametrize(("rule", "learners"), [(4, 4), (2, 4), (1, 2)])
def test_an_engine_that_compiles_for_each_number_begins_with_twice_the_rule_for_tiny_models(
    machine: Machine, rule: int, learners: int
) -> None:
    machine.rate = lambda setting: 1000.0 * setting.learners
    found = tuned(engine="fused", rule=rule)
    assert (found.engine, found.learners, found.source) == ("fused", learners, "calibration")
    assert len(set(machine.trials)) == 1


def test_what_came_before_the_first_trial_is_part_of_what_was_spent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(*_: Any) -> float:
        time.sleep(0.5)
        return 1000.0

    monkeypatch.setattr(Trials, "probe", probe)
    machine.rate = lambda setting: None if setting.learners > 1 or setting.engine != "eager" else 1000.0
    found = tuned(engine="eager")
    spent = re.search(r"tried in ([\d.]+) s", found.summary)
    assert float(spent[1]) >= 0.5
    assert found.seconds >= 0.5


@pytest.mark.parametrize("engine", ["auto", "streams", "fused", "graph"])
def test_the_probe_uses_one_thread(machine: Machine, monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    asked: list[EngineSetting] = []

    def probe(_: Trials, setting: EngineSetting) -> float:
        asked.append(setting)
        return 1e12

    monkeypatch.setattr(Trials, "probe", probe)
    tuned(engine=engine)
    assert asked == [EngineSetting("graph" if engine in ("graph", "auto") else "eager")]


class SpinningMachine:
    """Where several threads are sixty times slower than one, and the first learners need seconds to be imported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, start_s: float) -> None:
        self.now = 0.0
        self.start_s = start_s
        self.num_trials = 0
        clock = types.SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "is_built", lambda: True)
        monkeypatch.setattr(trials_module, "is_built", lambda: True)
        monkeypatch.setattr(Trials, "probe", lambda _, setting: self.probe(setting))
        monkeypatch.setattr(Trials, "compile_s", lambda *_: None)
        monkeypatch.setattr(Trials, "_first_round", lambda trials, setting: self.first_round(trials, setting))
        monkeypatch.setattr(Trials, "_stretch", lambda _, replicas, seconds: self.stretch(replicas, seconds))

    def rate(self, setting: EngineSetting) -> float:
        engines = {"graph": 2500.0, "graph+compiled": 4000.0, "streams": 1500.0, "fused": 900.0, "eager": 800.0}
        return engines[setting.engine] * min(setting.learners, 2) ** 0.9 / (60 if setting.threads > 1 else 1)

    def probe(self, setting: EngineSetting) -> float:
        self.now += self.start_s
        self.first_round(None, setting)
        return self.stretch(setting, 0.05)

    def first_round(self, trials: Any, setting: EngineSetting) -> tuple[Any, float, float]:
        self.now += 0.15
        if trials is not None:
            trials._clock = lambda: self.now
            self.num_trials += 1
        return setting, 0.0, self.stretch(setting, 0.0) / 2

    def stretch(self, setting: Any, seconds: float) -> float:
        self.now += max(seconds, 16 * setting.learners / self.rate(setting))
        return self.rate(setting)


@pytest.mark.parametrize("start_s", [0.0, 1.5])
@pytest.mark.parametrize("samples", [1e3, 1e4, 3e4, 1e5, 3e5, 1e6, 1e7])
def test_trials_keep_to_their_share_of_the_training_that_is_coming(
    monkeypatch: pytest.MonkeyPatch, samples: float, start_s: float
) -> None:
    machine = SpinningMachine(monkeypatch, start_s)
    found = tuned(samples=samples)
    if machine.num_trials:
        coming_s = samples / machine.rate(EngineSetting("graph", 2))
        assert machine.now <= 0.05 * coming_s
        assert (found.engine, found.learners, found.source) == ("graph", 2, "calibration")
    assert machine.num_trials or samples < 1e6


def test_what_is_said_has_three_lines_at_most_at_80_columns(machine: Machine) -> None:
    said: list[str] = []
    found = tune(request(), opened(), ALWAYS, loss=cross_entropy, say=said.append)
    said.append(f"engine and learners: {found.summary}")
    assert [line for line in "\n".join(said).splitlines() if len(line) > 80] == []
    assert len("\n".join(said).splitlines()) <= 3


def test_building_the_native_runtime_has_to_pay(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(**settings: Any) -> list[tuple[str, float]]:
        found = candidates(request(**settings), Trials(replicas_config(), opened().feed()))
        return [(each.engine, each.compile_s) for each in found if each.engine.startswith("graph")]

    monkeypatch.setattr(trials_module, "is_built", lambda: True)
    assert {seconds for _, seconds in names()} == {0.0}
    monkeypatch.setattr(trials_module, "is_built", lambda: False)
    captured = []
    monkeypatch.setattr(Trials, "compile_s", lambda *_: captured.append(1))
    assert dict(names()) == {"graph": BUILD_S}
    assert dict(names(engine="graph")) == {"graph": BUILD_S, "graph+compiled": BUILD_S + trials_module.COMPILE_S}
    assert captured == []  # which would build it
    assert "graph" not in {setting.engine for setting in machine.trials}
    assert tuned(samples=5e5).engine != "graph"  # 500 s
    assert machine.trials
    assert "graph" not in {setting.engine for setting in machine.trials}


def test_more_learners_than_the_synchroniser_is_stable_with_are_not_tried(machine: Machine) -> None:
    machine.rate = lambda setting: 1000.0 * setting.learners
    found = tuned(plan=replicas_config(sync=bow.SMA(alpha=0.7)))
    assert max(setting.learners for setting in machine.trials) == found.learners == 2
    assert tuned(plan=replicas_config(sync=bow.SMA(alpha=0.7)), rounds=5).learners == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_learners_of_trials_are_let_go_after_an_error(machine: Machine, error: type[BaseException]) -> None:
    def fail(setting: EngineSetting) -> float:
        raise error

    machine.rate = fail
    with pytest.raises(error):
        tuned()
    assert machine.closed == 1


def test_a_choice_is_found_again(machine: Machine, folder: Path) -> None:
    first = tuned(Tuner())
    tried = len(machine.trials)
    again = tuned(Tuner())
    assert len(machine.trials) == tried
    assert again.source == "cache"
    assert (again.engine, again.learners, again.threads) == (first.engine, first.learners, first.threads)
    assert again.rows == tuple(first.rows)
    assert "measured for an earlier training" in again.summary


def test_a_choice_that_does_not_fit_any_more_is_measured_anew(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(Tuner())
    monkeypatch.setattr(ReplicasConfig, "most_learners", lambda self, engine, wanted: min(wanted, 1))
    found = tuned(Tuner())
    assert (found.source, found.learners) == ("calibration", 1)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "bow choice"}'])
def test_a_damaged_choice_is_measured_anew(machine: Machine, folder: Path, content: str) -> None:
    tuned(Tuner())
    (path,) = folder.iterdir()
    path.write_text(content)
    assert tuned(Tuner()).source == "calibration"
    assert tuned(Tuner()).source == "cache"


def test_a_folder_that_cannot_be_written_is_said_and_pins_are_refused(machine: Machine, folder: Path) -> None:
    folder.write_text("a file is in the way")
    with pytest.warns(UserWarning, match="the tuner's choice cannot be kept"):
        assert tuned(Tuner()).source == "calibration"
    with pytest.raises(SettingError, match="the pin cannot be kept"), pytest.warns(UserWarning, match="kept"):
        tuned(Tuner(pin=True))


def test_a_choice_stays_pinned(machine: Machine, folder: Path) -> None:
    tuned(Tuner(pin=True))
    assert tuned(Tuner()).source == "pinned"
    assert len(list(folder.iterdir())) == 2


def test_a_choice_that_was_kept_is_pinned_without_measuring(machine: Machine, folder: Path) -> None:
    tuned(Tuner())
    tried = len(machine.trials)
    assert tuned(Tuner(pin=True)).source == "cache"
    assert tuned(Tuner()).source == "pinned"
    assert len(machine.trials) == tried


def test_a_calibration_that_was_cut_short_is_kept_only_where_it_is_pinned(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNKNOWN_BUDGET_S", 0.5)
    unknown = {"samples": None, "rounds": None}
    assert not tuned(Tuner(), **unknown).is_complete
    assert not folder.exists()
    tuned(Tuner(pin=True), **unknown)
    assert tuned(Tuner(), **unknown).source == "pinned"


def test_a_pinned_setting_is_taken_as_it_is(machine: Machine) -> None:
    found = tuned(Tuner(pinned=EngineSetting("graph+compiled", learners=7, threads=2)))
    assert (found.engine, found.learners, found.threads, found.compile) == ("graph", 7, 2, True)
    assert (found.source, machine.trials) == ("pinned", [])


def key(plan: ReplicasConfig | None = None, loss: Any = cross_entropy, asked: Request | None = None) -> Any:
    asked = dataclasses.replace(asked or request(), replicas=plan or replicas_config())
    description = describe(asked, opened(), Tuner(), loss)
    json.dumps(description)  # plain values
    return description


def lambda_sgd(lr: float) -> Any:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def weighted(weight: float) -> Any:
    return functools.partial(cross_entropy, label_smoothing=weight)


class Squared(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) ** 2


def cubed() -> type[nn.Module]:
    """A class that looks the same, and does something else."""

    class Cubed(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) ** 3

    Cubed.__name__ = Cubed.__qualname__ = "Squared"
    Cubed.forward.__qualname__ = Squared.forward.__qualname__
    return Cubed


SAME = {
    "learning rate": lambda: key(replicas_config(optimizer=functools.partial(torch.optim.SGD, lr=7.0, momentum=0.9))),
    "optimizer as a lambda": lambda: key(replicas_config(optimizer=lambda_sgd(0.2))),
    "seed": lambda: key(replicas_config(seed=5)),
    "weights": lambda: key(replicas_config(model=nn.Linear(5, 3))),
}

OTHER = {
    "model": lambda: key(replicas_config(model=nn.Linear(5, 3, bias=False))),
    "what its modules do": lambda: key(replicas_config(model=Squared(5, 3))),
    "what they do otherwise": lambda: key(replicas_config(model=cubed()(5, 3))),
    "dropout": lambda: key(replicas_config(model=nn.Sequential(linear(), nn.Dropout(0.5)))),
    "optimizer": lambda: key(replicas_config(optimizer=torch.optim.Adam)),
    "momentum": lambda: key(replicas_config(optimizer=functools.partial(torch.optim.SGD, lr=0.1))),
    "loss": lambda: key(loss=mse_loss),
    "bound": lambda: key(loss=weighted(0.1)),
    "a lambda": lambda: key(loss=lambda outputs, targets: cross_entropy(outputs, targets)),
    "another lambda": lambda: key(loss=lambda outputs, targets: cross_entropy(outputs, targets) * 2),
    "a loss that is a module": lambda: key(loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
    "synchroniser": lambda: key(replicas_config(sync=bow.EASGD())),
    "clipping": lambda: key(replicas_config(clip_norm=1.0)),
    "a schedule": lambda: key(replicas_config().with_engine(schedule=bow.Schedule.sequential(3))),
    "asked for": lambda: key(asked=request(learners=2)),
    "length": lambda: key(asked=request(samples=1e9)),
}


@pytest.mark.parametrize("what", SAME)
def test_a_choice_does_not_depend_on(what: str) -> None:
    assert SAME[what]() == key()


def test_everything_else_has_a_choice_of_its_own() -> None:
    keys = {"nothing": key(), **{what: make() for what, make in OTHER.items()}}
    texts = {json.dumps(value): what for what, value in keys.items()}
    assert set(texts.values()) == set(keys)
    assert {what: make() for what, make in OTHER.items()} == {what: keys[what] for what in OTHER}  # no addresses


def test_the_number_of_threads_is_part_of_the_machine() -> None:
    before = key()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert key() != before
    finally:
        torch.set_num_threads(threads)


def state(learners: int = 4, **before: Any) -> dict[str, Any]:
    usual = {"threads": None, "compile": False, "source": "rule", "memory_format": None, "compiles_later": False}
    return {"learners": learners, "tuned": {**usual, **before}}


GRAPH = {"engine": "graph", "threads": 2, "compile": True}

RESUMED: list[tuple[dict[str, Any], dict[str, Any], Tuner, tuple[Any, ...]]] = [
    (state(**GRAPH, source="calibration"), {}, Tuner(), ("graph", 4, 2, True, "checkpoint")),
    (state(**GRAPH, source="pinned"), {}, Tuner(), ("graph", 4, 2, True, "pinned")),
    (state(**GRAPH, source="calibration"), {"learners": 6}, Tuner(), ("graph", 6, 2, True, "checkpoint")),
    (state(**GRAPH, source="calibration"), {"engine": "eager"}, Tuner(), ("eager", 4, None, False, "given")),
    (
        state(**GRAPH, source="calibration"),
        {"engine": "graph", "learners": 2},
        Tuner(),
        ("graph", 2, None, False, "given"),
    ),
    (state(**GRAPH), {}, Tuner(pinned=EngineSetting("eager", 3)), ("eager", 3, 1, False, "pinned")),
    (state(engine="eager"), {}, Tuner(), ("eager", 4, None, False, "rule")),
    (state(engine="graph+round", threads=1), {}, Tuner(), ("graph", 4, None, False, "rule")),
    (state(engine="auto"), {}, Tuner(), ("graph", 4, None, False, "rule")),
    (state(engine="graph+round"), {"compile": True}, Tuner(), ("graph", 4, None, True, "rule")),
]


@pytest.mark.parametrize(("before", "asked", "tuner", "expected"), RESUMED)
def test_a_training_goes_on_with_what_it_began_with(
    before: dict[str, Any],
    asked: dict[str, Any],
    tuner: Tuner,
    expected: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bow.engines.choice.is_built", lambda: True)
    found = tuned_before(before, request(**asked), tuner)
    assert (found.engine, found.learners, found.threads, found.compile, found.source) == expected


@pytest.mark.parametrize(
    ("source", "asked", "tuner", "engine", "most"),
    [
        ("calibration", {}, Tuner(), "graph", 4),
        ("cache", {}, Tuner(), "streams", 4),
        ("checkpoint", {}, Tuner(), "graph", 4),
        ("calibration", {"learners": 2}, Tuner(), "graph", 0),
        ("calibration", {}, Tuner(online=False), "graph", 0),
        ("pinned", {}, Tuner(), "graph", 0),
        ("rule", {}, Tuner(), "graph", 0),
        ("calibration", {}, Tuner(), "fused", 0),
        ("calibration", {}, Tuner(), "eager", 0),
    ],
)
def test_learners_come_and_go_only_where_that_was_measured(
    source: Any, asked: dict[str, Any], tuner: Tuner, engine: Any, most: int
) -> None:
    begun = Tuned(engine, 2, 1, False, source)
    assert most_while_training(begun, request(**asked), tuner) == most


def test_a_tuner_with_nothing_to_tune_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="has no effect with engine=.eager"):
        check_tuner(Tuner(), request(engine="eager", learners=2))


def test_a_pinned_setting_that_contradicts_is_refused() -> None:
    with pytest.raises(SettingError, match=r"learners=2 contradicts the tuner's pinned eager, 3 learners"):
        check_tuner(Tuner(pinned=EngineSetting("eager", 3)), request(learners=2))


def test_candidates_have_different_names_and_fit_the_request() -> None:
    for settings in ({}, {"compile": True}, {"engine": "fused"}, {"learners": 2}):
        trials = Trials(replicas_config(), opened().feed())
        trials.compile_s = lambda setting: 9.0  # type: ignore[method-assign]
        found = candidates(request(**settings), trials)
        names = [(each.engine, each.threads) for each in found]
        assert len(set(names)) == len(names) > 0
        assert all(max(each.counts) <= 4 for each in found)


@pytest.mark.parametrize(
    ("settings", "compile_s", "in_front"),
    [
        ({}, 9.0, False),
        ({}, 0.0, True),
        ({}, None, False),
        ({"compile": True}, 9.0, True),
        ({"engine": "graph"}, 9.0, True),
        ({"replicas": replicas_config(is_several=True)}, 9.0, True),  # nothing is compiled beside their rounds
    ],
)
def test_nothing_is_compiled_in_front_of_the_first_round_unless_the_engine_is_named(
    settings: dict[str, Any], compile_s: float | None, in_front: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_module, "is_built", lambda: True)
    monkeypatch.setattr(Trials, "compile_s", lambda *_: compile_s)
    found = candidates(request(**settings), Trials(replicas_config(), opened().feed()))
    assert ("graph+compiled" in {each.engine for each in found}) is in_front


def test_what_is_compiled_already_is_tried_in_both_orders_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "is_built", lambda: True)
    monkeypatch.setattr(trials_module, "has_choice_of_format", lambda replicas: True)
    monkeypatch.setattr(Trials, "compile_s", lambda _, setting: 0.0 if "channels_last" in setting.engine else 9.0)
    found = {each.engine for each in candidates(request(), Trials(replicas_config(), opened().feed()))}
    assert {"graph", "graph+channels_last", "graph+compiled+channels_last"} <= found
    assert "graph+compiled" not in found


def test_the_order_of_memory_that_was_chosen_is_compiled_beside_the_rounds(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def compile_s(_: Trials, setting: EngineSetting) -> float:
        asked.append(setting.engine)
        return 9.0

    machine.rate = lambda setting: 10_000.0 if setting.engine == "graph+channels_last" else 5000.0
    monkeypatch.setattr(trials_module, "is_built", lambda: True)
    monkeypatch.setattr(trials_module, "has_choice_of_format", lambda replicas: True)
    monkeypatch.setattr(Trials, "compile_s", compile_s)
    found = tuned(Tuner())
    assert (found.engine, found.memory_format, found.compiles_later) == ("graph", "channels_last", True)
    assert asked[-1] == "graph+channels_last"


@pytest.mark.parametrize(
    ("settings", "compile_s", "later"),
    [
        ({}, 9.0, True),
        ({"learners": 2}, 9.0, True),
        ({}, 0.0, False),
        ({}, None, False),
        ({"samples": 1e6}, 9.0, False),  # more than its share of a training of 100 s
        ({"samples": None}, 9.0, False),
        ({"engine": "graph"}, 9.0, False),
        ({"compile": True}, 9.0, False),
    ],
)
def test_compiling_beside_the_rounds_has_to_pay(
    machine: Machine,
    settings: dict[str, Any],
    compile_s: float | None,
    later: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine.rate = lambda setting: {"graph": 10_000.0, "graph+compiled": 11_000.0}.get(setting.engine, 5000.0)
    monkeypatch.setattr(trials_module, "is_built", lambda: True)
    monkeypatch.setattr(Trials, "compile_s", lambda *_: compile_s)
    found = tuned(Tuner(), **settings)
    assert found.compiles_later is later
    if later:  # a later training finds it compiled, and tries it
        assert not list(folder.glob("*.json"))
        monkeypatch.setattr(Trials, "compile_s", lambda *_: 0.0)
        assert tuned(Tuner(), **settings).compile


def test_threads_are_set_for_the_training_and_put_back(
    train: Train, model: nn.Module, data: Data, machine: Machine
) -> None:
    seen: list[int] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        seen.append(torch.get_num_threads())
        return cross_entropy(model(batch[0]), batch[1])

    before = torch.get_num_threads()
    settings = {
        "engine": "auto",
        "learners": "auto",
        "tuner": Tuner(pinned=EngineSetting("eager", 2, threads=before + 1)),
    }
    result = train(model, data, step=step, validation=data, **settings)
    assert seen[0] == before + 1
    assert seen[-1] == before  # of the evaluation
    assert torch.get_num_threads() == before
    assert (result.engine, result.learners) == ("eager", 2)
    with pytest.raises(ZeroDivisionError):
        train(model, data, callbacks=[Behind(lambda run: 1 / 0)], run_dir=None, **settings)
    assert torch.get_num_threads() == before


def test_the_records_say_how_engine_and_learners_were_found(
    train: Train, model: nn.Module, data: Data, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEWEST_ROUNDS", 0)
    monkeypatch.setattr(module, "LEAST_BUDGET_S", 0.0)
    large = tuple(tensor.repeat(100, *[1] * (tensor.dim() - 1)) for tensor in data)
    result = train(model, large, engine="auto", learners="auto", tuner=Tuner(share=1.0, online=False))
    kinds = read_records(result.run_dir / "metrics.jsonl")
    assert [record["kind"] for record in kinds[:2]] == ["start", "calibration"]
    record = kinds[1]
    assert (record["engine"], record["learners"]) == (result.engine, result.learners)
    assert record["source"] == "calibration"
    assert record["calibration_s"] == result.calibration_s
    assert record["threads"] >= 1
    assert record["compile"] is False
    assert any(row["status"] == "chosen" for row in record["rows"])
    assert result.calibration_s > 0


def test_trials_leave_the_training_as_it_would_be_without(
    train: Train, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real trials: of a model with dropout and buffers, and of a training that is then given what was found."""
    monkeypatch.setattr(module, "FEWEST_ROUNDS", 0)
    monkeypatch.setattr(module, "LEAST_BUDGET_S", 0.0)
    monkeypatch.setattr(module, "MOST_BUDGET_S", 0.1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    common = {"engine": "eager", "epochs": 2, "compile": False}
    tuner = Tuner(share=1.0, online=False, cache=False)
    large = tuple(tensor.repeat(10, *[1] * (tensor.dim() - 1)) for tensor in data)
    with warnings.catch_warnings():
        measured = train(model, large, learners="auto", tuner=tuner, **common)
    given = train(model, large, learners=measured.learners, run_dir=tmp_path / "other", **common)
    assert measured.calibration_s > 0
    assert_equal_models(measured.model, given.model)
    assert [r["train_loss"] for r in measured.history] == [r["train_loss"] for r in given.history]


def test_checkpoints_are_gone_on_from(train: Train, model: nn.Module, data: Data, machine: Machine) -> None:
    tuner = Tuner(pinned=EngineSetting("streams", 3))
    settings = {"engine": "auto", "learners": "auto", "checkpoint_every": 2}
    result = train(model, data, tuner=tuner, **settings)
    again = train(model, data, resume=result.run_dir, epochs=2, **settings)
    assert again.learners == 3
    assert again.engine == "streams"
    assert again.history[-1]["samples"] == 96


def test_builds_what_was_chosen() -> None:
    threads = torch.get_num_threads()
    try:
        replicas = build(
            Tuned("eager", 2, threads + 1, False, "calibration"), replicas_config(), 100, ALONE, learners=3
        )
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert (replicas.engine, replicas.learners) == ("eager", 3)
    assert dataclasses.asdict(EngineSetting("eager", 2)) == {"engine": "eager", "learners": 2, "threads": 1}


@pytest.mark.parametrize(("loss", "policy", "threads"), [(40.0, "", 1), (2.0, "", None), (40.0, "PASSIVE", None)])
def test_one_thread_is_used_where_several_spin(
    monkeypatch: pytest.MonkeyPatch, loss: float, policy: str, threads: int | None
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(module, "threads_loss", lambda threads, **limits: (loss, loss, loss))
    said: list[str] = []
    given = Tuned("eager", 2, None, False, "given")
    found = without_spinning(given, replicas_config(), said.append)
    assert found.threads == threads
    assert [len(line) <= 80 for line in said] == [True] * (threads is not None)
    resumed = tuned_before(state(2, **found.setting), request(engine="eager", learners=2), ALWAYS)
    assert resumed.threads == threads


@pytest.mark.parametrize(
    ("loss", "limit_s", "turns"), [(1.0, 60.0, 1), (40.0, 60.0, 1), (5.0, 60.0, 5), (5.0, 0.01, 1)]
)
def test_the_loss_of_several_threads_is_measured_until_it_is_clear_or_time_is_up(
    monkeypatch: pytest.MonkeyPatch, loss: float, limit_s: float, turns: int
) -> None:
    windows: list[int] = []

    def window(*_: object) -> float:
        windows.append(torch.get_num_threads())
        time.sleep(0.01)
        return 1.0 if windows[-1] == 1 else loss

    monkeypatch.setattr("bow.timing.time_window", window)
    monkeypatch.setattr(module, "SPINNING_S", limit_s)
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = without_spinning(Tuned("eager", 2, None, False, "given"), replicas_config(), lambda _: None)
    finally:
        torch.set_num_threads(threads)
    assert len(windows) == 2 * turns
    assert found.threads == (1 if loss >= 3 else None)


def test_the_loss_of_several_threads_leaves_their_number_as_it_was() -> None:
    before = torch.get_num_threads()
    low, median, high = threads_loss(2)
    assert 0 < low <= median <= high
    assert torch.get_num_threads() == before
