import torch

from bow.models import MLP


def test_relu_stands_between_the_layers() -> None:
    model = MLP(6, 3, hidden=(5, 4))
    inputs = torch.randn(7, 2, 3)
    first, second = model.hidden
    features = second(first(inputs.view(7, 6)).clamp(min=0)).clamp(min=0)
    assert torch.equal(model(inputs), model.output(features))


def test_without_hidden_layers_it_is_linear() -> None:
    model = MLP(6, 3, hidden=())
    inputs = torch.randn(7, 6)
    assert torch.equal(model(inputs), model.output(inputs))
