"""The tensors of a batch by their place in it."""

from typing import Any

from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from bow.errors import DataError


def batch_tensors(batch: Any) -> dict[str, Tensor]:
    """The leaves of a batch by path, such as `[0]` for the inputs of a pair.

    Example:
        >>> import torch
        >>> list(batch_tensors({"pixels": torch.zeros(2), "more": [torch.ones(1)]}))
        ["['pixels']", "['more'][0]"]
    """
    leaves, _ = tree_flatten_with_path(batch)
    named = {keystr(path): leaf for path, leaf in leaves}
    for name, leaf in named.items():
        if not isinstance(leaf, Tensor):
            raise DataError(
                f"batch{name} is a {type(leaf).__name__}; a step graph takes tensors only: make it a tensor, "
                "or keep it in the step"
            )
    return named
