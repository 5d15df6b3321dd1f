"""Tables and lines: for a terminal by rich, and as plain text for `str` of an object."""

import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

LOG_WIDTH = 160
"""Columns where there is no terminal, so that a table in a log is whole."""

HEAD_WIDTH = 8
"""Columns that the name of a column of numbers has; a longer one goes on below."""

NO_BREAK = "\N{NO-BREAK SPACE}"


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


def wrapped(line: str, width: int) -> list[str]:
    """A line as several that fit: what has two spaces around it stays together where that is short enough.

    Example:
        >>> wrapped("epoch 1  train loss 0.5  accuracy 87.50 %", width=30)
        ['epoch 1  train loss 0.5', '    accuracy 87.50 %']
    """
    if len(line) <= width:
        return [line]
    line = line.replace(" %", f"{NO_BREAK}%")
    whole = re.sub(r"(?<=\S) (?=\S)", NO_BREAK, line) if "  " in line.strip() else line
    parts = textwrap.wrap(whole, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    if max(map(len, parts), default=0) > width:
        parts = textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return [part.replace(NO_BREAK, " ") for part in parts]


def fitted_by_rank(parts: Sequence[tuple[int, str]], width: int) -> str:
    """Parts with space between them, without the least important ones where the line would be too wide."""
    left = list(parts)
    while len(line := "  ".join(text for _, text in left)) > width:
        rank = max(rank for rank, _ in left)
        if rank == 0:
            break
        left.remove(next(part for part in reversed(left) if part[0] == rank))
    return line


def aligned(rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> list[str]:
    r"""Rows of plain text with columns side by side, those in `numbers` to the right.

    Example:
        >>> print(*aligned([("place", "spans"), ("executor 0", "1")], numbers=[1]), sep="\n")
        place       spans
        executor 0      1
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
