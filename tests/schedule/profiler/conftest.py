"""Times that tests measure are kept for that test only."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr("bow.schedule.profiler.measuring.cache_folder", lambda: folder)
    return folder
