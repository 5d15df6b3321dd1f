"""Fit tables and lines to a terminal, to a log, and to the `str` of an object."""

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

NO_BREAK = "\N{NO-BREAK SPACE}"
LOG_WIDTH = 160  # columns without a terminal, so that tables in logs are complete
ROOM = 24  # an explanation with fewer columns next to its name is placed below it
COLUMNS = re.compile(r"(?P<name>\s*\S.*?\s{2,})(?P<text>\S.*)")
UNIT = re.compile(r"(?<=\d) (?=(?:%|[mnµ]?s|min|h|d|[KMGT]i?B|samples/s)(?!\w))")
COMMENT = re.compile(r"(?P<name>[^#]*)(?P<text># .*)")
HEAD_WIDTH = 8  # width of the header of a numeric column; longer ones wrap


def terminal_table(
    title: str, *columns: str, texts: Collection[int] = (0,), rows: Iterable[Sequence["str | Text"]] = ()
) -> "Table":
    """Make a table for a terminal: columns in `texts` wrap where they are too wide, numeric columns never do."""
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


def fit(table: "Table", width: int) -> None:
    """Wrap the cells, which are strings, so that a table fits: the widest first, and none below its longest word."""
    texts = [[UNIT.sub(NO_BREAK, str(text)) for text in (column.header, *column.cells)] for column in table.columns]
    widths = [max(len(line) for text in column for line in text.split("\n")) for column in texts]
    least = [
        whole if column.no_wrap else max(map(len, re.split("[ \n]+", " ".join(own))))
        for column, own, whole in zip(table.columns, texts, widths, strict=True)
    ]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        number = max(range(len(widths)), key=lambda number: (widths[number] > least[number], widths[number]))
        if widths[number] == least[number]:
            return
        widths[number] -= 1
    for column, (_, *cells), own in zip(table.columns, texts, widths, strict=True):
        column.width = own
        if not column.no_wrap:
            folded = (
                "\n".join(textwrap.fill(line, own, break_on_hyphens=False) for line in text.split("\n"))
                for text in cells
            )
            column._cells[:] = [text.replace(NO_BREAK, " ") for text in folded]


def terminal() -> "Console":
    """Return the console for tables: long lines wrap on a terminal, but not in a log."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)  # names may contain brackets
    return console if console.is_terminal else Console(highlight=False, markup=False, soft_wrap=True, width=LOG_WIDTH)


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines; on a terminal, long lines wrap between words."""
    file = file or sys.stdout
    width = shutil.get_terminal_size().columns if file is not None and file.isatty() else sys.maxsize
    print("\n".join(part for line in text.split("\n") for part in wrapped(line, width)), file=file, flush=True)


def wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    line = UNIT.sub(NO_BREAK, line)
    whole = re.sub(r"(?<=\S) (?=\S)", NO_BREAK, line) if "  " in line.strip() else line
    parts = _wrap(whole, width, "", "    ")
    if max(map(len, parts), default=0) > width:
        parts = _wrap(line, width, "", "    ")
    return [part.replace(NO_BREAK, " ") for part in parts]


def fitted_by_rank(parts: Sequence[tuple[int, str]], width: int) -> str:
    """Join parts with spaces; if too wide, with fewer spaces or without the parts of highest rank."""
    left = list(parts)
    while len(line := "  ".join(text for _, text in left)) > width:
        if len(line := " ".join(text for _, text in left)) <= width:
            break
        rank = max(rank for rank, _ in left)
        if rank == 0:
            break
        left.remove(next(part for part in reversed(left) if part[0] == rank))
    return line


def aligned(rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> list[str]:
    r"""Align the columns of rows of plain text; those in `numbers` to the right.

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


def folded(text: str, width: int | None = None) -> str:
    """Wrap help text; continuation lines are indented to the start of the explanation.

    Example:
        >>> print(folded("name    what it is and what it does", width=24))
        name    what it is and
                what it does
    """
    width = width or shutil.get_terminal_size().columns
    return "".join(f"{part}\n" for line in text.splitlines() for part in _folded(line, width))


def _folded(line: str, width: int) -> list[str]:
    found = COMMENT.fullmatch(line) or COLUMNS.fullmatch(line)
    if len(line) <= width:
        return [line]
    if found is None:
        indent = " " * (len(line) - len(line.lstrip()))
        return _wrap(line.lstrip(), width, indent, indent)
    name, text = found["name"], found["text"]
    mark = "# " if text.startswith("# ") else ""
    if width - len(name) < min(ROOM, len(text)):
        indent = " " * (len(name) - len(name.lstrip()) + 6) + mark
        return [name.rstrip(), *_wrap(text.removeprefix(mark), width, indent, indent)]
    return _wrap(text.removeprefix(mark), width, name + mark, " " * len(name) + mark)


def _wrap(text: str, width: int, first: str, then: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )
