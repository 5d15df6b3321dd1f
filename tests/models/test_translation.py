import numpy as np
import torch

from bow.models import Translator
from bow.models.translation import AdditiveAttention


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
