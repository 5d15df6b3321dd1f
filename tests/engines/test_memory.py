import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

import bow
from bow.engines import LearningConfig, make_engine, step_from_loss
from bow.engines.memory import MemoryNeed, bytes_text, predict_memory, saved_bytes
from bow.engines.saved_tensors import MAX_IN_FLIGHT, MIN_BYTES
from bow.replicas import LearnerGroup
from bow.testing import FakeDevice

FLOAT = 4
CPU = torch.device("cpu")
SGD = functools.partial(torch.optim.SGD, lr=0.1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))


def normed() -> nn.Module:
    """Buffers, frozen parameters, and a row that is padded."""
    model = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 5))
    model[0].bias.requires_grad_(False)
    return model


class ReadsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) if float(inputs.sum()) > 0 else inputs


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        value = inputs * self.scale
        return scaled_dot_product_attention(value, value, value, is_causal=True, dropout_p=0.1)


@pytest.mark.parametrize("learners", [1, 3])
@pytest.mark.parametrize("optimizer", [SGD, functools.partial(SGD, momentum=0.9), torch.optim.AdamW])
@pytest.mark.parametrize("sync", [bow.SMA(), bow.SSGD(), bow.DiLoCo(every=1), bow.ASGD(), bow.LocalSGD(every=1)])
def test_what_is_predicted_is_what_learners_hold(sync: Any, optimizer: Any, learners: int) -> None:
    model = normed()
    need = predict_memory(model, optimizer, sync, learners=learners, engine="eager", place=CPU)
    group = LearnerGroup(model, optimizer, learners=learners, device=CPU)
    engine = make_engine("eager", group, sync, LearningConfig(step_from_loss(mse_loss)))
    for _ in range(2):
        engine.round([(torch.randn(8, 10), torch.randn(8, 5))] * learners)
    next_value = need.row_bytes  # made anew in every round
    counters = sum(
        value.nbytes
        for state in engine.group.optimizer.optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim() == 0
    )
    assert need.held_bytes == sum(tensor.nbytes for tensor in group.held) + next_value - counters


@pytest.mark.parametrize("engine", ["graph", "fused"])
def test_engines_that_step_in_one_pass_have_momenta_and_no_corrections(engine: str) -> None:
    def need(**changed: Any) -> tuple[int, int]:
        settings = {"optimizer": SGD, "sync": bow.SMA(), "engine": engine, "place": CPU, **changed}
        found = predict_memory(mlp(), settings.pop("optimizer"), settings.pop("sync"), learners=4, **settings)
        return found.rows_per_learner, found.state_tensors

    assert need() == (2, 1)
    assert need(clip_norm=1.0) == (3, 0)
    assert need(optimizer=torch.optim.AdamW) == (2 if engine == "graph" else 3, 2)
    assert need(optimizer=torch.optim.AdamW, place=FakeDevice()) == (3, 2)
    assert need(optimizer=torch.optim.NAdam) == (3, 2)
    assert need(sync=bow.SSGD()) == (2, 0)
    assert need(sync=bow.LocalSGD()) == (2, 1 if engine == "graph" else 0)
    assert need(engine="streams") == (3, 0)
    assert need(engine="streams", place=FakeDevice()) == (2, 1)


def test_activations_are_what_backward_needs() -> None:
    # The batch [8, 10], the result of the ReLU [8, 20], and the outputs [8, 5].
    assert sorted(saved_bytes(mlp(), torch.zeros(8, 10)) or []) == [FLOAT * 8 * n for n in (5, 10, 20)]


def test_inputs_are_the_first_part_of_a_batch() -> None:
    batch = (torch.zeros(8, 10), torch.zeros(8, 5))
    assert saved_bytes(mlp(), batch) == saved_bytes(mlp(), batch[0])


def test_activations_grow_with_the_batch() -> None:
    small, large = (saved_bytes(mlp(), torch.zeros(size, 10)) for size in (8, 16))
    assert small is not None
    assert large == [2 * size for size in small]


def test_activations_in_bfloat16_are_half_as_large() -> None:
    full = saved_bytes(mlp(), torch.zeros(8, 10))
    half = saved_bytes(mlp(), torch.zeros(8, 10), "bfloat16")
    assert full is not None
    assert half == [size // 2 for size in full]


def test_attention_does_not_keep_all_pairs() -> None:
    tokens, width = 256, 16
    sizes = saved_bytes(Attention(), torch.zeros(2, 4, tokens, width))
    assert sizes is not None
    assert max(sizes) == 2 * 4 * tokens * width * FLOAT


def test_activations_of_a_model_that_reads_values_are_unknown() -> None:
    assert saved_bytes(ReadsValues(), torch.zeros(8, 10)) is None


def test_looking_at_activations_leaves_model_and_random_numbers_alone() -> None:
    model = nn.Sequential(normed(), nn.Dropout())
    before = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    state = torch.get_rng_state()
    saved_bytes(model, torch.ones(8, 10))
    assert torch.equal(state, torch.get_rng_state())
    for tensor, value in zip((*model.parameters(), *model.buffers()), before, strict=True):
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, value)


def test_swapping_leaves_what_is_small_and_what_is_about_to_leave() -> None:
    sizes = [MIN_BYTES - 1, *(MIN_BYTES + n for n in range(6))]
    predict = functools.partial(
        predict_memory, mlp(), SGD, bow.SMA(), learners=2, engine="eager", place=FakeDevice(), saved=sizes
    )
    assert predict().activation_bytes == sum(sizes)
    assert predict(offload=True).activation_bytes == sizes[0] + sum(sizes[-MAX_IN_FLIGHT - 1 :])


def test_model_without_shapes_yet_is_no_error() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    assert predict_memory(model, SGD, bow.SMA(), learners=2, engine="eager", place=CPU).held_bytes == 0


def test_engines_differ_in_how_many_tasks_there_are_at_a_time() -> None:
    need = functools.partial(predict_memory, mlp(), SGD, bow.SMA(), learners=5, place=CPU)
    assert need(engine="eager").num_tasks == 1
    assert need(engine="fused").num_tasks == 5


@pytest.mark.parametrize("at_once", [None, 1, 3])
@pytest.mark.parametrize("activations", [0, 7, 500])
def test_as_many_fit_as_are_said_to(at_once: int | None, activations: int) -> None:
    need = functools.partial(
        MemoryNeed,
        row_bytes=100,
        state_tensors=1,
        buffer_bytes=13,
        activation_bytes=activations,
        learners_at_once=at_once,
        workspace_bytes=5,
    )
    for room in range(0, 8000, 37):
        fitting = need(learners=9).fitting(room)
        assert fitting == 0 or need(learners=fitting).total_bytes <= room
        assert need(learners=fitting + 1).total_bytes > room


def test_memory_follows_the_formula() -> None:
    need = MemoryNeed(learners=3, row_bytes=100, state_tensors=1, activation_bytes=700, learners_at_once=2)
    assert (need.learner_bytes, need.device_bytes, need.task_bytes) == (400, 400, 700)
    assert need.total_bytes == 3 * 400 + 400 + 2 * 700


def test_gradients_count_where_activations_are_small() -> None:
    assert MemoryNeed(learners=1, row_bytes=100, activation_bytes=7).task_bytes == 200


def test_bytes_are_written_for_people() -> None:
    assert [bytes_text(count) for count in (0, 1023, 1536, 5 * 2**50)] == ["0 B", "1023 B", "1.5 KiB", "5120.0 TiB"]
