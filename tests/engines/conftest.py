"""What the tests of engines share."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch


@pytest.fixture
def _uncompiled() -> Iterator[None]:
    """Everything as in the compiled engine but the compilation, which takes most of a minute."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def _unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape checks that wrap bow in tests are nothing that a compiler can see through."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
