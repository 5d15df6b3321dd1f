"""Writing text files."""

import tempfile
from pathlib import Path

from bow.errors import BowError, SettingError
from bow.values import given_path


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


def save_text(what: str, path: str | Path, text: str, refusal: type[BowError] = SettingError) -> None:
    """Write a file that a user has named.

    Args:
        what: is written, such as `the strategy`; a refusal begins with it.
        path: of the file; folders that are missing are made.
        text: what it shall hold.
        refusal: what is raised where it cannot be written.

    Raises:
        BowError: it cannot be written.
    """
    file = given_path(f"the file for {what}", path, refusal)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise refusal(
            f"{what} cannot be written to {str(path)!r} ({error.strerror or error}); give another file"
        ) from error


def read_text(what: str, path: str | Path, refusal: type[BowError] = SettingError) -> str:
    """Read a file that a user has named; arguments as for `save_text`.

    Raises:
        BowError: it cannot be read, or holds no text.
    """
    file = given_path(f"the file of {what}", path, refusal)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise refusal(f"{what} cannot be read from {str(path)!r} ({why}); give another file") from error
