import math

import pytest
import torch

from bow.models import sequence_cross_entropy


def test_loss_is_the_mean_over_all_positions() -> None:
    logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    terms = [-logits[b, t].log_softmax(0)[targets[b, t]].item() for b in range(2) for t in range(3)]
    assert sequence_cross_entropy(logits, targets).item() == pytest.approx(sum(terms) / 6, rel=1e-5)


def test_knowing_nothing_costs_the_logarithm_of_the_vocabulary() -> None:
    loss = sequence_cross_entropy(torch.zeros(2, 3, 7), torch.zeros(2, 3, dtype=torch.int64))
    assert loss.item() == pytest.approx(math.log(7))
