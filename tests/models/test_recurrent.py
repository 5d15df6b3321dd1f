"""Networks of LSTM layers."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from bow.errors import SettingError
from bow.models import (
    LSTMLanguageModel,
    PhasedLSTM,
    RNNLanguageModel,
    RNNTextClassifier,
    Translator,
    sequence_cross_entropy,
)
from bow.models.recurrent import AdditiveAttention, UnrolledLSTM


def test_loss_is_the_mean_over_all_positions() -> None:
    logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    terms = [-logits[b, t].log_softmax(0)[targets[b, t]].item() for b in range(2) for t in range(3)]
    assert sequence_cross_entropy(logits, targets).item() == pytest.approx(sum(terms) / 6, rel=1e-5)


def test_knowing_nothing_costs_the_logarithm_of_the_vocabulary() -> None:
    loss = sequence_cross_entropy(torch.zeros(2, 3, 7), torch.zeros(2, 3, dtype=torch.int64))
    assert loss.item() == pytest.approx(math.log(7))


def test_one_layer_with_dropout_warns_of_nothing() -> None:
    LSTMLanguageModel(5, embedding=3, hidden=4, layers=1, dropout=0.5)


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


def test_attention_is_bahdanau_s() -> None:
    attention = AdditiveAttention(3).double()
    query, values = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    context = attention(query, attention.key(values), values)
    w, u, bias, v = (
        parameter.detach().numpy()
        for parameter in (attention.query.weight, attention.key.weight, attention.key.bias, attention.energy.weight[0])
    )
    for q, sentence, made in zip(query.numpy(), values.numpy(), context.detach().numpy(), strict=True):
        energies = np.array([v @ np.tanh(w @ q + u @ value + bias) for value in sentence])
        weights = np.exp(energies) / np.exp(energies).sum()
        np.testing.assert_allclose(made, weights @ sentence, rtol=0, atol=1e-12)


def test_a_step_sees_the_whole_source_and_the_target_so_far() -> None:
    model = Translator(5, 6, hidden=8)
    source, target = torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64)
    logits = model((source, target))
    assert logits.shape == (1, 4, 6)
    changed = model((source, torch.tensor([[0, 0, 1, 0]])))
    assert torch.equal(changed[:, :2], logits[:, :2])
    assert not torch.allclose(changed[:, 2], logits[:, 2])
    for position in range(3):
        other = model((source.index_fill(1, torch.tensor([position]), 1), target))
        assert not any(torch.allclose(other[:, step], logits[:, step]) for step in range(4))


def test_the_decoder_starts_from_the_encoder_s_last_states() -> None:
    model = Translator(5, 6, hidden=8)
    torch.nn.init.zeros_(model.mix.weight[:, 8:])  # attention aside
    source, target = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    _, states = model.encoder(model.source_embedding(source).unbind(1))
    outputs, _ = model.decoder(model.target_embedding(target).unbind(1), states)
    expected = [model.output(torch.tanh(model.mix(torch.cat([step, 0 * step], 1)))) for step in outputs]
    torch.testing.assert_close(model((source, target)), torch.stack(expected, dim=1))
