"""Caches of a benchmark's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.caches import empty_caches
from bow.compiling import CACHE


def test_caches_are_empty_but_for_the_runtime_and_gone_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.caches.is_available", lambda: True)
    monkeypatch.setenv(CACHE, str(tmp_path))
    for name in ("runtime-1", "region-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "runtime-1" / "module.so").write_text("code")
    with empty_caches() as environment:
        assert sorted(environment) == ["BOW_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"]
        folders = [Path(environment[name]) for name in sorted(environment)]
        assert [[each.name for each in folder.iterdir()] for folder in folders] == [["runtime-1"], [], []]
        assert (folders[0] / "runtime-1" / "module.so").read_text() == "code"
    assert not any(folder.exists() for folder in folders)
    assert (tmp_path / "runtime-1" / "module.so").exists()
