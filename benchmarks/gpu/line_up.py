"""The names of contestants, and who of them is held against whom."""

from collections.abc import Mapping, Sequence
from typing import Any

PLAIN = "pytorch"
GRAPHED = "pytorch, whole step as a CUDA graph"
COMPILED = "pytorch compiled"
REDUCED = "pytorch compiled, reduce-overhead"
COMPILED_GRAPHED = "pytorch compiled, whole step as a CUDA graph"

# One graphed learner: the fastest of these is what several are held against
ONE_GRAPHED = (GRAPHED, "graph, 1", "whole_round, 1")

Row = Mapping[str, Any]  # What was measured of a contestant, as plain values


def bow_name(engine: str, learners: int) -> str:
    """The name of a contestant of bow."""
    return f"{engine}, {learners}"


def best_of_bow(rows: Sequence[Row]) -> Row | None:
    """The fastest engine and number of learners."""
    return _fastest([row for row in rows if row["engine"] is not None])


def one_graphed(rows: Sequence[Row]) -> Row | None:
    """One learner as a graph, by whoever is fastest."""
    return _fastest([row for row in rows if row["name"] in ONE_GRAPHED])


def _fastest(rows: Sequence[Row]) -> Row | None:
    return max(rows, key=lambda row: float(row["samples_per_s"]["median"]), default=None)
