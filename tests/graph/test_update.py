import copy
import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bow
from bow.errors import GraphError
from tests.graph.cases import state


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def _two_groups(parameters):
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": rest}], lr=0.1, momentum=0.9)


FACTORIES = {
    "SGD": (functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), 5),
    "AdamW": (functools.partial(torch.optim.AdamW, lr=0.01), 7),
    "two groups": (_two_groups, 5),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_training_by_the_graph_equals_training_by_autograd(name: str) -> None:
    factory, _ = FACTORIES[name]
    plain, learner = _model(), _model()
    ours, theirs = factory(learner.parameters()), factory(plain.parameters())
    batches = [(torch.randn(4, 5), torch.randint(3, (4,))) for _ in range(3)]
    graph = bow.capture(learner, batches[0], F.cross_entropy, optimizer=factory)
    for inputs, targets in batches:
        outputs = graph.run(*state(learner), (inputs, targets), optimizer=ours)
        for buffer_name, buffer in learner.named_buffers():
            buffer.copy_(outputs.buffers[buffer_name])
        theirs.zero_grad()
        F.cross_entropy(plain(inputs), targets).backward()
        theirs.step()
    expected = plain.state_dict()
    assert [name for name, value in learner.state_dict().items() if not torch.equal(value, expected[name])] == []
    assert all(parameter.grad is None for parameter in learner.parameters())


@pytest.mark.parametrize("name", FACTORIES)
def test_one_update_for_each_group_reads_its_gradients_and_makes_its_parameters(name: str) -> None:
    factory, tensors_moved = FACTORIES[name]
    model = _model()
    graph = bow.capture(model, (torch.randn(4, 5), torch.randint(3, (4,))), F.cross_entropy, optimizer=factory)
    updates = [operator for operator in graph.operators if operator.phase == "update"]
    assert [update.group for update in updates] == list(range(len(factory(model.parameters()).param_groups)))
    assert [name for update in updates for name in update.parameters] == list(graph.parameters)
    assert {graph.gradients[name] for name in graph.parameters} <= {v for update in updates for v in update.reads}
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    assert sum(update.bytes_moved for update in updates) == tensors_moved * num_bytes


def test_an_optimizer_of_other_tensors_is_refused() -> None:
    factory: Callable[..., torch.optim.Optimizer] = functools.partial(torch.optim.SGD, lr=0.1)
    model, batch = _model(), (torch.randn(4, 5), torch.randint(3, (4,)))
    graph = bow.capture(model, batch, F.cross_entropy, optimizer=factory)
    with pytest.raises(GraphError, match="group 0 of the optimizer does not hold"):
        graph.run(*state(model), batch, optimizer=factory(copy.deepcopy(model).parameters()))
