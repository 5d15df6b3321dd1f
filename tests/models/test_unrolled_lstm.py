from collections.abc import Callable

import pytest
import torch
from torch import nn

from bow.errors import SettingError
from bow.models import LSTMLanguageModel, PhasedLSTM, RNNLanguageModel, RNNTextClassifier, Translator
from bow.models.unrolled_lstm import UnrolledLSTM


def _copy(unrolled: UnrolledLSTM, layers: list[nn.LSTM]) -> None:
    for cell, layer in zip(unrolled.cells, layers, strict=True):
        cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})


def test_it_computes_what_torch_s_layers_compute() -> None:
    unrolled = UnrolledLSTM(3, hidden=4, layers=2).double()
    layers = [nn.LSTM(size, 4, batch_first=True).double() for size in (3, 4)]
    _copy(unrolled, layers)
    inputs = torch.randn(2, 5, 3, dtype=torch.float64)
    starts = [tuple(torch.randn(2, 2, 4, dtype=torch.float64)) for _ in layers]
    outputs, states = unrolled(inputs.unbind(1), starts)
    expected = inputs
    for layer, start, state in zip(layers, starts, states, strict=True):
        expected, last = layer(expected, tuple(part.unsqueeze(0) for part in start))
        torch.testing.assert_close(torch.stack(state).unsqueeze(1), torch.stack(last), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.stack(list(outputs), dim=1), expected, rtol=0, atol=1e-12)


def test_without_states_it_starts_from_zeros() -> None:
    unrolled = UnrolledLSTM(3, hidden=4, layers=2)
    inputs, zeros = torch.randn(5, 2, 3).unbind(0), torch.zeros(2, 4)
    left, right = unrolled(inputs)[0], unrolled(inputs, [(zeros, zeros)] * 2)[0]
    assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def test_the_unrolled_language_model_is_the_ordinary_one() -> None:
    ordinary = LSTMLanguageModel(7, embedding=4, hidden=4).double()
    unrolled = RNNLanguageModel(7, hidden=4).double()
    _copy(unrolled.lstm, list(ordinary.lstms))
    unrolled.embedding.load_state_dict(ordinary.embedding.state_dict())
    unrolled.output.load_state_dict(ordinary.output.state_dict())
    tokens = torch.randint(7, (3, 6))
    torch.testing.assert_close(unrolled(tokens), ordinary(tokens), rtol=0, atol=1e-12)


def test_a_text_is_classified_by_all_of_its_tokens() -> None:
    model = RNNTextClassifier(7, classes=3, hidden=8)
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    logits = model(tokens)
    assert logits.shape == (1, 3)
    for position in range(4):
        changed = tokens.index_fill(1, torch.tensor([position]), 1)
        assert not torch.equal(model(changed), logits)


@pytest.mark.parametrize(
    "build",
    [
        lambda: RNNLanguageModel(7, layers=0),
        lambda: RNNTextClassifier(7, layers=0),
        lambda: PhasedLSTM(7, layers=0),
        lambda: Translator(7, 7, layers=0),
    ],
)
def test_networks_without_layers_are_refused(build: Callable[[], nn.Module]) -> None:
    with pytest.raises(SettingError, match="layers must be at least 1, got 0"):
        build()
