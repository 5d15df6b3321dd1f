"""`bow report`: the report of a run that is finished, interrupted or still going."""

from collections.abc import Sequence

from bow.cli.help import folded
from bow.errors import SettingError
from bow.observe.report import write_report

USAGE = """\
usage: bow report RUN_DIR

Writes RUN_DIR/report.html from config.yaml and metrics.jsonl, and prints its
path.
"""


def run(words: Sequence[str]) -> int:
    """Carry out `bow report`; `words` are what stands behind it."""
    if "-h" in words or "--help" in words:
        print(folded(USAGE), end="")
        return 0
    if len(words) != 1:
        raise SettingError(f"bow report takes one run directory, got {len(words)}; write bow report RUN_DIR")
    print(write_report(words[0]))
    return 0
