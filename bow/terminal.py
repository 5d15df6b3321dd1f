"""Tables and lines on a terminal, and in a log."""

import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from bow.tables import wrapped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

LOG_WIDTH = 160
"""Columns where there is no terminal, so that a table in a log is whole."""

HEAD_WIDTH = 8
"""Columns that the name of a column of numbers has; a longer one goes on below."""


def terminal_table(
    title: str, *columns: str, texts: Collection[int] = (0,), rows: Iterable[Sequence["str | Text"]] = ()
) -> "Table":
    """A table for a terminal: columns in `texts` go on below where they are too wide, those of numbers never do."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, column in enumerate(columns):
        if position in texts:
            table.add_column(column, header_style="dim", overflow="fold")
        else:
            head = textwrap.fill(column, HEAD_WIDTH, break_long_words=False)
            table.add_column(head, header_style="dim", no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def terminal() -> "Console":
    """Where tables are printed: lines that are longer than a terminal go on below, those in a log do not."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=LOG_WIDTH)


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines; on a terminal, one that is too long goes on below, and no word is cut."""
    file = file or sys.stdout
    width = shutil.get_terminal_size().columns if file.isatty() else sys.maxsize
    print("\n".join(part for line in text.split("\n") for part in wrapped(line, width)), file=file, flush=True)
