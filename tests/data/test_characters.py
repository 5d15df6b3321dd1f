import sys

import pytest
import torch

from bow.data import text
from bow.errors import DataError, SettingError


def test_targets_are_the_characters_that_follow() -> None:
    splits = text(sequence_length=32)
    for tokens, targets in (splits.train, splits.validation):
        assert tokens.dtype == targets.dtype == torch.int64
        assert tokens.shape == targets.shape == (len(tokens), 32)
        assert torch.equal(tokens.flatten()[1:], targets.flatten()[:-1])


def test_tokens_cover_the_vocabulary() -> None:
    splits = text()
    everything = torch.cat([tensor.flatten() for tensor in (*splits.train, *splits.validation)])
    assert everything.unique().tolist() == list(range(splits.classes))


def test_text_is_the_same_for_every_length() -> None:
    short, long = text(sequence_length=8).train[0], text(sequence_length=64).train[0]
    assert torch.equal(short.flatten()[: 64 * 100], long.flatten()[: 64 * 100])


def test_limit_is_passed_on() -> None:
    assert len(text(limit=5).train[0]) == 5


@pytest.mark.parametrize("length", [0, 10_000_000])
def test_impossible_lengths_are_refused(length: int) -> None:
    with pytest.raises(SettingError, match=f"sequence_length must be from 1 to .* got {length}"):
        text(sequence_length=length)


def test_python_without_help_texts_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="comes without its help texts"):
        text()
