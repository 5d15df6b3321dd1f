"""Writing text files."""

import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it appears whole or not at all, whoever else writes it at the same time.

    Args:
        path: of the file; folders that are missing are made.
        text: what it shall hold.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:  # no other writer has the same
        part = Path(scratch) / path.name
        part.write_text(text, encoding="utf-8")
        part.replace(path)
