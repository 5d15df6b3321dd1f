"""Language model of unrolled LSTM layers."""

import torch
from torch import Tensor, nn

from bow.models.unrolled_lstm import UnrolledLSTM


class RNNLanguageModel(nn.Module):
    """Embedding, LSTM layers written out in time, and a softmax layer at every step.

    What `LSTMLanguageModel` computes, as the graph that planners and schedulers are evaluated on: it is RNNLM, and the
    LSTM of Graphi. Every sequence starts from a state of zeros.

    Args:
        vocabulary: number of different tokens.
        hidden: units of each layer, and size of a token's embedding.
        layers: number of LSTM layers.

    Raises:
        SettingError: there are no layers.

    References:
        Zaremba, Sutskever, Vinyals: Recurrent neural network regularization, 2014.
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, table 1a.
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, table 3.
    """

    def __init__(self, vocabulary: int, hidden: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = UnrolledLSTM(hidden, hidden, layers)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[batch, length, vocabulary]` of the token after each of `tokens`, `[batch, length]`."""
        outputs, _ = self.lstm(steps_of(self.embedding, tokens))
        return torch.stack([self.output(output) for output in outputs], dim=1)


def steps_of(embedding: nn.Embedding, tokens: Tensor) -> tuple[Tensor, ...]:
    """Embeddings by step, each `[batch, features]` and contiguous, of tokens `[batch, length]`."""
    steps: tuple[Tensor, ...] = embedding(tokens.t()).unbind(0)
    return steps
