"""Neural machine translation with attention."""

import torch
from torch import Tensor, nn

from bow.models.rnn_language_model import steps_of
from bow.models.unrolled_lstm import UnrolledLSTM


class Translator(nn.Module):
    """NMT: an encoder and a decoder of LSTM layers, attention on top of the decoder, and a softmax layer.

    The decoder starts from the encoder's last states, layer by layer, and is given the true sentence (teacher forcing).
    Attention sits on top of the last decoder layer and is not fed back, so that no step's attention or softmax waits
    for another step's.

    Args:
        source_vocabulary: number of different tokens to translate from.
        target_vocabulary: number of different tokens to translate to.
        hidden: units of each layer, and size of a token's embedding.
        layers: number of LSTM layers of the encoder, and of the decoder.

    Raises:
        SettingError: there are no layers.

    References:
        Bahdanau, Cho, Bengio: Neural machine translation by jointly learning to align and translate, 2014.
        Wu et al.: Google's neural machine translation system, 2016.
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 8.1, figure 14.
    """

    def __init__(self, source_vocabulary: int, target_vocabulary: int, hidden: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(source_vocabulary, hidden)
        self.target_embedding = nn.Embedding(target_vocabulary, hidden)
        self.encoder = UnrolledLSTM(hidden, hidden, layers)
        self.decoder = UnrolledLSTM(hidden, hidden, layers)
        self.attention = AdditiveAttention(hidden)
        self.mix = nn.Linear(2 * hidden, hidden)
        self.output = nn.Linear(hidden, target_vocabulary)

    def forward(self, sentences: tuple[Tensor, Tensor]) -> Tensor:
        """Logits `[batch, length, target_vocabulary]` of the token after each of the target's.

        Args:
            sentences: source `[batch, source length]`, and target `[batch, length]` with its first token, the mark of
                its beginning, and without its last.
        """
        source, target = sentences
        encoded, states = self.encoder(steps_of(self.source_embedding, source))
        decoded, _ = self.decoder(steps_of(self.target_embedding, target), states)
        values = torch.stack(encoded, dim=1)
        keys = self.attention.key(values)
        return torch.stack([self._predict(step, keys, values) for step in decoded], dim=1)

    def _predict(self, decoded: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        context = self.attention(decoded, keys, values)
        logits: Tensor = self.output(torch.tanh(self.mix(torch.cat([decoded, context], dim=1))))
        return logits


class AdditiveAttention(nn.Module):
    r"""A mean of values, weighted by how well their keys fit a query.

    `a = softmax_s(v^T \tanh(W q + k_s))`, `context = \sum_s a_s value_s`, with keys `k_s = U value_s + b` that are
    made once for all queries.

    Args:
        hidden: size of queries, keys and values.

    References:
        Bahdanau, Cho, Bengio: Neural machine translation by jointly learning to align and translate, 2014,
        appendix A.1.2.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden)
        self.energy = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The context `[batch, hidden]` of a query `[batch, hidden]`; keys and values are `[batch, length, hidden]`."""
        energies = self.energy(torch.tanh(keys + self.query(query).unsqueeze(1)))
        context: Tensor = (energies.softmax(dim=1) * values).sum(dim=1)
        return context
