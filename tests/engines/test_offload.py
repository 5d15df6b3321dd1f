"""Swapping on the fake device, which raises where copies and computation are not ordered."""

import contextlib
import gc
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint

from bow.engines import Engine, LearningConfig, RoundLoop, step_from_loss
from bow.engines.eager import Eager, LearningTasks
from bow.engines.offload import OffloadedTasks, check_offload
from bow.engines.saved_tensors import MAX_IN_FLIGHT, MAX_PREFETCHED, PREFETCH, Offload, view_of
from bow.errors import SettingError
from bow.models import LeNet, Transformer
from bow.replicas import LearnerGroup
from bow.sync import SMA
from bow.testing import FakeDevice, RaceError, Wait
from bow.testing.fake_device import FakeStream

MIN_BYTES = 512
FLOAT = 4


class Block(nn.Module):
    """Convolution, batch norm and a residual connection: allocations that are saved by several operators."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu_(self.norm(self.convolution(inputs)) + inputs)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=False).tanh()
        return inputs


def deep() -> nn.Module:
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers)


def images(classes: int = 0) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(8, 4, 12, 12)
    return inputs, torch.randint(classes, (8,)) if classes else torch.randn(8, 4, 12, 12)


def vectors() -> tuple[Tensor, Tensor]:
    return torch.randn(32, 16), torch.randn(32, 16)


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(11, (4, 24)), torch.randint(11, (4, 24))


def sequence_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], Callable[[], Any]]] = {
    "deep": (deep, mse_loss, vectors),
    "dropout": (lambda: nn.Sequential(deep(), nn.Dropout(0.5), deep()), mse_loss, vectors),
    "residual": (lambda: nn.Sequential(Block(), Block(), Block()), mse_loss, images),
    "lenet": (LeNet, cross_entropy, lambda: (torch.randn(8, 1, 28, 28), torch.randint(10, (8,)))),
    "transformer": (lambda: Transformer(vocabulary=11, context=24), sequence_loss, tokens),
    "recurrent": (lambda: _First(nn.GRU(16, 16)), mse_loss, lambda: (torch.randn(9, 8, 16), torch.randn(9, 8, 16))),
    "checkpointed": (Checkpointed, mse_loss, vectors),
}


class _First(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.module(inputs)[0]
        return output


class Training:
    """Learning tasks of some learners on a stream of the fake device, with and without offloading."""

    def __init__(self, name: str = "deep", device: FakeDevice | None = None, learners: int = 1) -> None:
        build, loss, make_batch = MODELS[name]
        torch.manual_seed(0)
        self.device = device or FakeDevice()
        self.batch = make_batch()
        template = build()
        optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
        self.group = LearnerGroup(template, optimizer, learners=learners, device=torch.device("cpu"))
        self.settings = LearningConfig(step_from_loss(loss))
        self.offloaded = OffloadedTasks(self.group, self.device, at_once=learners > 1, min_bytes=MIN_BYTES)
        self.tasks = LearningTasks(self.group, self.settings, self.offloaded)

    @property
    def offload(self) -> Offload:
        (offload,) = self.offloaded._offloads.values()
        return offload

    def run(self, rounds: int = 1, learner: int = 0) -> Tensor:
        stream = self.device.stream(f"learner {learner}")
        with self.device.issuing(), self.device.on(stream):
            for index in range(rounds):
                torch.manual_seed(index)
                self.tasks.run(learner, self.batch)
        return self.group.learners[learner].gradient

    def plain_gradient(self) -> Tensor:
        torch.manual_seed(0)
        LearningTasks(self.group, self.settings).run(0, self.batch)
        return self.group.learners[0].gradient.clone()

    def close(self) -> None:
        """Give the pinned memory back, and have the device notice."""
        self.offloaded.close()
        gc.collect()
        with self.device.issuing():
            torch.ones(1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_without_offloading(name: str) -> None:
    training = Training(name)
    expected = training.plain_gradient()
    assert torch.equal(training.run(), expected)
    assert training.offload.pinned_bytes > 0
    training.close()


def everything(device: FakeDevice) -> None:
    training = Training("deep", device)
    training.run(rounds=2)
    training.close()


WAITS = [
    Wait("offload to the host", "offload: saved"),
    Wait("learner 0", "offload: on the host"),
    Wait("offload to the device", "offload: has room"),
    Wait("learner 0", "offload: back"),
    Wait("host", "offload: idle"),
]


def test_these_waits_order_all_of_it() -> None:
    device = FakeDevice()
    everything(device)
    assert set(device.waits) == set(WAITS)


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.event)
def test_no_wait_can_be_left_out(wait: Wait) -> None:
    with pytest.raises(RaceError):
        everything(FakeDevice(without=wait))


def bytes_at_the_end_of_forward(offload: bool) -> int:
    """What the device holds when the loss of a task is computed, pinned memory left out."""
    training = Training("deep")
    seen: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        gc.collect()
        pinned = sum(slot.memory.nbytes for slot in training.offload._slots) if offload else 0
        seen.append(training.device.used_bytes() - pinned)
        return mse_loss(outputs, targets)

    training.settings = LearningConfig(step_from_loss(loss))
    training.tasks = LearningTasks(training.group, training.settings, training.offloaded if offload else None)
    training.run()
    return seen[0]


def test_what_is_saved_does_not_stay_on_the_device() -> None:
    activation = 32 * 16 * FLOAT
    saved = 6  # the result of each tanh, which is the next layer's input
    freed = bytes_at_the_end_of_forward(offload=False) - bytes_at_the_end_of_forward(offload=True)
    assert freed == (saved - MAX_IN_FLIGHT) * activation


def test_an_allocation_that_is_saved_twice_is_copied_once() -> None:
    training = Training("deep")
    training.run()
    # The result of each tanh is the next layer's input as well; those that had just left need not come back.
    assert training.offload.pinned_bytes == 6 * 32 * 16 * FLOAT
    assert training.device.waits[Wait("offload to the host", "offload: saved")] == 6
    assert training.device.waits[Wait("offload to the device", "offload: has room")] == 6 - MAX_IN_FLIGHT


def test_copies_back_begin_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a wait of the computation for a copy, those that come next have been issued."""
    device, ahead = FakeDevice(), []
    training = Training("deep", device)
    waits = FakeStream.wait

    def watched(stream: FakeStream, event: Any) -> None:
        if event.name == "offload: back":
            ahead.append(len(training.offload._prefetched))
        waits(stream, event)

    monkeypatch.setattr(FakeStream, "wait", watched)
    training.run()
    assert ahead == [PREFETCH - 1, PREFETCH - 1, 1, 0]


