"""`python -m bow.runtime`: build the native runtime now, so that trainings find it."""

import sys

from bow.runtime.loading import build

if __name__ == "__main__":
    sys.exit(build())
