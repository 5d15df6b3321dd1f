"""Temporary, initially empty caches of compiled code for a benchmark."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bow.compiling import CACHE, cache_folder
from bow.runtime.loading import is_available


@contextlib.contextmanager
def empty_caches() -> Iterator[dict[str, str]]:
    """Redirect the caches of torch, Triton and bow to a temporary folder.

    It already includes bow's native runtime, which is built once per machine, as a part of installing bow.
    """
    is_available()  # builds the runtime if necessary
    with tempfile.TemporaryDirectory(prefix="bow-caches-") as name:
        folders = {key: Path(name) / key for key in ("inductor", "triton", "bow")}
        for folder in folders.values():
            folder.mkdir()
        for built in cache_folder().glob("runtime-*"):
            (folders["bow"] / built.name).symlink_to(built.resolve(), target_is_directory=True)
        yield {
            "TORCHINDUCTOR_CACHE_DIR": str(folders["inductor"]),
            "TRITON_CACHE_DIR": str(folders["triton"]),
            CACHE: str(folders["bow"]),
        }
