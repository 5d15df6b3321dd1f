from __future__ import annotations

from pathlib import Path

import pytest

from bow.files import write_whole


def test_two_who_write_a_file_at_the_same_time_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, replace = tmp_path / "folder" / "file.json", Path.replace

    def overtaken(part: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_whole(file, "another's")
        assert file.read_text() == "another's"
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", overtaken)
    write_whole(file, "mine")
    assert file.read_text() == "mine"
    assert [path.name for path in file.parent.iterdir()] == ["file.json"]


def test_what_cannot_be_written_whole_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file.json"
    write_whole(file, "old")

    def full(part: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]
