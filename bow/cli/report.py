"""`bow report`: write the report of a run or sweep that is finished, interrupted or in progress."""

from collections.abc import Sequence

from bow.errors import RunDirectoryError, SettingError
from bow.files import DAMAGE
from bow.members.report import is_sweep, write_sweep_report
from bow.observe import RunDirectory
from bow.observe.report import write_report
from bow.observe.run_directory import readable
from bow.values import given_path

USAGE = """\
usage: bow report RUN_DIR

Writes RUN_DIR/report.html from config.yaml and metrics.jsonl, and prints its
path.
In the directory of a sweep, the report is of all its members.
"""


def run(words: Sequence[str]) -> int:
    if len(words) != 1:
        raise SettingError(f"bow report takes one run directory, got {len(words)}; write bow report RUN_DIR")
    directory = RunDirectory(given_path("the run directory", words[0], RunDirectoryError))
    with readable(directory.path, damage=DAMAGE):
        path = write_sweep_report(directory) if is_sweep(directory) else write_report(words[0])
    print(path)
    return 0
