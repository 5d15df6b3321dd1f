import torch
from torch import nn

from bow.engine import choose_engine, choose_learners

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_tiny_models_without_convolutions_that_train_for_long_are_fused() -> None:
    assert choose_engine(nn.Linear(784, 10), 100_000, CPU).name == "fused"
    assert choose_engine(nn.Linear(784, 10), 100_000, CUDA).name == "fused"


def test_other_trainings_run_as_graphs_on_a_cpu_if_they_are_not_short() -> None:
    for model in (nn.Linear(1_000, 1_000), nn.Conv2d(3, 8, 3)):
        assert choose_engine(model, 100_000, CPU).name == "graph"
        assert choose_engine(model, 100, CPU).name == "eager"
        assert choose_engine(model, None, CPU).name == "eager"
        assert choose_engine(model, 100_000, CUDA).name == "eager"


def test_learners_leave_enough_rounds_in_an_epoch() -> None:
    assert choose_learners(CPU, None, None) == 4
    assert choose_learners(CUDA, None, None) == 8
    assert choose_learners(CPU, 60_000, 16) == 4
    assert choose_learners(CPU, 1_000, 16) == 2
    assert choose_learners(CPU, 100, 16) == 1
