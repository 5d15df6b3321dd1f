"""A table of the report, and what to call it."""

from dataclasses import dataclass

from benchmarks.results import Table


@dataclass(frozen=True)
class Section:
    """A table of the page.

    Attributes:
        key: by which `docs/planning.md` asks for it.
        title: above it.
        table: the numbers.
        remark: what they are.
    """

    key: str
    title: str
    table: Table
    remark: str
