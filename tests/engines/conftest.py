"""What the tests of engines share."""

import contextlib
from collections.abc import Iterator

import jaxtyping
import pytest

from tests.engines.pairs import OPEN


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    with contextlib.ExitStack() as closing:  # one that raises does not keep the others open
        while OPEN:
            closing.callback(OPEN.pop().close)


@pytest.fixture
def _captured_anew(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No training finds the steps of another one's: for what a graph cannot know of its step."""
    monkeypatch.setattr("bow.engines.captured.cache_folder", lambda: tmp_path_factory.mktemp("steps"))


@pytest.fixture
def _unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape checks that wrap bow in tests are nothing that a compiler can see through."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
