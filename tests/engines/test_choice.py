import pytest
import torch

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


@pytest.mark.usefixtures("cores")
def test_there_are_as_many_learners_as_cores() -> None:
    assert choose_learners(CPU) == 6
    assert choose_learners(CUDA) == 8


@pytest.mark.usefixtures("cores")
def test_learners_leave_enough_rounds_in_an_epoch() -> None:
    assert choose_learners(CPU, 60_000, 16) == 6
    assert choose_learners(CPU, 1_000, 16) == 2
    assert choose_learners(CPU, 100, 16) == 1
