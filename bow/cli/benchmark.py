"""`bow bench`: a benchmark by its name."""

import importlib
from collections.abc import Sequence

from bow.errors import SettingError

USAGE = """\
usage: bow bench NAME [NAME=VALUE ...]

Benchmarks: {names}

bow bench NAME --help lists the settings of a benchmark.
"""


def run(words: Sequence[str]) -> int:
    """Carry out `bow bench`; `words` are what stands behind it."""
    if words and words[0] in ("-h", "--help"):
        names = importlib.import_module("bow.bench").NAMES
        print(USAGE.format(names=", ".join(names)), end="")
        return 0
    if not words:
        raise SettingError("bow bench needs the name of a benchmark; write bow bench NAME, such as bow bench engines")
    status: int = importlib.import_module("bow.bench").main(words[0], list(words[1:]))
    return status
