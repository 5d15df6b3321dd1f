"""A text as sequences of characters."""

import torch
from torch import Tensor

from bow.data.splits import DataSplits
from bow.errors import DataError, SettingError

_VALIDATION_SHARE = 0.1


def text(sequence_length: int = 32, limit: int | None = None) -> DataSplits:
    """The Python language's help texts, almost half a million characters that ship with it.

    Tokens are characters; the text is cut into sequences that do not overlap, and the target of each
    character is the one that follows it. The last tenth of the text is held out. The text changes a little
    from one version of Python to the next.

    Args:
        sequence_length: characters in a sequence.
        limit: use the first so many training sequences only.

    Returns:
        Tokens `[sequences, sequence_length]` and targets of the same shape, int64.

    Raises:
        SettingError: the sequences are shorter than 1 character or longer than the held-out text, or the
            limit is below 1.
        DataError: this Python comes without the text.
    """
    characters = _read_text()
    vocabulary = sorted(set(characters))
    token_of = {character: token for token, character in enumerate(vocabulary)}
    tokens = torch.tensor([token_of[character] for character in characters])
    num_validation = int(len(tokens) * _VALIDATION_SHARE)
    if not 1 <= sequence_length < num_validation:
        raise SettingError(f"sequence_length must be from 1 to {num_validation - 1} characters, got {sequence_length}")
    train = _sequences(tokens[:-num_validation], sequence_length)
    validation = _sequences(tokens[-num_validation:], sequence_length)
    return DataSplits(train, validation, len(vocabulary), "text").limited(limit)


def _read_text() -> str:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataError(
            "this Python comes without its help texts (pydoc_data); install the complete standard library"
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


def _sequences(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    count = (len(tokens) - 1) // length
    return tokens[: count * length].view(count, length), tokens[1 : count * length + 1].view(count, length)
