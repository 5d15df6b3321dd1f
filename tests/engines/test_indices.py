"""Indices out of range: in every engine the user's error, and the process survives and trains on."""

from __future__ import annotations

import threading

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn

import bow
from bow.engines import ENGINES
from bow.errors import DataError
from tests.engines.pairs import Pair
from tests.grouped import of_replicas

# The compiler, when it is first imported, uses what torch itself has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")

TOKENS, CLASSES = 7, 3


def classifier() -> nn.Module:
    return nn.Sequential(nn.Embedding(TOKENS, 4), nn.Flatten(), nn.Tanh(), nn.Linear(8, CLASSES))


def batch(seed: int, *, token: int = 0, label: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(TOKENS, (4, 2), generator=generator)
    labels = torch.randint(CLASSES, (4,), generator=generator)
    tokens[1, 0] += token
    labels[2] += label
    return tokens, labels


GOOD_ROUNDS = 3
"""So many, that every engine runs as it does from then on: `streams` begins in turn."""


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("wrong", [{"token": TOKENS}, {"label": CLASSES}], ids=["token", "label"])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_out_of_range_is_the_users_error_and_training_goes_on(engine: str, wrong: dict[str, int]) -> None:
    with Pair(engine, classifier, learners=2) as pair:
        for t in range(GOOD_ROUNDS):
            pair.round([batch(10 + t), batch(20 + t)])
        assert engine != "streams" or any(thread.name.startswith("bow place") for thread in threading.enumerate())
        for training in pair.trainings:
            with pytest.raises(DataError, match="out of range"):
                training.round([batch(2), batch(3, **wrong)])
        for t in range(3):
            pair.round([batch(4 + t), batch(5 + t)])
        assert pair.engine == engine
        assert not pair.trainings[1].loop.take_events()


@pytest.mark.nightly
def test_a_token_out_of_range_in_a_compiled_region_does_not_end_the_process() -> None:
    torch.manual_seed(0)
    settings = {"learners": 2, "device": "cpu"}
    with torch._inductor.config.patch(compile_threads=1):  # no pool of threads that outlives the test
        fused = bow.Replicas(classifier(), nn.functional.cross_entropy, **of_replicas(engine="fused", **settings))
        fused.round([batch(0), batch(1)])
        assert fused.engine == "fused"
        with pytest.raises(DataError, match="out of range"):
            fused.round([batch(2), batch(3, token=TOKENS)])
        assert fused.round([batch(4), batch(5)]).isfinite().all()
        assert fused.engine == "fused"
