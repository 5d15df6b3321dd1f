"""`python -m bow.bench.gpu [KEY=VALUE ...]`: the benchmark without an installation."""

import sys

from bow.bench.gpu.bare import prepare


def main() -> int:
    """Run it as `bow bench gpu` does."""
    try:
        missing = prepare()
    except ModuleNotFoundError as error:
        print(f"bow: {error.name} is not installed, and nothing runs without it", file=sys.stderr)
        return 2
    from bow.bench import main as bench
    from bow.errors import BowError

    if missing:
        print(f"bow: not installed, and not needed here: {', '.join(missing)}", file=sys.stderr)
    try:
        return bench("gpu", sys.argv[1:])
    except BowError as error:
        print(f"bow: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
