"""Pictures with matplotlib, in the style of bow's reports; matplotlib is imported lazily."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bow.observe.charts import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#2563a8", "#d9822b", "#2a9d6f", "#8f4fa8", "#b23a48", "#0f7f8c")
GREY = "#5b6577"


@contextmanager
def picture(path: Path, width: float, height: float, dpi: int = 160) -> "Iterator[Figure]":
    """Create a figure with this size in inches, and save it at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=dpi)
        yield figure
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def legend(figure: "Figure", lines: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Add a legend above the figure: names, and the style of their lines."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **style) for name, style in lines]
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=9)
