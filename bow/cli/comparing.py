"""`bow compare`: runs side by side."""

from collections.abc import Sequence

from bow.errors import RunDirectoryError, SettingError
from bow.files import DAMAGE
from bow.members.report import is_sweep
from bow.observe import RunDirectory
from bow.observe.report import Report, RunComparison, write_page
from bow.observe.run_directory import readable
from bow.terminal import fit, say, terminal, terminal_table
from bow.values import given_path

USAGE = """\
usage: bow compare RUN RUN ... [out=FILE]

Shows the results of runs side by side, and the settings, versions and machines
in which they differ. Writes their curves to one page (compare.html).
"""


def run(words: Sequence[str]) -> int:
    out = given_path("out", [*(word[4:] for word in words if word.startswith("out=")), "compare.html"][0])
    paths = [given_path("the run directory", word, RunDirectoryError) for word in words if not word.startswith("out=")]
    if len(paths) < 2:
        raise SettingError(f"bow compare takes two run directories or more, got {len(paths)}; write bow compare A B")
    reports = []
    for path in paths:
        with readable(path, damage=DAMAGE):
            if is_sweep(RunDirectory(path)):
                raise SettingError(f"{path} is a sweep, whose report compares its members; name two of {path}/members")
            reports.append(Report.read(RunDirectory(path)))
    within_one = len({path.parent for path in paths}) == 1
    names = [path.name if within_one and path.name else str(path) for path in paths]
    comparison = RunComparison(names, reports)
    texts = range(len(paths) + 1)
    for title, rows in (("Results", comparison.results), ("Differences", comparison.differences)):
        table, console = terminal_table(title, "", *comparison.names, texts=texts, rows=rows), terminal()
        fit(table, console.width)
        console.print(table, "")
    say(f"curves: {write_page(out, 'compare.html', run=comparison)}")
    return 0
