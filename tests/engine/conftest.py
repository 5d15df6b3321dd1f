"""What the tests of engines share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def _uncompiled() -> Iterator[None]:
    """Everything as in the compiled engine but the compilation, which takes most of a minute."""
    with torch.compiler.set_stance("force_eager"):
        yield
