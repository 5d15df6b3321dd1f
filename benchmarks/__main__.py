"""`python -m benchmarks NAME [KEY=VALUE ...]`: run a benchmark."""

import os
import sys

from benchmarks import HELP, NAMES, main
from benchmarks.gpu.bare import prepare
from bow.errors import BowError, SettingError

USAGE = f"""\
usage: python -m benchmarks NAME [KEY=VALUE ...]

Benchmarks: {", ".join(NAMES)}

python -m benchmarks NAME --help lists the settings of a benchmark.
"""


def run(words: list[str]) -> int:
    """The exit status; 2 for a user's mistake."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command bow does, and for its reason
    if words and words[0] in HELP:
        print(USAGE, end="")
        return 0
    try:
        if not words:
            raise SettingError(f"give the name of a benchmark: {', '.join(NAMES)}")
        if words[0] == "gpu" and (missing := prepare()):  # machines with a GPU are often lent bare
            print(f"bow: not installed, and not needed here: {', '.join(missing)}", file=sys.stderr)
        return main(words[0], words[1:])
    except ModuleNotFoundError as error:
        print(f"bow: {error.name} is not installed, and nothing runs without it", file=sys.stderr)
    except BowError as error:
        print(f"bow: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
