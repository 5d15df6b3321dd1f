import functools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from bow.errors import ModelError, SettingError
from bow.replicas import LearnerGroup, buffer_state, recalibrate

CPU = torch.device("cpu")
SGD = functools.partial(torch.optim.SGD, lr=0.1)


def group_of(model: nn.Module, learners: int = 2, **settings) -> LearnerGroup:
    return LearnerGroup(model, SGD, learners=learners, device=CPU, **settings)


def test_a_learner_is_a_module_on_its_row() -> None:
    group = group_of(nn.Linear(3, 2))
    group.matrix.weights[1].fill_(7.0)
    assert group.learners[1].module.weight.detach().unique().tolist() == [7.0]
    assert 7.0 not in group.learners[0].module.weight.detach()


def test_the_users_model_is_not_changed() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    group = group_of(model)
    group.matrix.weights.fill_(1.0)
    for learner in group.learners:
        learner.module(torch.randn(4, 3))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_rows_never_move_when_learners_come_and_go() -> None:
    group = group_of(nn.Linear(3, 2))
    address = group.learners[0].row.data_ptr()
    for _ in range(5):
        group.add()
    group.remove()
    assert group.learners[0].row.data_ptr() == address
    assert group.matrix.weights.data_ptr() == address


def test_frozen_parameters_are_shared_by_learners_and_stay_out_of_the_row() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    group = group_of(model)
    assert group.layout.num_parameters == 4
    first, second = (learner.module[0].weight for learner in group.learners)
    assert first is second
    assert first is not model[0].weight
    assert not first.requires_grad


def test_a_new_learner_starts_from_the_central_model_and_its_buffers() -> None:
    group = group_of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    for learner in group.learners:
        learner.module(torch.randn(8, 3))
    group.matrix.z.fill_(0.25)
    group.add()
    new, central = group.learners[2].module, group.central
    assert torch.equal(new[0].weight, torch.full((2, 3), 0.25))
    torch.testing.assert_close(new[1].running_mean, central[1].running_mean)


def test_the_only_learner_cannot_be_removed() -> None:
    with pytest.raises(SettingError, match="at least 1"):
        group_of(nn.Linear(2, 2), learners=1).remove()


def test_more_learners_than_rows_are_refused_with_the_number() -> None:
    group = group_of(nn.Linear(2, 2))
    for _ in range(62):
        group.add()
    with pytest.raises(SettingError, match="learners=65 is more than the 64 rows"):
        group.add()
    assert len(group) == 64


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Flatten(), "no trainable parameters"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "float32, float64"),
        (nn.Linear(2, 2).half(), "dtype float16"),
        (nn.LazyLinear(2), "lazy modules"),
    ],
    ids=["none", "two dtypes", "float16", "lazy"],
)
def test_models_that_cannot_share_a_row_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        group_of(model)


def with_statistics(values: list[float], policy: str) -> nn.Module:
    group = group_of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), learners=len(values), buffers=policy)
    for number, (learner, value) in enumerate(zip(group.learners, values, strict=True)):
        learner.module[1].running_mean.fill_(value)
        learner.module[1].num_batches_tracked.fill_(number + 5)
    return group.central[1]


def test_batch_norm_statistics_are_averaged_and_counters_follow_learner_0() -> None:
    norm = with_statistics([1.0, 4.0], "average")
    assert norm.running_mean.tolist() == [2.5, 2.5]
    assert int(norm.num_batches_tracked) == 5


def test_equal_statistics_are_copied_and_not_averaged() -> None:
    value = 0.1  # the float32 mean of three of these differs from it
    assert torch.equal(with_statistics([value] * 3, "average").running_mean, torch.full((2,), value))


def test_first_takes_learner_0() -> None:
    assert with_statistics([1.0, 4.0], "first").running_mean.tolist() == [1.0, 1.0]


def test_recalibrated_statistics_are_those_of_the_data_and_stay() -> None:
    group = group_of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), buffers="recalibrate")
    data = torch.randn(64, 3)
    central = group.central

    def forwards():
        for batch in data.split(16):
            central(batch)
            yield

    with torch.no_grad():
        recalibrate(central, group.learners[0].module, forwards())
        expected = torch.stack([central[0](batch).mean(0) for batch in data.split(16)]).mean(0)
    torch.testing.assert_close(group.central[1].running_mean, expected)
    assert not central.training
    assert group.central[1].momentum == 0.1


def test_statistics_that_learners_keep_are_not_recalibrated() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    model[0].eval()
    group = group_of(model, buffers="recalibrate")

    def forwards() -> Iterator[None]:
        group.central(torch.arange(12.0).view(4, 3))
        yield

    recalibrate(group.central, group.learners[0].module, forwards())
    assert group.central[0].running_mean.tolist() == [0, 0, 0]
    assert group.central[1].running_mean.tolist() == pytest.approx([4.5, 5.5, 6.5], rel=1e-4)


def test_an_unknown_buffer_policy_is_refused() -> None:
    with pytest.raises(SettingError, match="average, recalibrate, first, got 'mean'"):
        group_of(nn.Linear(2, 2), buffers="mean")


def test_exported_models_stand_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    group = group_of(model)
    exported = group.export()
    group.matrix.z.fill_(0.0)
    assert torch.equal(exported[1].weight, model[1].weight)
    assert exported[1].weight.untyped_storage().nbytes() == 4 * 4
    assert [p.requires_grad for p in exported.parameters()] == [False, False, True, True]
    assert not exported.training


def test_buffers_that_state_dicts_leave_out_are_saved_too() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.zeros(1), persistent=False)

    group = group_of(Counter())
    group.learners[1].module.seen.fill_(3.0)
    state = group.state()
    other = group_of(Counter(), learners=2)
    other.load_state(state)
    assert buffer_state(other.learners[1].module)["seen"].tolist() == [3.0]


def test_learners_that_all_diverge_have_the_buffers_of_those_without_nan() -> None:
    group = group_of(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    for learner, mean in zip(group.learners, (float("nan"), 2.0), strict=True):
        learner.module[0].running_mean.fill_(mean)
    group.restart([True, True], written=True)
    for learner in group.learners:
        assert learner.module[0].running_mean.tolist() == [2.0, 2.0]
        learner.module[0].running_mean.fill_(float("nan"))
    group.restart([True, True], written=True)
    assert [learner.module[0].running_mean.tolist() for learner in group.learners] == [[2.0, 2.0]] * 2


class Calls(nn.Linear):
    """Counts its calls in Python, and says so in its state dict."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.calls = {"train": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls["train"] += self.training
        return super().forward(x)

    def get_extra_state(self) -> dict:
        return self.calls

    def set_extra_state(self, state: dict) -> None:
        self.calls = state


def test_extra_state_goes_with_the_buffers() -> None:
    group, other = group_of(nn.Sequential(Calls())), group_of(nn.Sequential(Calls()))
    for learner, count in zip(group.learners, (1, 4), strict=True):
        for _ in range(count):
            learner.module(torch.ones(1, 3))
    assert group.central[0].calls == group.export()[0].calls == {"train": 1}
    group.add()
    assert group.learners[2].module[0].calls == {"train": 1}
    other.load_state(group.state())
    assert [learner.module[0].calls["train"] for learner in other.learners] == [1, 4]
    other.restart([True, False])
    other.learners[1].module(torch.ones(1, 3))
    assert [learner.module[0].calls["train"] for learner in other.learners] == [4, 5]
    assert group.template[0].calls == {"train": 0}


def test_extra_state_may_be_a_value_of_the_last_step() -> None:
    group = group_of(nn.Sequential(Calls()))
    group.learners[0].module[0].calls = {"mean": group.learners[0].module(torch.ones(1, 3)).mean()}
    mean = group.central[0].calls["mean"]
    assert torch.equal(mean, group.learners[0].module[0].calls["mean"])
    assert not mean.requires_grad


def test_a_buffer_that_is_an_expanded_tensor_is_copied() -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("mask", torch.ones(1).expand(3))
    group = group_of(model)
    group.learners[0].module.mask.zero_()
    assert group.central.mask.tolist() == [0.0, 0.0, 0.0]
    assert group.learners[1].module.mask.tolist() == model.mask.tolist() == [1.0, 1.0, 1.0]


def test_frozen_parameters_are_part_of_the_state() -> None:
    def model() -> nn.Module:
        built = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        built[0].requires_grad_(False)
        return built

    group, other = group_of(model()), group_of(model())
    other.load_state(group.state())
    assert torch.equal(other.central[0].weight, group.central[0].weight)


@pytest.mark.parametrize(("nodes", "expected"), [([0], 3.0), ([1], 0.0)], ids=["the same machines", "others"])
def test_a_devices_own_state_is_restored_on_the_same_machines_only(nodes: list[int], expected: float) -> None:
    group, other = group_of(nn.Linear(3, 2)), group_of(nn.Linear(3, 2))
    group.matrix.state["node_z"] = torch.full_like(group.matrix.z, 3.0)
    other.matrix.state["node_z"] = torch.zeros_like(group.matrix.z)
    state = group.state({"node_z"})
    assert state["nodes"] == [0]
    assert other.load_state({**state, "nodes": nodes}) == (len(other), nodes == [0])
    assert other.matrix.state["node_z"].unique().tolist() == [expected]
