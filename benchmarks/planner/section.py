"""A table of the report, and what to call it."""

from dataclasses import dataclass

from benchmarks.results import Table


@dataclass(frozen=True)
class Section:
    """A table of the page."""

    key: str  # by which `docs/planning.md` asks for it
    title: str  # above it
    table: Table  # the numbers
    remark: str  # what they are
