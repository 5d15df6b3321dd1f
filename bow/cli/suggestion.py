"""The remedy for a misspelt name."""

import difflib
from collections.abc import Iterable


def suggestion(word: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """The nearest name as a question, or what there is to choose from."""
    known = sorted(names)
    if near := difflib.get_close_matches(word, [name for name in known if name != "none"], n=1):
        return f"did you mean {near[0]}?"
    return otherwise or f"choose one of {', '.join(known)}"