@pytest.mark.parametrize("name", ["deep", "residual", "transformer"])
def test_nothing_is_fetched_only_when_it_is_needed(name: str) -> None:
    """Whatever is saved once or several times, it is asked for in the reverse order."""
    training = Training(name)
    training.run()
    offload, late = training.offload, 0
    on_device = offload._on_device

    def watched(parked: Any) -> Tensor:
        nonlocal late
        leaving = any(leaving.parked is parked for leaving in offload._in_flight)
        late += parked.flat is None and parked.index not in offload._prefetched and not leaving
        return on_device(parked)

    offload._on_device = watched  # type: ignore[method-assign]
    training.run()
    assert training.device.launches["offload to the device"] > 0
    assert late == 0


def test_pinned_memory_is_used_again() -> None:
    training = Training("residual")
    training.run()
    memory = training.offload.pinned_bytes
    slots = {slot for slots in training.offload._pool.values() for slot in slots}
    training.run(rounds=3)
    assert training.offload.pinned_bytes == memory
    assert {slot for slots in training.offload._pool.values() for slot in slots} == slots
    training.close()
    assert training.offload.pinned_bytes == 0
    assert torch.equal(training.run(), training.plain_gradient())


def test_memory_that_others_hold_anyway_stays() -> None:
    training = Training("residual")
    moved: list[int] = []
    training.run()
    take = training.offload._take
    offload = training.offload

    def watched(num_bytes: int) -> Any:
        moved.append(num_bytes)
        return take(num_bytes)

    offload._take = watched  # type: ignore[method-assign]
    training.run()
    # Of each block: the convolution's result and the result of the ReLU. Not the batch, weights or statistics.
    assert moved == [8 * 4 * 12 * 12 * FLOAT] * 6


def test_pinned_memory_that_was_only_written_to_can_be_given_back() -> None:
    device = FakeDevice()
    offload = Offload(device, min_bytes=MIN_BYTES)
    with device.issuing():
        with offload.task(stays=()):
            torch.ones(400, requires_grad=True).exp().sum().backward()
        assert "offload to the device" not in device.launches
        offload.close()
        gc.collect()
        torch.ones(1)


