"""LSTM language model."""

from torch import Tensor, nn


class LSTMLanguageModel(nn.Module):
    """Embedding, stacked LSTM layers, and a linear layer that predicts the next token at every position.

    Every sequence starts from a state of zeros.

    Args:
        vocabulary: number of different tokens.
        embedding: size of a token's embedding.
        hidden: units of each layer.
        layers: number of LSTM layers.
        dropout: probability with which an activation between layers is dropped.

    References:
        Zaremba, Sutskever, Vinyals: Recurrent neural network regularization, 2014.
    """

    def __init__(
        self, vocabulary: int, embedding: int = 64, hidden: int = 128, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        # One module a layer: what nn.LSTM drops between its own layers is drawn by a library on GPUs, and not repeated.
        sizes = [embedding] + [hidden] * (layers - 1)
        self.lstms = nn.ModuleList(nn.LSTM(size, hidden, batch_first=True) for size in sizes)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[batch, length, vocabulary]` of the token after each of `tokens`, `[batch, length]`."""
        states = self.embedding(tokens)
        for lstm in self.lstms:
            states, _ = lstm(self.dropout(states))
        logits: Tensor = self.output(self.dropout(states))
        return logits
