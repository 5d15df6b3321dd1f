import torch

from bow.models import LSTMLanguageModel


def test_one_layer_with_dropout_warns_of_nothing() -> None:
    LSTMLanguageModel(5, embedding=3, hidden=4, layers=1, dropout=0.5)


def test_dropout_acts_in_training_only() -> None:
    model = LSTMLanguageModel(5, embedding=8, hidden=8, dropout=0.5)
    tokens = torch.randint(5, (2, 6))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_predictions_do_not_see_the_future() -> None:
    model = LSTMLanguageModel(5)
    tokens = torch.tensor([[0, 1, 2, 3]])
    changed = torch.tensor([[0, 1, 4, 4]])
    assert torch.allclose(model(tokens)[:, :2], model(changed)[:, :2])
    assert not torch.allclose(model(tokens)[:, 2:], model(changed)[:, 2:])
