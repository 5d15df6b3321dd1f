"""`bow.TraceRounds`: what ran when, in the run directory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bow
from bow.errors import SettingError
from bow.schedule import Timeline
from tests.training.blueprints import Data, Train


def trace(result: bow.Result) -> Timeline:
    return Timeline.load(result.run_dir / "trace.json.gz")


def test_every_operator_of_the_rounds_that_were_asked_for_is_recorded(
    train: Train, model: nn.Module, data: Data
) -> None:
    callbacks = [bow.TraceRounds(first=2, rounds=3)]
    timeline = trace(train(model, data, batch_size=8, steps=8, learners=2, engine="graph", callbacks=callbacks))
    forward = [span for span in timeline.spans if span.category == "forward"]
    averaging = [span for span in timeline.spans if span.category == "synchronisation"]
    assert {span.details["learner"] for span in forward} == {0, 1}
    assert len(forward) % (3 * 2) == 0
    assert len(forward) >= 3 * 2
    assert len(averaging) == 3 * len(timeline.places)


@pytest.mark.parametrize(
    ("engine", "per_round"),
    [("eager", {"learning tasks", "step and averaging"}), ("streams", {"learning task", "learning tasks"})],
)
def test_other_engines_record_tasks(
    train: Train, model: nn.Module, data: Data, engine: str, per_round: set[str]
) -> None:
    callbacks: list[Any] = [bow.TraceRounds(first=1, rounds=2)]
    timeline = trace(train(model, data, batch_size=8, steps=6, learners=2, engine=engine, callbacks=callbacks))
    assert per_round <= {span.name for span in timeline.spans}
    assert {span.details["round"] for span in timeline.spans} == {1, 2}


def test_a_training_that_ends_early_leaves_what_there_is(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model, data, batch_size=8, steps=3, learners=2, engine="eager", callbacks=[bow.TraceRounds(first=1)])
    assert {span.details["round"] for span in trace(result).spans} == {1, 2}


def test_the_whole_rounds_of_fused_are_recorded(train: Train, model: nn.Module, data: Data) -> None:
    callbacks: list[Any] = [bow.TraceRounds(first=1, rounds=2)]
    with torch.compiler.set_stance("force_eager"):  # all but the compilation, which takes most of a minute
        result = train(model, data, batch_size=8, steps=6, learners=2, engine="fused", callbacks=callbacks)
    assert [(span.name, span.details["round"]) for span in trace(result).spans] == [
        ("whole round", 1),
        ("whole round", 2),
    ]


@pytest.mark.parametrize(("first", "recorded"), [(0, range(4)), (1, range(4, 6)), (5, range(6, 8))])
def test_of_rounds_that_run_as_one_all_are_recorded(
    train: Train, model: nn.Module, data: Data, first: int, recorded: range
) -> None:
    callbacks = [bow.TraceRounds(first=first, rounds=2)]
    free = {"engine": "streams", "dispatch": "first_come", "sync": bow.LocalSGD(every=4)}
    spans = trace(train(model, data, epochs=3, callbacks=callbacks, **free)).spans
    assert {span.details["round"] for span in spans} == set(recorded)


@pytest.mark.parametrize("first", [3, 20])
def test_a_training_that_ends_before_anything_is_recorded_is_warned_about(
    train: Train, model: nn.Module, data: Data, first: int
) -> None:
    with pytest.warns(UserWarning, match=r"recorded nothing: the training ended after 3 rounds; use a smaller first"):
        result = train(model, data, steps=3, callbacks=[bow.TraceRounds(first=first)])
    assert not (result.run_dir / bow.TraceRounds.FILE).exists()


@pytest.mark.parametrize("wrong", [{"first": -1}, {"rounds": 0}])
def test_rounds_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingError, match=r"must be .*at least"):
        bow.TraceRounds(**wrong)
