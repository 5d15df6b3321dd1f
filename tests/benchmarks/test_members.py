"""What is held against bow's members trains the same members."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch

from benchmarks import main
from benchmarks.members import Config, cases_of, epochs_in, missed, over, summary
from benchmarks.members.contestants import (
    BOW,
    LOOP,
    MAKERS,
    ONE_PROCESS,
    OWN,
    PINNED,
    PINNED_STEP,
    Task,
    shares,
    weights,
)
from benchmarks.trainings import Tensors

TASK = Task("logistic_regression", batch_size=8, samples=64, seeds=(0, 1, 2))


# What the compiler uses when it is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")


@functools.cache
def plain() -> tuple[Tensors, ...]:
    return tuple(weights(LOOP, TASK, epochs=2))


def test_members_differ_by_their_seeds() -> None:
    first, second, _ = plain()
    assert not any(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.nightly if "compiled" in each else ()) for each in ONE_PROCESS[1:]],
)
def test_every_contestant_trains_what_a_plain_loop_trains(name: str) -> None:
    found = weights(name, TASK, epochs=2)
    assert len(found) == len(TASK.seeds)
    for own, expected in zip(found, plain(), strict=True):
        assert set(own) == set(expected)
        for each, tensor in own.items():
            torch.testing.assert_close(tensor, expected[each], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_share_out_the_members(processes: int) -> None:
    parts = list(shares(TASK, processes))
    assert sorted(seed for part in parts for seed in part.seeds) == list(TASK.seeds)
    own = {seed: each for part in parts for seed, each in zip(part.seeds, weights(LOOP, part, 2), strict=True)}
    for seed, expected in zip(TASK.seeds, plain(), strict=True):
        assert all(torch.equal(own[seed][name], tensor) for name, tensor in expected.items())


@pytest.mark.nightly
def test_a_stacked_model_keeps_running_statistics_of_each_member() -> None:
    task = Task("resnet8", batch_size=4, samples=16, seeds=(0, 1))
    for own, expected in zip(weights("torch.func", task, 1), weights(LOOP, task, 1), strict=True):
        for name, tensor in own.items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)


def test_those_of_one_process_have_every_number_of_threads() -> None:
    cases = cases_of(Config(names=(LOOP, PINNED, BOW), threads=(1, 2)))
    assert [(case.name, case.threads) for case in cases] == [(LOOP, 1), (LOOP, 2), (PINNED, 1), (BOW, 2)]
    assert {*ONE_PROCESS, PINNED, PINNED_STEP, *OWN} == set(MAKERS)


def row(name: str, *rates: float) -> dict[str, object]:
    return {"name": name, "rates": rates, "samples_per_s": {"median": sorted(rates)[len(rates) // 2]}}


def test_bow_is_held_against_the_fastest_turn_by_turn() -> None:
    rows = [row(LOOP, 10, 20, 30), row("torch.func", 1, 2, 3), row(PINNED, 30, 30, 30), row(BOW, 20, 40, 90)]
    found = over(rows)
    assert (found["loops"]["median"], found["loops"]["high"]) == (2.0, 3.0)
    assert found["pinned"]["median"] == 1.333
    assert over(rows[:3]) == {"loops": None, "pinned": None}
    aims = summary([{"over": found}], [{"over_pinned": 1.2}])
    assert aims == {"loops": 2.0, "pinned": 1.333, "whole": 1.2}
    assert missed({"summary": aims})
    assert not missed({"summary": summary([{"over": over(rows[:3])}], [{"over_pinned": None}])})


def test_a_whole_training_is_as_long_as_the_plain_loop_needs() -> None:
    task = Task("mlp", batch_size=16, samples=100, seeds=(0, 1))  # 96 samples an epoch, of two members
    assert epochs_in([row(LOOP, 19.2, 192, 1920), row(BOW, 1e6)], task, seconds=5) == 5
    assert epochs_in([row(BOW, 96)], task, seconds=6) == 3
    assert epochs_in([row(LOOP, 96)], task, seconds=0.1) == 1


def test_bow_trains_as_many_members() -> None:
    found = weights(BOW, TASK, epochs=1)
    assert len(found) == len(TASK.seeds)
    assert [{name: tensor.shape for name, tensor in own.items()} for own in found] == [
        {name: tensor.shape for name, tensor in own.items()} for own in plain()
    ]


def test_a_tiny_run_leaves_its_page(tmp_path: Path) -> None:
    assert main("members", ["quick=true", "names=loop,torch.func,bow", f"out={tmp_path}"]) in (0, 1)
    values = json.loads((tmp_path / "members.json").read_text())
    (group,) = values["groups"]
    assert [each["name"] for each in group["contestants"]] == ["loop", "torch.func", "bow"]
    assert group["notes"] == []
    assert group["over"]["loops"]["median"] > 0
    assert [each["name"] for each in values["whole"][0]["contestants"]] == ["loop", "bow"]
    assert "## Whole trainings" in (tmp_path / "members.md").read_text()
