"""Training steps of the papers' networks, described for a simulated machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.costs.machine import Work
from benchmarks.costs.operators import captured, is_worth_measuring, kind_of
from bow.graph import StepGraph


@dataclass(frozen=True)
class Step:
    """The operators of a training step that take time, numbered in the order of capture."""

    works: tuple[Work, ...]  # by operator: its work
    dependencies: tuple[frozenset[int], ...]  # by operator: those whose results it reads, directly or through views
    modules: tuple[str, ...]  # by operator: the module that called it, or whose backward pass it belongs to
    forward: tuple[bool, ...]  # by operator: whether it belongs to the forward pass

    def __len__(self) -> int:
        return len(self.works)

    @property
    def kinds(self) -> list[str]:
        """By operator: its type."""
        return [work.kind for work in self.works]


def capture_step(network: str, size: str) -> Step:
    """Capture the training step of a network, forward and backward, without the optimizer."""
    return step_of(captured(network, size))


def step_of(graph: StepGraph) -> Step:
    """Remove operators without duration from a step graph: views, updates, and pure allocations.

    Readers of the result of such an operator depend on its dependencies.
    """
    kept = [operator for operator in graph.operators if is_worth_measuring(operator)]
    numbers = {operator.index: number for number, operator in enumerate(kept)}
    behind: dict[int, frozenset[int]] = {}  # by value: the operators it depends on
    dependencies: list[frozenset[int]] = []
    for operator in graph.operators:
        before = _all_behind(operator.reads, behind)
        if operator.index in numbers:
            dependencies.append(before)
            before = frozenset({numbers[operator.index]})
        behind.update({value: before for value in operator.results if value is not None})
    return Step(
        works=tuple(Work(kind_of(operator), operator.flops, operator.bytes_moved) for operator in kept),
        dependencies=tuple(dependencies),
        modules=tuple(operator.module for operator in kept),
        forward=tuple(operator.phase == "forward" for operator in kept),
    )


def _all_behind(values: tuple[int, ...], behind: Mapping[int, frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*(behind.get(value, frozenset()) for value in values))
