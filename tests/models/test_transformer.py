import pytest
import torch
import torch.nn.functional as F

from bow.errors import DataError, SettingError
from bow.models import Transformer
from bow.models.transformer import TransformerBlock


def test_attention_equals_torch_s() -> None:
    block = TransformerBlock(12, heads=3, dropout=0.0).double()
    features = torch.randn(2, 5, 12, dtype=torch.float64)
    query, key, value = (part.view(2, 5, 3, 4).transpose(1, 2) for part in block.qkv(features).chunk(3, dim=-1))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = attended.transpose(1, 2).reshape(2, 5, 12)
    torch.testing.assert_close(block._attend(features), expected, rtol=0, atol=1e-12)


def test_positions_matter() -> None:
    logits = Transformer(5, width=16)(torch.tensor([[1, 1]]))
    assert not torch.allclose(logits[:, 0], logits[:, 1])


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(SettingError, match="heads must divide width=64, got 5"):
        Transformer(5, heads=5)


def test_sequences_beyond_the_context_are_refused() -> None:
    with pytest.raises(DataError, match="9 tokens exceeds context=8"):
        Transformer(5, context=8)(torch.zeros(1, 9, dtype=torch.int64))
