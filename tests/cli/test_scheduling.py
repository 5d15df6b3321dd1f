"""`bow schedule`, for real on small steps; and what a user does wrong, in a sentence."""

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bow.cli import main, scheduling
from bow.devices import available_cores
from bow.errors import RuntimeUnavailableError
from bow.graph import StepGraph, capture
from bow.models import NETWORKS
from bow.models.networks import Network, Size
from bow.schedule import OrderedSchedule, Schedule, Timeline
from bow.schedule.profiler import BoundStep, Comparison, Policy, Profile

RECIPE = ["recipe=logistic_regression", "batch_size=4"]
"""Few operators, so that it is quick."""

SHARED = pytest.mark.skipif(len(available_cores()) < 2, reason="operators side by side need two cores")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run; what they measure is kept there, too."""
    monkeypatch.setattr("bow.schedule.profiler.measuring.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(scheduling, "REPEATS", 2)
    measure = functools.partial(scheduling.measure, repeats=2)
    monkeypatch.setattr(scheduling, "measure", measure)
    monkeypatch.setattr(scheduling, "symmetric", functools.partial(scheduling.symmetric, turns=1, window_s=0.0))
    return tmp_path


@pytest.fixture(scope="module")
def captured() -> Callable[..., StepGraph]:
    """Captures the first step that it is given, for all tests of the short LSTM."""
    graphs: list[StepGraph] = []

    def captured(*given: Any, **options: Any) -> StepGraph:
        if not graphs:
            graphs.append(capture(*given, **options))
        return graphs[0]

    return captured


@pytest.fixture
def short_lstm(monkeypatch: pytest.MonkeyPatch, captured: Callable[..., StepGraph]) -> Network:
    """The LSTM of the papers in a size that takes no time."""
    monkeypatch.setattr("bow.schedule.profiler.measuring.capture", captured)
    lstm = NETWORKS["lstm"]
    size = Size({"vocabulary": 5, "hidden": 4, "layers": 2}, (2,), batch=3)
    short = Network(lstm.title, lstm.model, lstm.loss, lstm.samples, {"tiny": size, "short": size})
    monkeypatch.setattr("bow.models.networks.NETWORKS", {"lstm": short})
    return short


def profile_of(folder: Path) -> Profile:
    return Profile.from_json((folder / "profile.json").read_text())


def test_help_names_every_action(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["schedule"], ["schedule", "--help"], ["schedule", "profile", "--help"], ["schedule", "run", "-h"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"  {action} " in shown for action in scheduling.ACTIONS)


@pytest.mark.usefixtures("short_lstm")
def test_a_network_of_the_papers_is_profiled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "profile", "network=lstm"]) == 0
    shown = capsys.readouterr().out
    profile = profile_of(folder / "schedule")
    assert f"measuring {len(profile.names)} operators with 1 thread" in shown
    assert "The 10 longest operators" in shown
    assert f"1 x {len(available_cores())}" in shown
    assert ("aten.addmm.default", "lstm.cells.0") in zip(profile.names, profile.modules, strict=True)
    assert shown.rstrip().endswith("files: schedule")


@pytest.mark.usefixtures("short_lstm")
def test_what_is_known_is_not_measured_again_unless_fresh_times_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    measured = []
    for words in ([], [], ["fresh=true"], ["fresh=false", "size=short"]):
        main(["schedule", "profile", "network=lstm", *words])
        measured.append("measuring" in capsys.readouterr().out)
    assert measured == [True, False, True, False]


def test_a_recipe_is_profiled_with_its_model_loss_and_batch(folder: Path) -> None:
    assert main(["schedule", "profile", *RECIPE, "out=there"]) == 0
    names = profile_of(folder / "there").names
    assert "aten.addmm.default" in names
    assert "aten.nll_loss_forward.default" in names
    assert not any("to_copy" in name for name in names)


def test_the_step_is_the_one_that_a_training_runs(folder: Path) -> None:
    """Its precision too: a strategy for other operators would fit no training."""
    main(["schedule", "profile", *RECIPE, "engine.precision=bfloat16"])
    assert "aten._to_copy.default" in profile_of(folder / "schedule").names


@pytest.mark.quick
@pytest.mark.usefixtures("short_lstm")
def test_policies_are_simulated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "simulate", "network=lstm"]) == 0
    shown = capsys.readouterr().out
    assert "The critical path: " in shown
    assert "parallelism" in shown
    assert all(f"strategy {number}" in shown for number in (1, 2, 3))
    timeline = Timeline.load(folder / "schedule" / "timeline.json")
    assert {place.split()[0] for place in timeline.places} == {"simulated"}
    assert (folder / "schedule" / "timeline.svg").read_text().startswith("<svg")


@SHARED
@pytest.mark.usefixtures("short_lstm")
def test_a_policy_is_run_beside_what_was_simulated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"critical path, fixed order, {len(available_cores())} executors of 1 thread"
    assert main(["schedule", "run", "network=lstm", f"policy={name}"]) == 0
    shown = capsys.readouterr().out
    assert f"{name}: a step of " in shown
    assert "operators run at once on average" in shown
    assert len(shown.split("each tenth of the step, measured: ")[1].splitlines()[0].split()) == 10
    assert "sequential, " in shown
    count = len(profile_of(folder / "schedule").names)
    spans = Timeline.load(folder / "schedule" / "timeline.json").spans
    for kind in ("simulated", "measured"):
        own = [span.details["operator"] for span in spans if span.place.startswith(kind)]
        assert sorted(own) == list(range(count))


@pytest.mark.usefixtures("short_lstm")
def test_the_fastest_in_simulated_time_is_run_where_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "run", "network=lstm"]) == 0
    assert ": a step of " in capsys.readouterr().out


@pytest.fixture
def made_up_seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds by the beginning of a policy's name; 1 where there is none. Nothing is timed."""
    seconds: dict[str, float] = {}

    def compare(subject: BoundStep, profile: Profile, *, turns: int, **_: object) -> Comparison:
        policies = tuple(scheduling.make_policies(subject, profile, 2))
        taken = {policy.name: (_seconds(seconds, policy),) * turns for policy in policies}
        return Comparison(policies, taken, scheduling.critical_path(subject.dependencies, profile.nanoseconds(1)))

    monkeypatch.setattr(scheduling, "compare", compare)
    return seconds


