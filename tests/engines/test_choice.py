import pytest
import torch
from torch import nn

from bow.engines import ENGINES, STREAM_ENGINES, check_device, choice, choose_engine, choose_learners
from bow.errors import SettingError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(params=[True, False], ids=["built", "not built"])
def built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(choice, "is_built", lambda: request.param)
    return bool(request.param)


def test_learners_run_side_by_side_where_the_native_runtime_is_built(built: bool) -> None:
    for rounds in (None, 100, 100_000):
        assert choose_engine(rounds, CPU) == ("graph" if built else "eager")


def test_trainings_that_are_over_before_capturing_pays_run_in_eager(built: bool) -> None:
    assert choose_engine(99, CPU) == "eager"


def test_on_a_gpu_everything_runs_as_graphs() -> None:
    for rounds in (None, 100, 100_000):
        assert choose_engine(rounds, CUDA) == "graph"


@pytest.mark.parametrize("engine", [*ENGINES, *STREAM_ENGINES])
def test_what_runs_on_gpus_alone_is_refused_on_a_cpu(engine: str) -> None:
    check_device(engine, streams=True)
    if engine != "graph+round":
        check_device(engine, streams=False)
        return
    with pytest.raises(SettingError, match=r'capture="round" is for GPUs, .* leave it out'):
        check_device(engine, streams=False)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "available_cores", lambda: list(range(6)))


CONVOLUTIONS = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Linear(1_000, 1_000))


@pytest.mark.parametrize(
    ("model", "learners"),
    [
        (CONVOLUTIONS, 6),
        (nn.Linear(300, 1_000), 6),
        (nn.Linear(784, 10), 12),  # a round around it takes as long as a learning task
        (nn.Linear(1_000, 1_000), 1),  # a step fills the cores
    ],
)
@pytest.mark.usefixtures("cores")
def test_there_are_as_many_learners_as_cores(model: nn.Module, learners: int) -> None:
    assert choose_learners(CPU, model, None, None) == learners


@pytest.mark.usefixtures("cores")
def test_learners_leave_enough_rounds_in_an_epoch() -> None:
    assert choose_learners(CUDA, CONVOLUTIONS, None, None) == 8
    assert choose_learners(CPU, CONVOLUTIONS, 60_000, 16) == 6
    assert choose_learners(CPU, CONVOLUTIONS, 1_000, 16) == 2
    assert choose_learners(CPU, CONVOLUTIONS, 100, 16) == 1
