"""Where measurements are kept on disk: by what they depend on, PyTorch and bow."""

import hashlib
import sys
from pathlib import Path

import torch

from bow.compiling import cache_folder


def cache_file(folder: str, *described: object) -> Path:
    """The file of what was measured on what is described."""
    bow_version = sys.modules["bow"].__version__  # importing bow here would turn the layers round
    text = repr([*described, torch.__version__, bow_version])
    return cache_folder() / folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