def _seconds(seconds: dict[str, float], policy: Policy) -> float:
    return next((own for name, own in seconds.items() if policy.name.startswith(name)), 1.0)


@SHARED
def test_the_best_strategy_with_an_order_is_written_for_training(
    folder: Path, capsys: pytest.CaptureFixture[str], made_up_seconds: dict[str, float]
) -> None:
    made_up_seconds |= {"first come": 0.5, "strategy 3": 0.8}
    assert main(["schedule", "compare", *RECIPE]) == 0
    shown = capsys.readouterr().out
    assert "\nfirst come, 2 executors of 1 thread: 2.00 times as fast as sequential, 1 thread\n" in shown
    assert "for training, which needs a fixed order: strategy 3: bow train engine=graph" in shown
    schedule = Schedule.from_json((folder / "schedule" / "strategy.json").read_text())
    assert isinstance(schedule, OrderedSchedule)
    places = {place.split()[0] for place in Timeline.load(folder / "schedule" / "timeline.json").places}
    assert places == {"simulated", "measured"}


@SHARED
def test_what_is_written_trains(made_up_seconds: dict[str, float]) -> None:
    made_up_seconds |= {"critical path, fixed order": 0.8}
    assert main(["schedule", "compare", *RECIPE]) == 0
    words = ["engine.schedule=schedule/strategy.json", "engine=graph", "learners=1", "epochs=1", "data.limit=16"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that the strategy does not fit
        assert main(["train", *RECIPE, *words, "run=run", "run.progress=false"]) == 0


@SHARED
def test_a_strategy_of_before_is_removed_where_none_is_worth_it(
    folder: Path, capsys: pytest.CaptureFixture[str], made_up_seconds: dict[str, float]
) -> None:
    (folder / "schedule").mkdir()
    (folder / "schedule" / "strategy.json").write_text("of before")
    made_up_seconds |= {"first come": 0.5, "strategy 3": 0.99}
    assert main(["schedule", "compare", *RECIPE]) == 0
    assert "no strategy for training: operators run one after another fastest" in capsys.readouterr().out
    assert not (folder / "schedule" / "strategy.json").exists()


@pytest.mark.usefixtures("short_lstm")
def test_policies_are_really_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "compare", functools.partial(scheduling.compare, window_s=0.0))
    assert main(["schedule", "compare", "network=lstm", "turns=1"]) == 0
    shown = capsys.readouterr().out
    assert "measured" in shown
    assert "over the" in shown


MISTAKES = {
    "unknown action": (["profil"], "'profil' is not an action of bow schedule; did you mean profile?"),
    "unknown network": (["profile", "network=lstn"], "network='lstn' does not exist; did you mean lstm?"),
    "unknown size": (["profile", "network=lstm", "size=huge"], "network=lstm has no size 'huge'; choose one of"),
    "size of nothing": (["profile", "size=small"], "size=small is for network=NAME; give both"),
    "network and model": (
        ["profile", "network=lstm", "model=mlp"],
        "network=lstm takes no settings of a model",
    ),
    "unknown recipe": (["profile", "recipe=lenett"], "did you mean lenet?"),
    "no word": (["compare", "turns=some"], "turns must be a whole number of at least 1, got 'some'"),
    "no turns": (["compare", "turns=0"], "turns must be a whole number of at least 1, got 0"),
    "maybe": (["profile", "fresh=maybe"], "fresh must be true or false, got 'maybe'"),
    "a file in the place of the folder": (["profile", "out=occupied"], "out=occupied cannot be made (File exists)"),
    "a file in the way": (["profile", "out=occupied/there"], "out=occupied/there cannot be made (Not a directory)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_status_2(mistake: str, folder: Path, refused: Callable[..., str]) -> None:
    (folder / "occupied").write_text("")
    words, message = MISTAKES[mistake]
    refused(["schedule", *words], message)


@pytest.mark.sample(3)
@pytest.mark.usefixtures("short_lstm")
@pytest.mark.parametrize(
    ("action", "name"), [("profile", "profile.json"), ("simulate", "timeline.json"), ("simulate", "timeline.svg")]
)
def test_a_file_that_cannot_be_written_is_named(
    action: str, name: str, folder: Path, refused: Callable[..., str]
) -> None:
    (folder / "there" / name).mkdir(parents=True)
    message = f"cannot be written to 'there/{name}' (Is a directory); give another file"
    refused(["schedule", action, "network=lstm", "out=there"], message)


@pytest.mark.filterwarnings("always")
@pytest.mark.usefixtures("short_lstm")
def test_without_a_native_runtime_operators_are_measured_and_not_run_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def native() -> None:
        raise RuntimeUnavailableError("there is no compiler")

    monkeypatch.setattr(scheduling, "native", native)
    monkeypatch.setattr(scheduling, "is_available", lambda: False)
    assert main(["schedule", "profile", "network=lstm"]) == 0
    assert "operators are measured in Python: there is no compiler" in capsys.readouterr().err
    for action in ("run", "compare"):
        assert main(["schedule", action, "network=lstm"]) == 2
        assert capsys.readouterr().err == "bow: there is no compiler\n"


@pytest.mark.usefixtures("short_lstm")
def test_a_policy_that_does_not_exist_is_answered_with_those_that_do(refused: Callable[..., str]) -> None:
    message = "policy='fastest' does not exist; use one of: sequential, 1 thread;"
    refused(["schedule", "run", "network=lstm", "policy=fastest"], message)


@pytest.mark.filterwarnings("always")
@pytest.mark.usefixtures("short_lstm")
@pytest.mark.parametrize(
    ("word", "used_by"), [("policy=strategy 1", "run"), ("turns=3", "compare")], ids=["policy", "turns"]
)
def test_settings_without_effect_are_warned_of(word: str, used_by: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "profile", "network=lstm", word]) == 0
    name = word.partition("=")[0]
    said = capsys.readouterr().err
    assert f"{name} has no effect on bow schedule profile; it is for bow schedule {used_by}" in said


def test_a_step_of_the_users_own_is_what_is_scheduled(folder: Path) -> None:
    assert main(["schedule", "profile", *RECIPE, "step=tests.cli.steps.squared_outputs"]) == 0
    names = profile_of(folder / "schedule").names
    assert "aten.pow.Tensor_Scalar" in names
    assert not any("nll_loss" in name for name in names)


@pytest.mark.parametrize(
    ("name", "said"),
    [("Own", ""), ("Missing", "cannot be imported"), ("broken.Own", "cannot be imported (invalid syntax")],
)
def test_a_model_of_the_current_folder_is_scheduled(
    name: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models_of_mine", raising=False)
    (folder / "models_of_mine.py").write_text("from bow.models import LogisticRegression as Own\n")
    (folder / "broken.py").write_text("def f(:\n")
    target = name if "." in name else f"models_of_mine.{name}"
    assert main(["schedule", "profile", *RECIPE, f"model._target_={target}"]) == (2 if said else 0)
    assert said in capsys.readouterr().err
