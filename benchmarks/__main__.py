"""`python -m benchmarks NAME [KEY=VALUE ...]`: run an experiment; without a name, list them."""

import os
import sys

from benchmarks import HELP, main, usage
from benchmarks.harness.bare import prepare
from bow.errors import BowError


def run(words: list[str]) -> int:
    """Return the exit status; 2 for a usage error."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads do not spin, as with the bow command
    if not words or words[0] in HELP:
        print(usage())
        return 0
    try:
        if words[0] == "gpu" and (missing := prepare()):  # GPU machines often lack packages
            print(f"bow: not installed, and not needed here: {', '.join(missing)}", file=sys.stderr)
        return main(words[0], words[1:])
    except ModuleNotFoundError as error:
        print(f"bow: {error.name} is not installed, and nothing runs without it", file=sys.stderr)
    except BowError as error:
        print(f"bow: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
