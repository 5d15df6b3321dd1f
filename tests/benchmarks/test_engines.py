"""`python -m benchmarks engines`, for real but small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import engines, main
from benchmarks.contestants import BowTraining, Feed, PlainTraining, StepTraining, Trainings
from benchmarks.line_up import Lane
from benchmarks.measure import Contestant
from benchmarks.workloads import WORKLOADS
from bow.errors import SettingError

SMALL = ["models=logistic_regression", "batches=4", "learners=1,2", "repeats=2", "stint_s=0.005", "samples=64"]


def test_a_small_run_measures_everybody_and_writes_both_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    status = main("engines", [*SMALL, "rivals=eager", "threads=1", f"out={tmp_path}"])
    assert status == 0
    values = json.loads((tmp_path / "engines.json").read_text())
    (group,) = values["groups"]
    assert [(c["implementation"], c["learners"]) for c in group["contestants"]] == [("pytorch", None), ("eager", 1)]
    assert all(c["samples_per_s"]["median"] > 0 and c["samples_per_s"]["n"] == 2 for c in group["contestants"])
    assert group["contestants"][0]["ratio"]["median"] == 1.0
    assert values["environment"]["torch"] == torch.__version__
    assert "logistic regression" in (tmp_path / "engines.md").read_text()
    assert "logistic regression" in capsys.readouterr().out
    assert torch.get_num_threads() == threads


def test_the_json_says_what_follows_from_the_measurements(tmp_path: Path) -> None:
    main("engines", [*SMALL, "models=mlp,lstm", "learners=1", "rivals=eager", "threads=1", f"out={tmp_path}"])
    values = json.loads((tmp_path / "engines.json").read_text())
    assert [contest["model"] for contest in values["contests"]] == ["mlp", "lstm"]
    medians = [contest["ratio"]["median"] for contest in values["contests"]]
    assert values["geometric_mean"] == pytest.approx((medians[0] * medians[1]) ** 0.5, rel=0.01)
    assert [gains["graph"] for gains in values["two_learners_over_one"]] == [None, None]
    assert values["operator_us"]["python"]["median"] > 0
    assert values["bounds"] == []  # engine graph did not run


def test_every_group_of_the_issue_is_measured() -> None:
    assert len(engines.Settings().models) * len(engines.Settings().batches) == 15


def test_a_message_is_told_as_far_as_it_says_something() -> None:
    assert engines._first_words(RuntimeError("no compiler\nand a long story")) == "no compiler"
    assert engines._first_words(RuntimeError("raised:\nthe reason\nmore")) == "raised: the reason"
    assert engines._first_words(RuntimeError()) == ""


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(model: object, **_: object) -> object:
        raise RuntimeError("no compiler found\nand a long story")

    monkeypatch.setattr(torch, "compile", no_compiler)


@pytest.mark.usefixtures("_no_compiler")
def test_who_cannot_run_is_left_out_and_named(tmp_path: Path) -> None:
    main("engines", [*SMALL, "rivals=compiled,compiled_step", "threads=1", f"out={tmp_path}"])
    (group,) = json.loads((tmp_path / "engines.json").read_text())["groups"]
    assert group["notes"] == [
        f"logistic_regression, batch 4, {name} on 1 thread: left out, RuntimeError: no compiler found"
        for name in ("compiled", "compiled_step")
    ]
    assert [c["implementation"] for c in group["contestants"]] == ["pytorch"]


def trainings(model: str = "mlp") -> Trainings:
    return Trainings(WORKLOADS[model], WORKLOADS[model].make_data(16), 4)


def test_a_mistake_in_the_settings_is_not_hidden_in_a_note() -> None:
    with pytest.raises(SettingError, match="learners"):
        engines.enter(Lane("eager", 1, 100_000), trainings())


def test_what_ran_as_something_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BowTraining, "engine", "something else")
    entry, note = engines.enter(Lane("eager", 1, 1), trainings())
    assert entry is not None
    assert note == "ran as something else"


def test_one_training_serves_all_numbers_of_threads_and_the_compiler_has_one_for_each() -> None:
    made = trainings()
    assert made.of(Lane("eager", 1, 2)) is made.of(Lane("eager", 2, 2))
    assert made.of(Lane("eager", 1, 2)) is not made.of(Lane("eager", 1, 1))
    assert made.of(Lane("pytorch", 1, None)) is not made.of(Lane("pytorch", 2, None))


def test_trainings_are_torn_down_together(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[BowTraining] = []
    monkeypatch.setattr(BowTraining, "close", lambda training: closed.append(training))
    made = trainings()
    training, _ = made.of(Lane("eager", 1, 2)), made.of(Lane("pytorch", 1, None))
    made.close()
    assert closed == [training]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_training_is_made_with_the_threads_that_it_runs_with(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    made = trainings()

    def of(lane: Lane) -> Callable[[], int]:
        seen.append(torch.get_num_threads())
        return lambda: lane.threads

    monkeypatch.setattr(made, "of", of)
    before = torch.get_num_threads()
    try:
        engines.enter(Lane("eager", threads, 1), made)
    finally:
        torch.set_num_threads(before)
    assert seen == [threads]


def test_the_best_two_race_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    raced: list[int] = []

    def race(contestants: list[Contestant], repeats: int, stint_s: float) -> list[list[float]]:
        raced.append(len(contestants))
        return [[100.0 * len(raced) + index] * repeats for index in range(len(contestants))]

    monkeypatch.setattr(engines, "race", race)
    settings = engines.Settings(rivals=("eager",), learners=(1, 4), threads=(1,), repeats=2)
    group = engines.measure_group("mlp", 4, WORKLOADS["mlp"].make_data(16), settings)
    assert raced == [len(group.lanes), 2]
    assert group.final == ((200.0, 200.0), (201.0, 201.0))
    assert [lane.rates[0] for lane in group.lanes] == [100.0 + index for index in range(len(group.lanes))]


def test_quick_is_a_part_of_the_whole() -> None:
    quick = engines.Settings(quick=True).reduced()
    assert (quick.models, quick.batches) == (("logistic_regression",), (4,))
    assert engines.Settings().reduced() == engines.Settings()


@pytest.mark.parametrize("model", WORKLOADS)
def test_plain_pytorch_and_bow_train_the_same(model: str) -> None:
    """One learner follows plain PyTorch, so both contestants do the same work."""
    data = WORKLOADS[model].make_data(8)
    plain = PlainTraining(WORKLOADS[model], data, batch_size=8, compile=False)
    bow = BowTraining(WORKLOADS[model], data, 8, 1, "eager")
    for _ in range(3):  # the whole data in every batch: their orders differ, their batches do not
        assert plain() == bow() == 8
    trained = dict(bow.replicas.central.named_parameters())
    for name, expected in plain.model.named_parameters():
        torch.testing.assert_close(trained[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["mlp", "resnet8"])
def test_the_whole_step_as_one_function_trains_the_same(model: str) -> None:
    data = WORKLOADS[model].make_data(8)
    plain = PlainTraining(WORKLOADS[model], data, batch_size=8, compile=False)
    whole = StepTraining(WORKLOADS[model], data, batch_size=8)
    with torch.compiler.set_stance("force_eager"):
        for _ in range(3):
            assert plain() == whole() == 8
    for name, expected in plain.model.state_dict().items():
        torch.testing.assert_close(whole.model.state_dict()[name], expected, rtol=1e-4, atol=1e-6)


def test_a_feed_has_every_sample_once_an_epoch() -> None:
    feed = Feed(WORKLOADS["mlp"].make_data(12), batch_size=4)
    indices = torch.cat([feed.next_indices() for _ in range(3)])
    assert sorted(indices.tolist()) == list(range(12))
