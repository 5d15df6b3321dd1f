"""The tables of `bow plan`."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from bow.planning.problem.partition import Partition
from bow.planning.search.explain import Alternative, Explanation, OperatorExplanation, degrees_text, split_dimensions
from bow.planning.search.problem import Problem
from bow.planning.simulator.python_simulator import SimulationResult

FEW = 4  # of more devices only the first two and the last are named


def told(partition: Partition, result: SimulationResult) -> str:
    """What a step under a strategy takes, in a sentence."""
    learners = "" if partition.learners == 1 else f", {partition.learners} learners with a batch each"
    return (
        f"a step: {result.makespan_ns / 1e6:.3f} ms{learners}; {result.communication_bytes / 1e6:.2f} MB sent, "
        f"{result.task_ns / 1e6:.3f} ms computed on all devices together"
    )


def comparison() -> Table:
    """Methods side by side, without any row yet."""
    return table("A step, simulated", "strategy", "ms", "over data", "sent MB", "compute ms", "peak memory GiB")


def add_result(rows: Table, name: str, result: SimulationResult | str, learners: int, base: int | None) -> None:
    """Add what a method came to."""
    if isinstance(result, str):
        rows.add_row(name, f"[dim]none: {result}[/dim]")
        return
    step = result.makespan_ns / learners
    peak = max(each.num_bytes for each in result.peaks) / 2**30
    rows.add_row(
        name if result.refusal is None else f"{name}: does not fit, {result.refusal}",
        f"{step / 1e6:.3f}",
        "" if base is None else f"{base / step:.2f}",
        f"{result.communication_bytes / 1e6:.2f}",
        f"{result.task_ns / 1e6:.3f}",
        f"{peak:.2f}",
    )


def explanation_table(problem: Problem, explanation: Explanation, keep: int) -> Table:
    """What was chosen for every operator, what it costs, and what its best other choices would cost."""
    columns = ("operator", "split", "devices", "forward", "backward", "moved", "summed", "update", "another choice")
    rows = table("The strategy: milliseconds by operator, and of a step with another choice", *columns)
    for number, each in enumerate(explanation.operators):
        times = (each.forward_ns, each.backward_ns, each.moving_ns, each.summing_ns, each.updating_ns)
        rows.add_row(
            f"{each.name} ({each.kind})",
            degrees_text(each.degrees, each.kinds),
            devices_text(each.devices),
            *(f"{time / 1e6:.3f}" if time else "" for time in times),
            "\n".join(_others(problem, explanation, number, each, keep)),
        )
    return rows


def strategy_table(problem: Problem, explanation: Explanation) -> Table:
    """What was chosen for every operator, and what it costs."""
    rows = table("The strategy", "operator", "kind", "shape", "split", "devices", "forward ms", "backward ms")
    for operator, each in zip(problem.graph.operators, explanation.operators, strict=True):
        shape = "x".join(map(str, problem.graph.output_shape(operator)))
        times = (f"{time / 1e6:.3f}" for time in (each.forward_ns, each.backward_ns))
        rows.add_row(
            each.name, each.kind, shape, degrees_text(each.degrees, each.kinds), devices_text(each.devices), *times
        )
    return rows


def devices_text(devices: Sequence[str]) -> str:
    """Devices; of many the first ones and the last."""
    if len(devices) <= FEW:
        return " ".join(devices)
    return f"{devices[0]} {devices[1]} .. {devices[-1]} ({len(devices)})"


def table(title: str, *columns: str) -> Table:
    """An empty table: the first column is text, the others numbers; what is too wide is folded."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, column in enumerate(columns):
        made.add_column(column, header_style="dim", overflow="fold", justify="left" if position == 0 else "right")
    return made


def _others(
    problem: Problem, explanation: Explanation, number: int, each: OperatorExplanation, keep: int
) -> Iterator[str]:
    """The best other choices of an operator, the best first."""
    operator = problem.graph.operators[number]
    dimensions = problem.rules.dimensions(operator, problem.graph)
    for choice in each.others[:keep]:
        split = degrees_text(*split_dimensions(dimensions, choice.split))
        devices = [problem.topology.devices[device].name for device in choice.split.devices]
        yield f"{split} on {devices_text(devices)}: {_cost(explanation, choice)}"


def _cost(explanation: Explanation, choice: Alternative) -> str:
    if choice.makespan_ns is None:
        return "does not fit"
    more = 100 * (choice.makespan_ns / explanation.makespan_ns - 1)
    return f"{choice.makespan_ns / 1e6:.3f} ({more:+.1f} %)"
