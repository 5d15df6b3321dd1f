"""Tables: for a terminal by rich, and as plain text for `str` of an object."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LOG_WIDTH = 140
"""Columns where there is no terminal, so that a table in a log is whole."""


def terminal_table(title: str, *columns: str) -> "Table":
    """An empty table for a terminal: the first column is text, the others are numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, header_style="dim", overflow="fold", justify="left" if position == 0 else "right")
    return table


def terminal() -> "Console":
    """Where tables are printed."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=LOG_WIDTH)


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
