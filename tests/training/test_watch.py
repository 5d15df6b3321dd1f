from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.cluster import ALONE
from bow.errors import DeviceMemoryError, SettingError
from bow.training.replicas import Replicas
from bow.training.tuning import Watch
from bow.tuner import EngineSetting, Tuner
from bow.tuner.online import FIRST_BACK_OFF
from tests.training.blueprints import Data, Train


class Learners:
    """As many learners as somebody says, or as there is memory for."""

    def __init__(self, learners: int, room: int = 100) -> None:
        self.learners = learners
        self.room = room
        self.world = ALONE
        self.group = self

    @property
    def by_device(self) -> list[int]:
        return [self.learners]

    def resize(self, learners: int) -> None:
        if learners > self.room:
            raise DeviceMemoryError(f"learners={learners} ran out of memory")
        if learners < 1:
            raise SettingError("the only one")
        self.learners = learners


class Training:
    """Seconds and samples of a training whose throughput depends on its learners."""

    def __init__(self, learners: Any, most: int = 8, best: int = 3) -> None:
        self.learners = learners
        self.watch = Watch(learners, Tuner(window_s=1.0), [most])
        self.best = best
        self.seconds = 0.0
        self.samples = 0

    def run(self, rounds: int, round_s: float = 0.5) -> list[str]:
        said = []
        for _ in range(rounds):
            self.seconds += round_s
            self.samples += int(1000 * round_s * min(self.learners.learners, self.best))
            said.append(self.watch.round_ended(self.seconds, self.samples))
        return [text for text in said if text]


def test_learners_come_while_they_pay() -> None:
    training = Training(Learners(1))
    assert training.run(2 * FIRST_BACK_OFF) == []  # trials have found one learner, and its neighbours, just before
    said = training.run(150)
    assert training.learners.learners == 3
    assert said[0].startswith("learners: 1 to 2 (")


def test_rounds_longer_than_a_window_are_windows() -> None:
    training = Training(Learners(1))
    training.run(FIRST_BACK_OFF + 40, round_s=20.0)
    assert training.learners.learners == 3


def test_there_are_never_more_than_may_be() -> None:
    training = Training(Learners(1), most=2)
    training.run(300)
    assert training.learners.learners == 2


def test_a_learner_that_finds_no_memory_is_not_tried_again() -> None:
    training = Training(Learners(1, room=2), best=8)
    said = training.run(2000)
    assert training.learners.learners == 2
    assert [text for text in said if text.startswith("no further learner")] == [
        "no further learner (learners=3 ran out of memory)"
    ]


def test_learners_that_somebody_else_changed_begin_a_window() -> None:
    training = Training(Learners(1), best=100)
    training.run(3)
    training.learners.learners = 5
    assert training.run(16) == []  # compares 5 with what 5 did, and not with 1
    assert training.run(10)[0].startswith("learners: 5 to 6")


def test_a_round_without_memory_takes_a_learner_away_for_good() -> None:
    training = Training(Learners(4), best=100)
    text = training.watch.ran_out_of_memory(DeviceMemoryError("learners=4 ran out of memory; take fewer"))
    assert text == "learners: 4 to 3 (learners=4 ran out of memory; take fewer)"
    training.run(500)
    assert training.learners.learners == 3


class Small:
    """A machine on which rounds with more than some learners fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fits: dict[int, int]) -> None:
        """`fits`: from a round on, as many learners as there is memory for."""
        original = Replicas.rounds_at_once

        def run(replicas: Replicas, batches: Any) -> Any:
            if replicas.learners > [most for since, most in fits.items() if replicas.rounds >= since][-1]:
                if len(batches) > 1 and replicas.loop.settings.engine.dispatch == "first_come":
                    original(replicas, batches[:1])  # what had ended before
                raise DeviceMemoryError(f"learners={replicas.learners} ran out of memory")
            return original(replicas, batches)

        monkeypatch.setattr(Replicas, "rounds_at_once", run)


def watching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings change the number of learners whatever they began with; the function `train` hides its module."""
    monkeypatch.setattr(sys.modules["bow.training.train"], "most_while_training", lambda *args: 8)


@pytest.fixture
def numbered(data: Data) -> tuple[Tensor, Tensor, Tensor]:
    return (*data, torch.arange(len(data[0])))


@pytest.mark.parametrize("fits", [{0: 4, 1: 3}, {0: 1}, {0: 4, 1: 3, 3: 1}, {0: 4, 2: 1}], ids=str)
@pytest.mark.parametrize("settings", [{}, {"dispatch": "first_come", "engine": "streams"}], ids=["fixed", "first come"])
def test_no_sample_is_lost_or_seen_twice_where_memory_runs_out(
    train: Train,
    model: nn.Module,
    numbered: Any,
    monkeypatch: pytest.MonkeyPatch,
    fits: dict[int, int],
    settings: dict[str, Any],
) -> None:
    seen: list[int] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        seen.extend(batch[2].tolist())
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    watching(monkeypatch)
    Small(monkeypatch, fits)
    engine = settings.get("engine", "eager")
    result = train(
        model,
        numbered,
        step=step,
        **{
            "learners": "auto",
            "engine": "auto",
            "tuner": Tuner(pinned=EngineSetting(engine, learners=4)),
            "epochs": 2,
            "sync": bow.SMA(every=3),
            **{name: value for name, value in settings.items() if name != "engine"},
        },
    )
    assert sorted(seen) == sorted(2 * list(range(48)))
    assert [record["samples"] for record in result.history] == [48, 96] or len(result.history) == 2
    assert result.history[-1]["samples"] == 96
    assert result.learners == min(fits.values())
    assert torch.isfinite(torch.tensor(result.history[-1]["train_loss"]))


def test_a_checkpoint_that_further_rounds_have_passed_is_written(
    train: Train, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching(monkeypatch)
    Small(monkeypatch, {0: 4, 1: 1})
    result = train(
        model,
        data,
        learners="auto",
        engine="auto",
        tuner=Tuner(pinned=EngineSetting("eager", learners=4)),
        epochs=1,
        checkpoint_every=2,
    )
    rounds = [int(path.stem[-8:]) for path in sorted((result.run_dir / "checkpoints").iterdir())]
    assert rounds[-1] >= 8
    assert result.history[-1]["round"] == 9  # one of four batches, and eight of one


def test_without_a_tuner_running_out_of_memory_is_the_end(
    train: Train, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    Small(monkeypatch, {0: 2, 1: 1})
    with pytest.raises(DeviceMemoryError, match="learners=2 ran out of memory"):
        train(model, data)
