"""Text classification with unrolled LSTM layers."""

from torch import Tensor, nn

from bow.models.rnn_language_model import steps_of
from bow.models.unrolled_lstm import UnrolledLSTM


class RNNTextClassifier(nn.Module):
    """RNNTC: embedding, LSTM layers written out in time, and a softmax layer behind the last step.

    Args:
        vocabulary: number of different tokens.
        classes: number of classes.
        hidden: units of each layer, and size of a token's embedding.
        layers: number of LSTM layers.

    Raises:
        SettingError: there are no layers.

    References:
        Kim: Convolutional neural networks for sentence classification, 2014 (the task).
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, table 3, section 8.1.
    """

    def __init__(self, vocabulary: int, classes: int = 2, hidden: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = UnrolledLSTM(hidden, hidden, layers)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[batch, classes]` of texts, `[batch, length]`."""
        outputs, _ = self.lstm(steps_of(self.embedding, tokens))
        logits: Tensor = self.output(outputs[-1])
        return logits
