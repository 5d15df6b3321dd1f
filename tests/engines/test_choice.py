import pytest
import torch
from torch import nn

from bow.engines import ENGINES, STREAM_ENGINES, check_device, choose_engine, choose_learners
from bow.errors import SettingError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_tiny_models_without_convolutions_that_train_for_long_are_fused_on_a_cpu() -> None:
    assert choose_engine(nn.Linear(784, 10), 100_000, CPU) == "fused"


def test_other_trainings_run_as_graphs_on_a_cpu_if_they_are_not_short() -> None:
    for model in (nn.Linear(1_000, 1_000), nn.Conv2d(3, 8, 3)):
        assert choose_engine(model, 100_000, CPU) == "graph"
        assert choose_engine(model, 100, CPU) == "eager"
        assert choose_engine(model, None, CPU) == "eager"


def test_on_a_gpu_everything_runs_as_graphs() -> None:
    for rounds in (None, 100, 100_000):
        assert choose_engine(nn.Linear(784, 10), rounds, CUDA) == "graph"


@pytest.mark.parametrize("engine", [*ENGINES, *STREAM_ENGINES])
def test_what_runs_on_gpus_alone_is_refused_on_a_cpu(engine: str) -> None:
    check_device(engine, streams=True)
    if engine != "graph+round":
        check_device(engine, streams=False)
        return
    with pytest.raises(SettingError, match=r'capture="round" is for GPUs, .* leave it out'):
        check_device(engine, streams=False)


def test_learners_leave_enough_rounds_in_an_epoch() -> None:
    assert choose_learners(CPU, None, None) == 4
    assert choose_learners(CUDA, None, None) == 8
    assert choose_learners(CPU, 60_000, 16) == 4
    assert choose_learners(CPU, 1_000, 16) == 2
    assert choose_learners(CPU, 100, 16) == 1
