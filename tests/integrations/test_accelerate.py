"""`bow.Replicas` in a loop of accelerate's, as the documentation shows it."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bow

accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
DATA = torch.randn(24, 5, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


def test_one_learner_has_the_losses_of_accelerates_own_loop() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model, criterion = nn.Linear(5, 3), nn.functional.cross_entropy
    replicas = bow.Replicas(model, criterion, optimizer=SGD, learners=1, engine="eager", device=accelerator.device)
    own, optimizer, loader = accelerator.prepare(
        model, SGD(model.parameters()), DataLoader(TensorDataset(*DATA), batch_size=4)
    )
    for _ in range(2):
        losses = replicas.run(iter(loader), rounds=len(loader))
        expected = []
        for inputs, targets in loader:
            expected.append(criterion(own(inputs), targets))
            accelerator.backward(expected[-1])
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(losses[:, 0], torch.stack(expected).detach().to(losses.dtype))
    torch.testing.assert_close(replicas.export().weight, accelerator.unwrap_model(own).weight)
    replicas.close()
