"""Loss of language models."""

import torch.nn.functional as F
from torch import Tensor


def sequence_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all positions of all sequences, in nats per token.

    Args:
        logits: `[batch, length, vocabulary]`, unnormalised log-probabilities of the next token.
        targets: `[batch, length]`, int64, the tokens that came next.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
