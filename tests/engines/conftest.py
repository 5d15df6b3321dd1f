"""What the tests of engines share."""

import warnings
from collections.abc import Iterator

import jaxtyping
import pytest
import torch


@pytest.fixture
def _uncompiled() -> Iterator[None]:
    """Everything as in the compiled engine but the compilation, which takes most of a minute."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "torch.compile with fullgraph=True found no compiled frames")  # torch 2.12
        yield


@pytest.fixture
def _unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape checks that wrap bow in tests are nothing that a compiler can see through."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
