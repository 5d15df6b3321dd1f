import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from bow.cli import main


@pytest.fixture(autouse=True)
def _in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """hydra reads all files of the configuration for every command line, with PyYAML's parser in Python."""
    monkeypatch.setattr(yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command with a user's mistake, which gets status 2 and one sentence with all of these parts."""

    def run(words: Sequence[str], *parts: str) -> str:
        capsys.readouterr()
        assert main(words) == 2
        told = capsys.readouterr().err
        assert told.startswith("bow: ")
        assert told.count("\n") == 1
        assert not [part for part in parts if part not in told], told
        return told

    return run


LINUX_CAPABILITY_VERSION_3 = 0x20080522
ANY_FILE = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which permissions mean nothing to root


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder, and a process to which permissions mean something though it may be root's."""
    folder = Path(tempfile.mkdtemp())
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    sets, fewer = ((ctypes.c_uint32 * 6)() for _ in range(2))  # effective, permitted and inheritable, twice
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    fewer[:] = [sets[0] & ~ANY_FILE, *sets[1:]]
    assert libc.capset(header, fewer) == 0
    try:
        yield folder
    finally:
        libc.capset(header, sets)
        for path, *_ in os.walk(folder):
            Path(path).chmod(0o700)
        shutil.rmtree(folder)
