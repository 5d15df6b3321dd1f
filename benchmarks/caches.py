"""Caches of compiled code that are a benchmark's own: empty when it begins."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bow.compiling import CACHE, cache_folder
from bow.runtime.loading import is_available


@contextlib.contextmanager
def empty_caches() -> Iterator[dict[str, str]]:
    """A folder for what torch, Triton and bow compile, which is deleted in the end.

    bow's native runtime is in it from the beginning: it is built once on a machine, which is part of installing bow.
    """
    is_available()  # builds the runtime if need be
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
