"""A step graph as text."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bow.graph.operator import Operator
from bow.terminal import aligned

if TYPE_CHECKING:
    from bow.graph.step_graph import StepGraph

_COLUMNS = ("#", "phase", "operator", "results", "reads", "module", "parameters", "flop", "bytes", "")


def table(graph: "StepGraph") -> str:
    rows = [_COLUMNS, *(_row(operator, graph) for operator in graph.operators)]
    return "\n".join([summary(graph), *aligned(rows)])


def summary(graph: "StepGraph") -> str:
    phases = Counter(operator.phase for operator in graph.operators)
    views = sum(operator.is_view for operator in graph.operators)
    numbers = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    return (
        f"{len(graph.operators)} operators ({numbers}; {views} views), "
        f"{quantity(graph.flops)}FLOP, {quantity(graph.bytes_moved)}B"
    )


def quantity(number: int) -> str:
    """Format a number with three digits and a decimal prefix."""
    scaled = float(number)
    for prefix in ("", "k", "M", "G", "T"):
        if scaled < 1000:
            return f"{scaled:.3g} {prefix}"
        scaled /= 1000
    return f"{scaled:.3g} P"


def _row(operator: Operator, graph: "StepGraph") -> tuple[str, ...]:
    return (
        str(operator.index),
        operator.phase,
        operator.kind,
        _listed(f"%{value}:{graph.values[value]}" for value in operator.results if value is not None),
        _listed(f"%{value}" for value in operator.reads),
        operator.module,
        _listed(operator.parameters),
        quantity(operator.flops),
        quantity(operator.bytes_moved),
        _remarks(operator),
    )


def _remarks(operator: Operator) -> str:
    belongs = f"backward of {operator.forward}" if operator.forward is not None else ""
    return _listed(part for part in ("view" * operator.is_view, "random" * operator.is_random, belongs) if part)


def _listed(parts: Iterable[str], most: int = 3) -> str:
    shown = list(parts)
    return ", ".join(shown[:most]) + (f", ... ({len(shown)})" if len(shown) > most else "")
