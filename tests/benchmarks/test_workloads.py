from __future__ import annotations

import pytest
import torch

from benchmarks.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_model_learns_from_its_data_with_its_loss(name: str) -> None:
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    model = workload.build()
    inputs, targets = workload.make_data(4)
    loss = workload.loss(model(inputs), targets)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", WORKLOADS)
def test_data_are_the_same_in_every_run_and_labels_say_nothing_about_inputs(name: str) -> None:
    first, again = (WORKLOADS[name].make_data(64) for _ in range(2))
    assert all(map(torch.equal, first, again))
    inputs, targets = first
    assert len(inputs) == len(targets) == 64
    assert len(targets.unique()) > 5
    assert not torch.equal(inputs, targets)


def test_the_benchmark_covers_the_papers_networks() -> None:
    parameters = {name: sum(p.numel() for p in w.build().parameters()) for name, w in WORKLOADS.items()}
    assert parameters == {
        "logistic_regression": 7_850,
        "mlp": 203_530,
        "lenet": 431_080,
        "resnet8": 75_290,
        "lstm": 243_969,
    }
