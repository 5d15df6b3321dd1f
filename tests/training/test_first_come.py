"""Trainings whose learners take batches as they come: everything else stays as it is."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import bow
from bow.errors import SettingError
from tests.training.blueprints import Behind, Data, Train, assert_equal_models, assert_same_course

FREE = {"engine": "streams", "dispatch": "first_come"}


class Diary:
    """Notes what a callback sees after every round."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int]] = []
        self.losses: list[Tensor] = []
        self.completed: list[int] = []

    def on_round_end(self, run: Any) -> None:
        self.rounds.append((run.round, run.samples))
        self.losses.append(run.replicas.last.losses)
        self.completed.append(run.replicas.rounds)


def test_every_sample_is_seen_once_an_epoch_and_callbacks_hear_of_every_round(
    train: Train, model: nn.Module, data: Data
) -> None:
    seen: list[list[int]] = []

    def step(learner: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        numbers, inputs = batch
        seen.append(numbers.tolist())
        return learner(inputs).square().mean()

    diary = Diary()
    numbered = torch.arange(48), data[0]
    result = train(model, numbered, step=step, sync=bow.LocalSGD(every=4), epochs=2, callbacks=[diary], **FREE)
    assert result.engine == "streams"
    assert diary.rounds == [(t, 8 * t) for t in range(1, 13)]
    # Periods are four rounds, and none runs across the end of an epoch.
    assert diary.completed == [4, 4, 4, 4, 6, 6, 8, 8, 12, 12, 12, 12]
    assert len({tuple(losses.tolist()) for losses in diary.losses}) == 12
    assert Counter(number for numbers in seen for number in numbers) == dict.fromkeys(range(48), 2)
    assert [(record["round"], record["samples"]) for record in result.history] == [(6, 48), (12, 96)]


@pytest.mark.usefixtures("_one_place")
@pytest.mark.parametrize("settings", [{"epochs": 3}, {"steps": 11}, {"epochs": 2, "checkpoint_every": 3}], ids=str)
def test_on_one_place_it_is_the_training_of_eager(
    train: Train, model: nn.Module, data: Data, tmp_path: Path, settings: dict[str, Any]
) -> None:
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    data = data[0].double(), data[1]
    common = {"optimizer": optimizer, "sync": bow.LocalSGD(every=4), "validation": data, **settings}
    results = [
        train(model.double(), data, run_dir=tmp_path / str(index), **common, **how)
        for index, how in enumerate(({"engine": "eager"}, FREE))
    ]
    assert_same_course(*results)


@pytest.mark.usefixtures("_one_place")
def test_a_resumed_training_ends_as_if_never_interrupted(
    train: Train, model: nn.Module, data: Data, tmp_path: Path
) -> None:
    common = {"sync": bow.LocalSGD(every=4), "checkpoint_every": 5, **FREE}
    whole = train(model, data, epochs=3, run_dir=tmp_path / "whole", **common)
    names = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert names == ["round_00000010.pt", "round_00000015.pt"]
    resumed = train(
        model, data, epochs=3, run_dir=tmp_path / "more",
        resume=tmp_path / "whole" / "checkpoints" / "round_00000010.pt", **common,
    )  # fmt: skip
    assert_equal_models(resumed.model, whole.model)


def test_a_scheduler_is_stepped_once_per_round(train: Train, model: nn.Module, data: Data) -> None:
    rates: list[float] = []

    class Rates:
        def on_epoch_end(self, run: Any, record: Any) -> None:
            rates.append(run.replicas.optimizer.param_groups[0]["lr"])

    halve = functools.partial(StepLR, step_size=1, gamma=0.5)
    train(model, data, scheduler=halve, per_round=True, sync=bow.LocalSGD(every=4), callbacks=[Rates()], **FREE)
    assert rates == [pytest.approx(0.1 * 0.5**6)]


def test_threads_end_with_the_training_and_with_an_error(
    train: Train, model: nn.Module, data: Data, tmp_path: Path
) -> None:
    during: list[int] = []
    runs: list[Any] = []  # so that nothing ends merely because nobody needs it any more

    def look(run: Any) -> None:
        runs.append(run)
        during.append(sum(thread.name.startswith("bow place") for thread in threading.enumerate()))
        if len(during) == 11:
            raise RuntimeError("mine")

    before = set(threading.enumerate())
    free = {"sync": bow.LocalSGD(every=4), **FREE}
    train(model, data, epochs=1, callbacks=[Behind(look)], **free, run_dir=tmp_path / "first")
    assert during[-1] > 0
    assert set(threading.enumerate()) == before
    with pytest.raises(RuntimeError, match="mine"):
        train(model, data, epochs=1, callbacks=[Behind(look)], **free, run_dir=tmp_path / "second")
    assert during[-1] > 0
    assert set(threading.enumerate()) == before


def test_first_come_is_warned_about_where_every_round_synchronises(train: Train, model: nn.Module, data: Data) -> None:
    with pytest.warns(UserWarning, match=r'dispatch="first_come" has no effect with SMA\(.*; use .* every=2 or more'):
        train(model, data, **FREE)


def test_a_training_of_one_period_has_a_throughput(train: Train, model: nn.Module, data: Data) -> None:
    assert train(model, data, steps=6, sync=bow.LocalSGD(every=6), **FREE).throughput > 0


def test_large_batches_are_dealt_in_smaller_portions(
    train: Train, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.training.dealing.MAX_BYTES_TOGETHER", 2 * 8 * (5 * 4 + 8))  # two rounds of eight samples
    diary = Diary()
    train(model, data, epochs=1, sync=bow.LocalSGD(every=6), callbacks=[diary], **FREE)
    assert diary.completed == [2, 2, 4, 4, 6, 6]


def test_there_is_no_state_of_a_round_that_others_have_followed(train: Train, model: nn.Module, data: Data) -> None:
    refused, rounds = [], []

    def look(run: Any) -> None:
        try:
            rounds.append(run.state()["round"])
        except SettingError as error:
            refused.append(str(error))

    train(model, data, epochs=1, sync=bow.LocalSGD(every=4), callbacks=[Behind(look)], **FREE)
    assert rounds == [4, 6]
    assert len(refused) == 4
    assert "there is no state of round 1, the learners have already run 4 rounds" in refused[0]


def test_a_training_that_is_stopped_ends_after_the_rounds_that_ran_as_one(
    train: Train, model: nn.Module, data: Data
) -> None:
    diary, stop = Diary(), Behind(lambda run: run.stop())
    train(model, data, epochs=3, sync=bow.LocalSGD(every=4), callbacks=[stop, diary], **FREE)
    assert diary.rounds[-1][0] == 4
