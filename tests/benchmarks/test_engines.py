"""The contestants of `python -m benchmarks engines`."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.engines import PYTORCH, RIVALS, Case, Config, cases_of
from benchmarks.workloads import WORKLOADS
from bow.errors import SettingError


def names(model: str, **settings: Any) -> set[str]:
    return {case.implementation for case in cases_of(WORKLOADS[model], Config(**settings))}


def test_both_sides_have_channels_last_where_there_are_convolutions() -> None:
    last = {name for name in (*PYTORCH, *RIVALS) if Case(name, 1).is_last}
    assert last == {
        "channels_last",
        "compiled+channels_last",
        "graph+channels_last",
        "graph+compiled+channels_last",
    }
    assert last <= names("lenet")
    assert last <= names("resnet8")
    assert not last & (names("mlp") | names("lstm") | names("logistic_regression"))


def test_on_k_cores_k_learners_of_a_thread_race_a_model_with_k_threads() -> None:
    cases = cases_of(WORKLOADS["mlp"], Config(rivals=("compiled", "eager", "graph")), cores=2)
    assert cases == [Case("pytorch", 2), Case("compiled", 2), Case("graph", 2, 1), Case("graph", 1, 2)]


def test_bfloat16_is_raced_with_float32() -> None:
    cases = cases_of(WORKLOADS["mlp"], Config(rivals=("graph",), precision="bfloat16", threads=(1,), learners=(2,)))
    assert [case.implementation for case in cases] == ["pytorch", "graph", "pytorch+float32", "graph+float32"]
    assert [case.side for case in cases] == ["pytorch", "bow", "pytorch", "bow"]
    assert cases[3].expected == "graph"


def test_more_cores_than_there_are_are_refused() -> None:
    with pytest.raises(SettingError, match="cores=100000 is more than the"):
        Config(cores=(1, 100000))


def test_a_precision_and_cores_have_results_of_their_own() -> None:
    assert Config().stem == "engines"
    assert Config(precision="bfloat16").stem == "engines_bfloat16"
    assert Config(cores=(1,)).stem == "engines_cores"
