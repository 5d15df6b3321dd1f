"""`bow.plan`."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bow
from bow.errors import BowError, ModelError, ScheduleError, SettingError
from bow.planning.problem.device_topology import GIB, Device, DeviceKind, DeviceTopology
from bow.planning.tiles import planning, tile_costs
from bow.planning.tiles.machine import read_devices

SHORT: dict[str, Any] = {"budget_s": None, "proposals": 1, "starts": "single", "descend": False}


def small(**settings: Any) -> Any:
    batch = torch.randn(2, 4), torch.zeros(2, dtype=torch.long)
    return bow.plan(nn.Linear(4, 2), batch, cross_entropy, **{**SHORT, **settings})


def test_a_batch_is_chosen_by_the_time_to_an_accuracy() -> None:
    found = {noise: small(batch_sizes=(2, 8, 32), noise_scale=noise) for noise in (1e-3, 1e9)}
    assert {noise: each.problem.batch_size for noise, each in found.items()} == {1e-3: 2, 1e9: 32}
    alone = small(batch_sizes=8, noise_scale=5.0)
    assert alone.problem.batch_size == 8
    assert alone.sample_ns == pytest.approx(alone.makespan_ns / (8 / (1 + 8 / 5)))


def test_a_size_of_batch_that_does_not_fit_is_left_out_with_the_reason() -> None:
    kind = DeviceKind("small", memory_gib=0.01, tflops=1, gb_per_s=1)
    settings = {"topology": DeviceTopology("one", (Device("a", kind),)), "noise_scale": 5.0}
    model, batch = nn.Sequential(nn.Linear(4, 100), nn.Linear(100, 2)), (torch.ones(8, 4), torch.zeros(8).long())
    with pytest.warns(UserWarning, match=r"left out: batch_sizes=50000 \(.*does not fit"):
        found = bow.plan(model, batch, cross_entropy, batch_sizes=(8, 50_000), **settings, **SHORT)
    assert found.problem.batch_size == 8
    with pytest.raises(ScheduleError, match="does not fit"):
        bow.plan(model, batch, cross_entropy, batch_sizes=50_000, **settings, **SHORT)


def test_ctrl_c_between_two_sizes_keeps_what_the_first_one_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first = iter([planning.capture_operators])

    def captured(*arguments: Any, **settings: Any) -> Any:
        for real in first:
            return real(*arguments, **settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "capture_operators", captured)
    with pytest.warns(UserWarning, match=r"left out: batch_sizes=8,32 \(the search was interrupted\)"):
        found = small(batch_sizes=(2, 8, 32), noise_scale=5.0)
    assert found.problem.batch_size == 2
    with pytest.raises(KeyboardInterrupt):
        small(batch_sizes=2)


def test_a_batch_with_tensors_that_count_no_samples_has_one_size() -> None:
    def step(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        inputs, targets, weight = batch
        return cross_entropy(model(inputs), targets, weight=weight)

    batch = torch.ones(8, 4), torch.zeros(8, dtype=torch.long), torch.ones(2)
    with pytest.raises(SettingError, match="batch_sizes needs tensors of equal length"):
        bow.plan(nn.Linear(4, 2), batch, step=step, batch_sizes=4, **SHORT)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"settings": "fast"}, "settings must be SearchSettings, got str"),
        ({"rules": 0}, "rules must be a Rules, got int"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"budget": 3}, "no setting 'budget'.*budget_s"),
        ({"batch_sizes": (2, 4)}, "batch_sizes=2,4 are compared by the time to an accuracy.*give noise_scale="),
        ({"batch_sizes": None}, "batch_sizes must be a whole number of at least 1, got None"),
        ({"batch_sizes": 8.5}, "batch_sizes must be a whole number of at least 1, got 8.5"),
        ({"batch_sizes": (0,)}, "batch_sizes must be a whole number of at least 1, got 0"),
    ],
)
def test_what_is_no_setting_gets_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        small(**settings)


@pytest.mark.parametrize("model", [nn.Linear, "lenet", nn.LazyLinear(3), nn.ReLU()])
def test_what_is_no_model_gets_one_sentence(model: Any) -> None:
    with pytest.raises(ModelError):
        bow.plan(model, (torch.randn(2, 4), torch.zeros(2, dtype=torch.long)), cross_entropy, **SHORT)


@pytest.mark.parametrize("topology", [3, {"devices": {}}, None])
def test_what_is_no_topology_gets_one_sentence(topology: Any) -> None:
    with pytest.raises(BowError, match="topology must be a name, a file or a DeviceTopology, got"):
        small(topology=topology)


@pytest.mark.parametrize(("answer", "goes_on"), [(None, True), (True, True), (False, False), (np.False_, False)])
def test_a_search_ends_when_it_is_told_false_and_not_when_it_is_told_nothing(answer: Any, goes_on: bool) -> None:
    found = small(progress=lambda seconds, proposals, best_ns: answer, proposals=20)
    assert bool(found.evaluated) == goes_on


@pytest.mark.parametrize(
    ("is_terminal", "progress", "shown"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_terminal_shows_the_best_time_so_far(
    is_terminal: bool, progress: bool, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = functools.partial(rich.console.Console, force_terminal=is_terminal, width=100)
    monkeypatch.setattr(planning, "Console", console)
    small(progress=progress)
    out, err = capsys.readouterr()
    assert not out
    assert ("best" in err and "ms" in err) == shown


def test_a_terminal_shows_how_many_tiles_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BOW_CACHE", str(tmp_path))
    monkeypatch.setattr(tile_costs, "REPEATS", 1)
    monkeypatch.setattr(planning, "Console", functools.partial(rich.console.Console, force_terminal=True, width=100))
    small(topology=read_devices("cpu", 1), costs="measured")
    assert re.search(r"(\d+) of \1 tiles", capsys.readouterr().err)


def test_who_asks_is_told_instead(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[float] = []
    small(progress=lambda seconds, proposals, best_ns: told.append(best_ns) is None)
    assert told
    assert capsys.readouterr() == ("", "")


def test_what_the_optimizer_keeps_counts_as_memory() -> None:
    model, batch = nn.Linear(512, 512), (torch.randn(1, 512), torch.zeros(1, dtype=torch.long))
    kind = DeviceKind("small", memory_gib=2.5 * 512 * 513 * 4 / GIB, tflops=1, gb_per_s=1)
    plan = functools.partial(
        bow.plan, model, batch, cross_entropy, topology=DeviceTopology("one", (Device("a", kind),)), **SHORT
    )
    assert plan(optimizer=functools.partial(torch.optim.SGD, lr=0.1)).makespan_ns > 0
    with pytest.raises(ScheduleError, match="no starting partition fits into memory"):
        plan(optimizer=torch.optim.AdamW)


@pytest.mark.parametrize("size", [10**12, 2**62])
def test_a_size_of_batch_that_no_memory_holds_is_refused_before_anything_is_allocated(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "arange", lambda *arguments: pytest.fail("allocates"))
    with pytest.raises(SettingError, match=f"not enough memory for a batch of batch_sizes={size}; use a smaller size"):
        small(batch_sizes=[size])
