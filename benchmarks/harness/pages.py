"""Pages: Markdown templates in `benchmarks/pages`, rendered with the values of a result; papers' numbers as YAML."""

import functools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.environment import told
from benchmarks.harness.statistics import whole_spread

FOLDER = Path(__file__).parents[1]


@functools.cache
def paper(name: str) -> dict[str, Any]:
    """Load the numbers of a paper: `benchmarks/papers/NAME.yaml`."""
    import yaml

    found: dict[str, Any] = yaml.safe_load((FOLDER / "papers" / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def render(name: str, values: Mapping[str, Any]) -> str:
    """Render the page of an experiment, from its values only."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "pages"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        extensions=["jinja2.ext.do"],
    )
    environment.filters.update(
        fmt=_formatted,
        median=statistics.median,
        spread=spread_text,
        titled=titled,
        ms=lambda value: spread_text(value, ".1f"),
    )
    environment.globals.update(
        told=told, counted=counted, paper=paper, titled=titled, row=_row, header=_header, zip=zip, max=max, list=list,
        median=statistics.median, geometric_mean=statistics.geometric_mean,
    )  # fmt: skip
    page = environment.get_template(f"{name}.md").render(**values)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def counted(count: int, noun: str) -> str:
    """Format a number with its noun.

    Example:
        >>> counted(1, "learner"), counted(2, "learner")
        ('1 learner', '2 learners')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def spread_text(value: Mapping[str, Any] | None, form: str = ".2f", to: str = " to ", unit: str = "") -> str:
    """Format a median with its range or interval.

    Example:
        >>> spread_text({"median": 2.0, "low": 1.0, "high": 3.0, "n": 3}, ".1f")
        '2.0 (1.0 to 3.0)'
    """
    if value is None:
        return ""
    return f"{value['median']:{form}}{unit} ({value['low']:{form}}{to}{value['high']:{form}})"


def values_text(values: Sequence[float], form: str) -> str:
    """Format the median of values with their range; one value as it is, none as nothing."""
    if len(values) < 2:
        return "".join(f"{value:{form}}" for value in values)
    return spread_text(whole_spread(values), form)


def titled(network: str) -> str:
    """Return the title of a network of the papers."""
    from bow.models import NETWORKS

    return NETWORKS[network].title


def _formatted(value: Any, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _header(columns: Iterable[str], left: Iterable[str] = ()) -> str:
    columns, left = list(columns), set(left)
    return f"{_row(columns)}\n{_row(':--' if column in left else '--:' for column in columns)}"