class _Strides(torch.autograd.Function):
    """Saves views of all kinds, and checks in the backward pass that it gets what it saved."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:  # type: ignore[override]
        kinds = [x.t(), x[:, ::2], x.unsqueeze(0).expand(3, -1, -1), *x.chunk(3, dim=1), x.view(torch.int32), x[1:3]]
        kinds += [x.unfold(1, 4, 2), x.as_strided((12, 9, 2), (9, 1, 1)), x[:8].unsqueeze(2).expand(-1, -1, 5)]
        ctx.save_for_backward(*kinds)
        ctx.expected = [(kind.clone(), kind.stride(), kind.dtype) for kind in kinds]  # type: ignore[attr-defined]
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        for saved, (value, strides, dtype) in zip(ctx.saved_tensors, ctx.expected, strict=True):
            assert saved.stride() == strides
            assert saved.dtype == dtype
            assert torch.equal(saved, value)
        return gradient.expand(12, 18)


def test_saved_tensors_keep_their_strides() -> None:
    device = FakeDevice()
    offload = Offload(device, min_bytes=MIN_BYTES)
    with device.issuing(), offload.task(stays=()):
        x = torch.randn(12, 18, requires_grad=True) * 2
        total = _Strides.apply(x)
        for _ in range(MAX_IN_FLIGHT + 1):
            total = total * torch.randn(500, requires_grad=True).exp().sum()  # pushes x off the device
        total.backward()
    assert offload.pinned_bytes > 0
    offload.close()


@contextlib.contextmanager
def offloading() -> Iterator[Offload]:
    """Around a learning task that offloads; the device then has a look at memory that was given back."""
    device = FakeDevice()
    offload = Offload(device, min_bytes=MIN_BYTES)
    with device.issuing():
        try:
            with offload.task(stays=()):
                yield offload
            gc.collect()
        finally:
            offload.close()


@pytest.mark.parametrize(
    "kept",
    [
        torch.ones(100),  # small
        torch.ones(10_000)[:100],  # a small part
        torch.ones(100_000).view(1000, 100)[:, 0],  # with large gaps
        torch.ones(1000).unfold(0, 600, 1),  # with elements that share memory
        torch.ones(400, dtype=torch.complex64).conj(),
        torch.ones(40, 40).to_sparse(),
    ],
    ids=["small", "part", "gaps", "overlapping", "conjugated", "sparse"],
)
def test_what_cannot_or_need_not_leave_stays(kept: Tensor) -> None:
    offload = Offload(FakeDevice(), min_bytes=MIN_BYTES)
    with offload.task(stays=()):
        back = offload._unpack(offload._pack(kept))
    assert offload.pinned_bytes == 0
    assert back.is_sparse if kept.is_sparse else back.data_ptr() == kept.data_ptr()


def test_windows_that_share_elements_overlap() -> None:
    assert view_of(torch.ones(10).unfold(0, 4, 1)).overlaps
    assert view_of(torch.ones(100).as_strided((50, 2), (1, 1))).overlaps
    assert not view_of(torch.ones(3, 4, 5).permute(2, 0, 1).expand(5, 3, 4)).overlaps
    assert not view_of(torch.ones(3, 1, 5)[:, :, ::2].expand(3, 7, 3)).overlaps


def test_what_is_changed_in_place_behind_its_use_is_an_error_as_without_offloading() -> None:
    small, weight = torch.ones(4), torch.ones(4, requires_grad=True)
    with offloading():
        product = (weight * small).sum()
        small.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_what_is_changed_in_place_while_it_is_copied_is_noticed() -> None:
    large, weight = torch.ones(400), torch.ones(400, requires_grad=True)
    with offloading() as offload:
        product = (weight * large).sum()
        offload._device.stream("caller").wait(offload._slots[0].on_host)  # lest the fake device is faster
        large.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_a_graph_that_is_kept_is_an_error_when_it_is_used() -> None:
    weight = torch.ones(400, requires_grad=True)
    with offloading():
        kept = (weight * torch.ones(400).exp()).sum()
    with pytest.raises(RuntimeError, match=r"freed when the task ends \(offload=True\)"):
        kept.backward()


def test_a_tensor_that_has_changed_since_is_copied_again() -> None:
    one, other = (torch.ones(400, requires_grad=True) for _ in range(2))
    with offloading():
        factor = torch.full((400,), 2.0)
        first = one * factor  # noqa: F841 - the graph holds it, and nobody differentiates it
        for _ in range(MAX_IN_FLIGHT):
            one = one.tanh()
        factor.add_(1)
        (gradient,) = torch.autograd.grad((other * factor).sum(), other)
    assert gradient.tolist() == [3.0] * 400


def test_parts_that_change_one_after_another_are_saved_as_they_were() -> None:
    """Those of `unsafe_chunk` have versions of their own, equal ones here."""
    weights = torch.ones(400, 2, requires_grad=True)
    with offloading():
        one, other = torch.ones(400, 4).unsafe_chunk(2, dim=1)
        one.add_(1)
        product = (weights * one).sum()
        other.add_(2)
        product = product + (weights * other).sum()
        (gradient,) = torch.autograd.grad(product, weights)
    assert gradient.unique().tolist() == [5.0]


def test_a_part_of_the_graph_that_is_not_differentiated_does_no_harm() -> None:
    weight = torch.ones(400, requires_grad=True)
    asides = []
    with offloading() as offload:
        chain = weight * 1
        for _ in range(8):
            asides.append(chain.cos().exp().cos())  # a metric, say
            chain = chain.tanh()
        (gradient,) = torch.autograd.grad(chain.sum(), weight)
        assert len(offload._prefetched) == MAX_PREFETCHED  # what nobody asked for, and no more of it than that
    plain = weight * 1
    for _ in range(8):
        plain = plain.tanh()
    assert torch.equal(gradient, torch.autograd.grad(plain.sum(), weight)[0])


def test_a_graph_can_be_differentiated_twice() -> None:
    weight = torch.ones(400, requires_grad=True)

    def penalty() -> Tensor:
        (slope,) = torch.autograd.grad(weight.tanh().exp().tanh().sin().sum(), weight, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), weight)[0]

    expected = penalty()
    with offloading():
        found = penalty()
    assert torch.equal(found, expected)


def test_a_failing_task_leaves_everything_usable() -> None:
    training = Training("deep")
    expected = training.plain_gradient()
    settings = training.settings

    def fail(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("no loss")

    training.tasks = LearningTasks(training.group, LearningConfig(step_from_loss(fail)), training.offloaded)
    with pytest.raises(ValueError, match="no loss"):
        training.run()
    training.tasks = LearningTasks(training.group, settings, training.offloaded)
    assert torch.equal(training.run(), expected)
    training.close()


def test_learners_at_once_offload_on_streams_of_their_own() -> None:
    training = Training("residual", learners=3)
    expected = training.plain_gradient()
    threads = [threading.Thread(target=training.run, args=(3, learner)) for learner in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for learner in training.group.learners:
        assert torch.equal(learner.gradient, expected)
    assert len(training.offloaded._offloads) == 3
    training.close()


def test_engine_eager_trains_alike_with_one_pool_for_all_learners() -> None:
    def trained(offload: bool, device: FakeDevice) -> Tensor:
        training = Training("residual")
        settings = LearningConfig(training.settings.step, engine=Engine(offload=offload))
        group = LearnerGroup(training.group.template, torch.optim.AdamW, learners=3, device=torch.device("cpu"))
        engine = RoundLoop(Eager, group, SMA(), settings, device)
        if (offloadped := engine.runner.offloaded) is not None:  # type: ignore[attr-defined]
            offloadped._min_bytes = MIN_BYTES
        with device.issuing():
            for _ in range(3):
                engine.round([training.batch] * 3)
        engine.close()
        return group.matrix.weights.clone()

    offloading_device, plain_device = FakeDevice(), FakeDevice()
    assert torch.equal(trained(True, offloading_device), trained(False, plain_device))
    assert offloading_device.launches["offload to the host"] > 0
    assert set(plain_device.launches) == {"caller"}


def test_functions_that_hooks_do_not_see_through_are_refused() -> None:
    weight = torch.ones(400)
    message = r"offload=True does not work with this learning task .* leave it out"
    with pytest.raises(SettingError, match=message), offloading():
        torch.func.grad(lambda w: w.tanh().sum())(weight)


def test_pinned_memory_that_is_not_to_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*arguments: object) -> Tensor:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ...")

    monkeypatch.setattr(FakeDevice, "pinned", none_left)
    weight = torch.ones(400, requires_grad=True)
    message = r"host memory to pin more .*use fewer learners or a smaller batch_size"
    with pytest.raises(SettingError, match=message), offloading():
        weight.tanh().sum().backward()


@pytest.mark.parametrize("engine", ["graph", "graph+round", "fused"])
def test_engines_whose_tasks_save_nothing_refuse_to_offload(engine: str) -> None:
    with pytest.raises(SettingError, match=f'"{re.escape(engine)}" do not; use engine="eager" or "streams"'):
        check_offload(True, engine, streams=True)


def test_what_does_not_offload_is_let_through() -> None:
    check_offload(False, "fused", streams=True)
    check_offload(True, "streams", streams=True)


def test_settings_that_do_not_go_with_offloading() -> None:
    with pytest.raises(SettingError, match=r"which a compiled learning task \(compile=True\) hides"):
        Engine(compile=True, offload=True)
