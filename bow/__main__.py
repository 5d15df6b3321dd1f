"""`python -m bow` is the command `bow`."""

import sys

from bow.cli import main

if __name__ == "__main__":
    sys.exit(main())
