"""Former names of settings, each refused with the one that it has now."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import bow
from bow.errors import SettingError
from bow.training.checks import MOVED

OF_REPLICAS = ("dispatch", "compile", "memory", "schedule", "precision")
DATA = torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64)


@pytest.mark.parametrize("name", MOVED)
def test_former_keywords_of_train_are_refused_with_the_one_of_now(name: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(SettingError) as caught:
        bow.train(nn.Linear(2, 2), DATA, nn.functional.cross_entropy, **given)
    assert str(caught.value) == f"bow.train has no {name}=; it is {MOVED[name][0]} now"
    now = MOVED[name][0].split("=")[0]
    assert now in inspect.signature(bow.train).parameters or now.startswith("found.train")


@pytest.mark.parametrize("name", OF_REPLICAS)
def test_former_keywords_of_replicas_are_refused_with_the_one_of_now(name: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(SettingError, match=f"bow.Replicas has no {name}=; it is engine=bow.Engine"):
        bow.Replicas(nn.Linear(2, 2), nn.functional.cross_entropy, **given)


@pytest.mark.parametrize("function", [bow.train, bow.Replicas], ids=["train", "Replicas"])
def test_an_unknown_keyword_is_a_mistake_as_in_python(function: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'learner'"):
        function(nn.Linear(2, 2), DATA, learner=3)


def test_the_engine_for_whole_rounds_is_refused_with_what_it_is_now() -> None:
    with pytest.raises(SettingError, match=r'is now bow.Engine\("graph", capture="round"\)'):
        bow.train(nn.Linear(2, 2), DATA, nn.functional.cross_entropy, engine="whole_round")  # type: ignore[arg-type]


def test_train_has_at_most_twenty_parameters() -> None:
    assert len(inspect.signature(bow.train).parameters) <= 20
