import functools
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import bow
from bow.devices import memory as device_memory
from bow.engines import Engine, LearningConfig, own_loss
from bow.engines.memory import MemoryBudget, out_of_memory_explained
from bow.errors import DeviceMemoryError, SettingError
from bow.testing import FakeDevice
from tests.grouped import of_replicas

SGD = functools.partial(torch.optim.SGD, lr=0.1)
GIB = 2**30
CUDA = torch.device("cuda", 0)


def wide(width: int = 16, layers: int = 4) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a room on a GPU with so much free memory, as far as anybody asks."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def room(free: int, **settings: Any) -> MemoryBudget:
        monkeypatch.setattr(device_memory, "free_bytes", lambda place: free)
        task = LearningConfig(own_loss, engine=Engine(offload=settings.pop("offload", False)))
        given = {"place": CUDA, "model": wide(), "optimizer": SGD, "sync": bow.SMA(), "engine": "graph", "task": task}
        return MemoryBudget(**{**given, **settings})

    return room


def test_learners_that_do_not_fit_are_an_error_that_says_how_many_do(gpu: Any) -> None:
    room = gpu(0)
    five = room.need(5).total_bytes
    with pytest.raises(SettingError) as caught:
        gpu(five).check(8)
    assert str(caught.value) == (
        'learners=8 needs 256.2 MiB, cuda:0 has 160.1 MiB free, enough for 5; use learners=5 or learners="auto"'
    )
    gpu(five).check(5)
    with pytest.raises(SettingError, match="enough for 4;"):
        gpu(five - 1).check(5)


def test_libraries_take_memory_for_every_learner_that_runs_at_once(gpu: Any) -> None:
    assert gpu(0).need(3).total_bytes > 3 * 2**25
    assert gpu(0, engine="eager").need(3).total_bytes < 2 * 2**25


