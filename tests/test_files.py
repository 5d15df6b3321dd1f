from __future__ import annotations

import os
from pathlib import Path

import pytest

from bow.files import Expendable, write_whole


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


def test_a_stream_that_cannot_be_written_drops_what_it_is_given(tmp_path: Path) -> None:
    closed = (tmp_path / "closed").open("w")
    closed.close()
    with Path("/dev/full").open("w", buffering=1) as full:
        for stream in (full, closed, None):
            lossy = Expendable(stream)
            for _ in range(2):
                print("a line", file=lossy, flush=True)
            assert lossy.error is not None
            assert stream is not None or not lossy.isatty()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_what_an_encoding_lacks_is_replaced(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="ascii") as file:
        print("1 é 2", file=Expendable(file))
    assert (tmp_path / "log").read_text() == "1 ? 2\n"
