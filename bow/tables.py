"""Tables as plain text, for `str` of an object, and lines that fit a width."""

import re
import textwrap
from collections.abc import Sequence

NO_BREAK = "\N{NO-BREAK SPACE}"


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