@pytest.mark.parametrize(
    ("configured", "expected"), [(":4096:2:16:8", 8_519_680), ("", 2**25), (":16:8", 131_072), ("nonsense", 2**25)]
)
def test_workspaces_are_as_configured(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, configured: str, expected: int
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", configured)
    assert gpu(0).need(1).workspace_bytes == expected


def test_where_not_even_one_fits_the_remedies_are_named(gpu: Any) -> None:
    batch = torch.zeros(100_000, 16)
    room = gpu(0, batch=batch)
    one = room.need(1)
    sentence = r"learners=2 needs .* and one alone .* MiB, cuda:0 has .* MiB free; use a smaller batch_size or offload="
    with pytest.raises(SettingError, match=sentence):
        gpu(one.total_bytes - 1, batch=batch).check(2)
    with pytest.raises(SettingError, match=r"learners=1 needs \S+ MiB, .* free; use a smaller batch_size$"):
        gpu(one.total_bytes // 4, batch=batch, offload=True, engine="eager").check(1)
    with pytest.raises(SettingError, match=r"use a smaller model$"):
        gpu(one.held_bytes - 1, batch=batch).check(1)


def test_swapping_lets_a_model_fit_that_would_not(gpu: Any) -> None:
    settings = {"batch": torch.zeros(100_000, 16), "engine": "eager", "model": wide(layers=12)}
    free = gpu(0, **settings).need(1).total_bytes - 1
    with pytest.raises(SettingError, match="offload=True"):
        gpu(free, **settings).check(1)
    gpu(free, **settings, offload=True).check(1)


def test_auto_takes_no_more_than_fit(gpu: Any) -> None:
    five = gpu(0).need(5).total_bytes
    assert gpu(five).most(8) == 5
    assert gpu(five).most(3) == 3
    assert gpu(100).most(8) == 0


def test_one_learner_that_is_not_averaged_fits_where_two_learners_of_its_kind_would_not(gpu: Any) -> None:
    room = gpu(0, engine="eager")
    one = room.need(1).total_bytes
    assert room.need(2).fitting(one) == 0  # each of two has a correction
    assert gpu(one, engine="eager").most(2) == 1


def test_what_is_left_is_shared_with_learners_that_may_come(gpu: Any) -> None:
    need = gpu(0).need(2).total_bytes
    assert gpu(need).check(2) == 0
    assert gpu(need + 1000).check(2) == 500


def test_on_a_cpu_only_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = torch.zeros(100_000, 16)  # activations that are not looked at
    room = MemoryBudget(torch.device("cpu"), wide(), SGD, bow.SMA(), "eager", batch)
    need = room.need(3).total_bytes
    monkeypatch.setattr(device_memory, "host_memory", lambda: (need, 0))
    room.check(3)
    with pytest.raises(SettingError, match=r"learners=4 needs .*, this machine has .* in all, enough for 3; use"):
        room.check(4)
    with pytest.raises(SettingError, match=r"learners=4 needs .*, this machine has .* in all; stay with 3"):
        room.check_more(3, 4)


def test_a_further_learner_needs_what_is_not_reserved(gpu: Any) -> None:
    room = gpu(0, engine="eager", optimizer=torch.optim.AdamW)
    moments = 2 * room.need(2).row_bytes
    gpu(moments, engine="eager", optimizer=torch.optim.AdamW).check_more(2, 3)
    with pytest.raises(SettingError, match=r"learners=3 needs .* more, cuda:0 has .* free; stay with 2"):
        gpu(moments - 1, engine="eager", optimizer=torch.optim.AdamW).check_more(2, 3)


class Hungry(nn.Module):
    """Runs out of memory when it is told to, with a large tensor at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        large = self.layer(inputs) * 2
        if inputs.isnan().any():
            HELD.append(weakref.ref(large.untyped_storage()))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
        return large


HELD: list[Any] = []


def batches(seed: int, learners: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(learners)]


def too_large(seed: int) -> list[tuple[Tensor, Tensor]]:
    found = batches(seed)
    found[1] = (torch.full((8, 4), torch.nan), found[1][1])
    return found


def made() -> bow.Replicas:
    torch.manual_seed(0)
    optimizer = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    return bow.Replicas(Hungry(), mse_loss, optimizer=optimizer, learners=3, engine="eager", device="cpu")


def test_out_of_memory_is_survived() -> None:
    replicas, untroubled = made(), made()
    for seed in range(2):
        replicas.round(batches(seed))
        untroubled.round(batches(seed))
    with pytest.raises(DeviceMemoryError) as caught:
        replicas.round(too_large(2))
    assert str(caught.value) == (
        "learners=3 ran out of memory (2.00 GiB more) on cpu; the training can be saved, or continue with fewer "
        "learners or a smaller batch_size"
    )
    assert replicas.rounds == 2
    assert torch.equal(replicas.W, untroubled.W)
    saved = replicas.training_state()
    for name, parameter in replicas.export().named_parameters():
        assert torch.equal(parameter, dict(untroubled.export().named_parameters())[name])
    replicas.round(batches(3))
    untroubled.round(batches(3))
    assert torch.equal(replicas.W, untroubled.W)
    assert torch.equal(replicas.z, untroubled.z)
    resumed = made()
    resumed.load_training_state(saved)
    resumed.round(batches(3))
    assert torch.equal(resumed.W, untroubled.W)


def test_the_error_holds_nothing_of_the_failed_task() -> None:
    replicas = made()
    HELD.clear()
    with pytest.raises(DeviceMemoryError) as caught:
        replicas.round(too_large(0))
    gc.collect()
    assert [held() for held in HELD] == [None]
    assert caught.value is not None


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match=r"^other$"), out_of_memory_explained(2, CUDA):
        raise RuntimeError("other")


def test_memory_of_the_host_counts_as_well() -> None:
    message = r"out of memory \(\d+ bytes more\) on cpu; .* continue with a smaller batch_size$"
    with pytest.raises(DeviceMemoryError, match=message), out_of_memory_explained(1, torch.device("cpu")):
        torch.empty(2**60)


@pytest.mark.parametrize(("offload", "remedy"), [(False, "batch_size or offload=True"), (True, "batch_size")])
def test_offloading_is_a_remedy_if_unused(monkeypatch: pytest.MonkeyPatch, offload: bool, remedy: str) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(DeviceMemoryError, match=f"on cuda:0; .*{remedy}$"), out_of_memory_explained(4, CUDA, offload):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_replicas_are_refused_before_anything_is_reserved() -> None:
    rows = MemoryBudget(FakeDevice(), wide(), SGD, bow.SMA(), "eager").need(3).total_bytes
    settings: dict[str, Any] = {"optimizer": SGD, "engine": "eager", "device": FakeDevice(memory_bytes=rows)}
    with pytest.raises(SettingError, match=r"learners=4 needs .*, cpu has .* free, enough for 3; use learners=3 or"):
        bow.Replicas(wide(), mse_loss, **of_replicas(learners=4, **settings))
    assert bow.Replicas(wide(), mse_loss, **of_replicas(learners=3, **settings)).learners == 3
    assert bow.Replicas(wide(), mse_loss, **of_replicas(learners="auto", **settings)).learners == 3


def test_an_example_adds_its_activations() -> None:
    rows = MemoryBudget(FakeDevice(), wide(), SGD, bow.SMA(), "eager").need(2).total_bytes
    settings: dict[str, Any] = {"optimizer": SGD, "engine": "eager", "learners": 2}
    device = FakeDevice(memory_bytes=rows)
    batch = (torch.zeros(1000, 16), torch.zeros(1000, 16))
    bow.Replicas(wide(), mse_loss, **of_replicas(device=device, **settings))
    with pytest.raises(SettingError, match=r"learners=2 needs .* use a smaller batch_size"):
        bow.Replicas(wide(), mse_loss, **of_replicas(device=device, example=batch, **settings))


def test_adding_a_learner_without_room_changes_nothing() -> None:
    rows = MemoryBudget(FakeDevice(), wide(), torch.optim.AdamW, bow.SMA(), "eager").need(2)
    device = FakeDevice(memory_bytes=rows.total_bytes)
    replicas = bow.Replicas(wide(), mse_loss, optimizer=torch.optim.AdamW, learners=2, engine="eager", device=device)
    replicas.resize(replicas.learners + 1)
    device._memory_bytes = rows.row_bytes
    before = replicas.W.clone()
    with pytest.raises(SettingError, match=r"learners=4 needs .* more, cpu has .* free; stay with 3"):
        replicas.resize(replicas.learners + 1)
    assert replicas.learners == 3
    assert torch.equal(replicas.W, before)
