"""Memory as `bow.train` sees it: refused before anything is written, and "auto" that fits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bow
from bow.devices import memory as device_memory
from bow.engines.memory import MemoryBudget
from bow.errors import SettingError
from bow.training.replicas import DEFAULT_OPTIMIZER, DEFAULT_SYNC
from tests.training.blueprints import Data, Iterated, Train

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of learners where memory sets no limit."""
    monkeypatch.setattr("bow.engines.choice.available_cores", lambda: [0, 1, 2, 3])


def room_for(learners: int, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with memory for so many learners and no more."""
    need = MemoryBudget(CPU, model, DEFAULT_OPTIMIZER, DEFAULT_SYNC, "eager").need(learners)
    monkeypatch.setattr(device_memory, "host_memory", lambda: (need.total_bytes, 0))


def test_learners_that_do_not_fit_leave_nothing_behind(
    train: Train, model: nn.Module, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for(2, model, monkeypatch)
    with pytest.raises(SettingError, match=r"learners=3 needs .* enough for 2; use learners=2 or learners=\"auto\""):
        train(model, data, learners=3)
    assert list(tmp_path.iterdir()) == []
    assert train(model, data, learners=2).learners == 2


def test_a_moving_average_takes_a_row(train: Train, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (torch.randn(400, 5), torch.arange(400) % 3)
    averaged = {"validation": bow.Validation(data, ema=0.9), "run_dir": None}
    room_for(3, model, monkeypatch)
    assert train(model, data, learners="auto", run_dir=None).learners == 3
    assert train(model, data, learners="auto", **averaged).learners == 2
    with pytest.raises(SettingError, match=r"learners=3 needs .* enough for 2; use learners=2"):
        train(model, data, learners=3, **averaged)


@pytest.mark.parametrize("kind", ["tensors", "loader", "stream"])
def test_auto_takes_no_more_learners_than_fit(
    train: Train, model: nn.Module, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tensors = (torch.randn(400, 5), torch.arange(400) % 3)
    data: dict[str, Any] = {
        "tensors": tensors,
        "loader": DataLoader(TensorDataset(*tensors), batch_size=4),
        "stream": Iterated([(torch.ones(5), 0)] * 400),
    }
    settings = {"steps": 3} if kind == "stream" else {}
    assert train(model, data[kind], learners="auto", **settings).learners == 4
    room_for(3, model, monkeypatch)
    trained = train(model, data[kind], learners="auto", run_dir=None, **settings)
    assert trained.learners == 3
    assert trained.history[-1]["samples"] == (36 if kind == "stream" else 400)


def test_a_gpu_that_is_too_small_is_an_error_before_it_is_used(
    train: Train, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("checks", "replicas"):
        monkeypatch.setattr(f"bow.training.{module}.resolve_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr("bow.training.replicas.cuda_device", lambda device: device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(device_memory, "free_bytes", lambda place: 3 * 2**25 + 2**20)
    with pytest.raises(SettingError, match=r"learners=4 needs 128.0 MiB, cuda:0 has 97.0 MiB free, enough for 3; use"):
        train(nn.Linear(5, 3), data, learners=4, engine="graph")
    monkeypatch.setattr(device_memory, "free_bytes", lambda place: 2**20)
    with pytest.raises(SettingError, match=r"one alone 32.0 MiB, cuda:0 has 1.0 MiB free; use a smaller batch_size or"):
        train(nn.Linear(5, 3), data, learners=4, engine="graph")
    assert list(tmp_path.iterdir()) == []


def test_swapping_has_no_effect_on_a_cpu_and_says_so(train: Train, model: nn.Module, data: Data) -> None:
    with pytest.warns(UserWarning, match="offload=True has no effect on a CPU"):
        assert train(model, data, offload=True).learners == 2
