"""Documents whose tables are written by a benchmark, each between two marks."""

import re
from collections.abc import Collection, Iterator, Mapping

from bow.errors import SettingError


def keys_in(text: str, benchmark: str) -> Iterator[str]:
    """The keys of a benchmark's tables in a document, in order."""
    yield from (match["key"] for match in _marks(benchmark).finditer(text))


def with_tables(text: str, benchmark: str, tables: Mapping[str, str], keys: Collection[str]) -> str:
    r"""A document with the tables that were made; the others stay as they are.

    Example:
        >>> text = "<!-- peers: times -->\n<!-- end -->"
        >>> print(with_tables(text, "peers", {"times": "a table"}, keys=["times"]))
        <!-- peers: times -->
        <BLANKLINE>
        a table
        <!-- end -->
    """

    def table(match: re.Match[str]) -> str:
        key = match["key"]
        if key not in keys:
            raise SettingError(f"there is no table {key!r}; the document can have {', '.join(keys)}")
        if key not in tables:
            return match[0]
        return f"<!-- {benchmark}: {key} -->\n\n{tables[key]}\n<!-- end -->"

    return _marks(benchmark).sub(table, text)


def _marks(benchmark: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {benchmark}: (?P<key>[^\n]*?) -->\n.*?<!-- end -->", re.DOTALL)
