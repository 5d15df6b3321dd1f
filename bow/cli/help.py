"""Help that fits the terminal."""

import re
import shutil
import textwrap

ROOM = 24  # an explanation that has fewer columns beside its name goes below it
COLUMNS = re.compile(r"(?P<name>\s*\S.*?\s{2,})(?P<text>\S.*)")
COMMENT = re.compile(r"(?P<name>[^#]*)(?P<text># .*)")


def folded(text: str, width: int | None = None) -> str:
    """Help whose long lines go on below the place where their explanation begins.

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
        return _wrapped(line.lstrip(), width, indent, indent)
    name, text = found["name"], found["text"]
    mark = "# " if text.startswith("# ") else ""
    if width - len(name) < min(ROOM, len(text)):
        indent = " " * (len(name) - len(name.lstrip()) + 6) + mark
        return [name.rstrip(), *_wrapped(text.removeprefix(mark), width, indent, indent)]
    return _wrapped(text.removeprefix(mark), width, name + mark, " " * len(name) + mark)


def _wrapped(text: str, width: int, first: str, then: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )
