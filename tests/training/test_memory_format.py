"""The order of convolutions' weights in memory: the user's, or measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.engines import LearningConfig, step_from_loss
from bow.errors import CheckpointError, SettingError
from bow.members.group import MemberGroup
from bow.observe.records import read_records
from bow.training import Replicas
from bow.training.replicas import ReplicasConfig
from bow.training.trials import Request, Trials, candidates, split
from bow.tuner import EngineSetting
from tests.training.blueprints import assert_equal_models

LOSS = nn.functional.cross_entropy
PINNED = bow.Tuner(pinned=EngineSetting("graph+channels_last", 2, 1))
Last = torch.channels_last


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))


def images(samples: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, 3, 8, 8, generator=generator), torch.arange(samples) % 2


def replicas(**engine: Any) -> Replicas:
    return Replicas(network(), LOSS, learners=2, engine=bow.Engine("graph", **engine), device="cpu")


def request_of(model: nn.Module, engine: bow.Engine, is_several: bool = False) -> Request:
    task = LearningConfig(step_from_loss(LOSS), engine=engine)
    config = ReplicasConfig(
        model, task, torch.optim.SGD, bow.SMA(), torch.device("cpu"), "average", None, is_several=is_several
    )
    return Request("auto", "auto", False, 8, 8, 1e6, None, 2, config)


def names(model: nn.Module, engine: bow.Engine = bow.Engine(), is_several: bool = False) -> set[str]:  # noqa: B008
    request = request_of(model, engine, is_several)
    trials = Trials.__new__(Trials)
    trials.compile_s = lambda setting: None  # type: ignore[method-assign]
    return {candidate.engine for candidate in candidates(request, trials)}


def test_channels_last_is_a_candidate_for_models_with_convolutions() -> None:
    assert "graph+channels_last" in names(network())
    assert "graph+channels_last" not in names(nn.Linear(2, 2))


def test_the_users_own_choice_is_respected() -> None:
    assert "graph+channels_last" not in names(network().to(memory_format=Last))
    assert "graph+channels_last" not in names(network(), bow.Engine(memory_format="channels_last"))


def test_several_devices_add_up_rows_of_one_order() -> None:
    assert "graph+channels_last" not in names(network(), is_several=True)


def test_names_of_lanes_are_taken_apart() -> None:
    assert split("graph+compiled+channels_last") == ("graph", True, "channels_last")
    assert split("graph") == ("graph", False, None)


def test_results_are_equal_to_rounding() -> None:
    plain, last = replicas(), replicas(memory_format="channels_last")
    x, y = images(16)
    batches = [(x[:8], y[:8]), (x[8:], y[8:])]
    for _ in range(5):
        torch.testing.assert_close(plain.round(batches), last.round(batches))
    for a, b in zip(plain.central.parameters(), last.central.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert last.learner(0)[0].weight.is_contiguous(memory_format=Last)
    assert not plain.learner(0)[0].weight.is_contiguous(memory_format=Last)


@pytest.mark.parametrize("shape", [(4, 1, 3, 3), (4, 3, 1, 1), (4, 1, 1, 1), (1, 3, 3, 3)])
@pytest.mark.parametrize("memory_format", [Last, torch.contiguous_format])
def test_a_convolution_of_one_channel_keeps_the_order_that_kernels_are_chosen_by(
    shape: tuple[int, ...], memory_format: torch.memory_format
) -> None:
    model = nn.ParameterList([torch.randn(shape)]).to(memory_format=memory_format)
    learner = MemberGroup(model, torch.optim.SGD, 1, torch.device("cpu")).learners[0]
    assert learner.module[0].stride() == model[0].stride()


def test_rows_of_members_have_the_order_too() -> None:
    group = MemberGroup(network(), torch.optim.SGD, 1, torch.device("cpu"), "channels_last")
    assert group.learners[0].module[0].weight.is_contiguous(memory_format=Last)


def test_a_state_of_another_order_is_refused() -> None:
    state = replicas(memory_format="channels_last").training_state()
    how = r"memory order \[0, 2, 3, 1\], this .* the usual one; resume with engine=bow.Engine\(memory_format="
    with pytest.raises(CheckpointError, match=how):
        replicas().load_training_state(state)
    how = r"the usual one, this .* \[0, 2, 3, 1\]; resume with an engine without memory_format"
    with pytest.raises(CheckpointError, match=how):
        replicas(memory_format="channels_last").load_training_state(replicas().training_state())


def test_where_a_dimension_of_size_1_lies_does_not_matter() -> None:
    def grey() -> Replicas:
        return Replicas(nn.Conv2d(1, 4, 3).to(memory_format=Last), LOSS, learners=2, device="cpu")

    before, resumed = grey(), grey()
    state = before.training_state()
    assert state["memory_order"] == {"weight": [0, 2, 3, 1]}
    resumed.load_training_state(state | {"memory_order": {"weight": [0, 2, 1, 3]}})
    assert torch.equal(resumed.W, before.W)


def test_a_members_state_of_another_order_is_refused() -> None:
    def group(memory_format: str | None) -> MemberGroup:
        return MemberGroup(network(), torch.optim.SGD, 1, torch.device("cpu"), memory_format)

    state = group("channels_last").state_of(0)
    with pytest.raises(CheckpointError, match=r"memory order .*resume with engine=bow\.Engine"):
        group(None).load_state_of(0, state)
    group("channels_last").load_state_of(0, state)


def test_another_format_is_refused() -> None:
    with pytest.raises(SettingError, match='memory_format must be "channels_last" or None'):
        bow.Engine(memory_format="nhwc")  # type: ignore[arg-type]


def test_the_choice_is_recorded_and_resumed_byte_for_byte(tmp_path: Path) -> None:
    def train(name: str, epochs: int, **run: Any) -> bow.Result:
        kept = bow.Run(str(tmp_path / name), progress=False, checkpoint_every=4, **run)
        return bow.train(network(), images(), LOSS, batch_size=8, epochs=epochs, run=kept, learners=PINNED, seed=1)

    whole, _ = train("whole", 4), train("parts", 2)
    again = train("again", 4, resume=tmp_path / "parts")
    assert_equal_models(again.model, whole.model)
    chosen = next(r for r in read_records(tmp_path / "parts" / "metrics.jsonl") if r["kind"] == "calibration")
    assert (chosen["engine"], chosen["memory_format"]) == ("graph", "channels_last")
    assert whole.model[0].weight.is_contiguous(memory_format=Last)
