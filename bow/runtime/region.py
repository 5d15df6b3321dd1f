"""Compiled regions: a step graph as one library, compiled ahead of time by torch and cached on disk."""

import operator as python_operator
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from bow.compiling import built, cache_folder
from bow.errors import RuntimeUnavailableError, reason
from bow.graph import Operator, Ref, StepGraph
from bow.graph.kinds import is_update, kernel_of
from bow.graph.lowering import drop_dead
from bow.graph.operator import map_refs
from bow.runtime.loading import content_hash

RECIPE = "1"  # change it with the code below, so that regions of earlier versions are not reused

REGION = "region.so"

# Operators of whose results only the shape is read: random operators overwrite them.
SHAPE_ONLY = {"aten.empty_like.default", "aten.empty.memory_format", "aten.new_empty.default"}


@dataclass(frozen=True)
class Region:
    """A compiled step graph."""

    # Random numbers are drawn before it, operator by operator: inside, they would come from a generator that all
    # learners share.

    library: Path
    draws: tuple[Operator, ...]  # random operators that run first; they read only shapes
    reads: tuple[int, ...]  # values passed to the region, in order
    makes: tuple[int, ...]  # values that it returns


def compile_region(graph: StepGraph) -> Region:
    """Compile all of a step graph but its updates and random operators, for one thread: 10 to 30 s if not cached."""
    draws = check_compilable(graph)
    drawn = {value for draw in draws for value in draw.results}
    inside = [op for op in graph.operators if op not in draws and not is_update(op.kind)]
    inside = drop_dead(inside, graph.results)
    made = {value for op in inside for value in op.results}
    given = [*graph.parameters.values(), *graph.buffers.values(), *graph.batch.values(), *graph.constants, *drawn]
    used = {value for op in inside for value in op.reads}
    reads = tuple(value for value in dict.fromkeys(given) if value in used)
    makes = tuple(value for value in sorted(graph.results) if value in made)

    def make(target: Path) -> None:
        _compile(graph, inside, reads, makes, target)

    return Region(built(_folder(graph), REGION, make), draws, reads, makes)


def is_compiled(graph: StepGraph) -> bool:
    """Whether the graph has been compiled on this machine, so that `compile_region` only loads it."""
    return os.path.exists(cache_folder() / _folder(graph) / REGION)  # noqa: PTH110 - False if the folder cannot be read


def _folder(graph: StepGraph) -> str:
    # The compiler targets the instruction set that torch is configured to use (`ATEN_CPU_CAPABILITY`).
    return f"region-{content_hash(RECIPE, torch.backends.cpu.get_cpu_capability(), graph.to_json())}"


def check_compilable(graph: StepGraph) -> tuple[Operator, ...]:
    """Return the random operators, which run before the region; raise if they cannot."""
    shaped = {value for op in graph.operators if op.kind in SHAPE_ONLY for value in op.results}
    draws = tuple(op for op in graph.operators if op.is_random)
    for draw in draws:
        if not shaped.issuperset(draw.reads):
            raise RuntimeUnavailableError(
                f"the step cannot be one compiled region, because {draw.kind} draws random numbers that depend on "
                "computed values; it runs operator by operator"
            )
    return draws


def _compile(
    graph: StepGraph, operators: Sequence[Operator], reads: Sequence[int], makes: Sequence[int], target: Path
) -> None:
    module = as_module(operators, reads, makes)
    example = tuple(graph.values[value].empty().zero_() for value in reads)
    options: dict[str, Any] = {"cpp.threads": 1, "aot_inductor.output_path": str(target)}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch's compiler warns about itself
            torch._inductor.aot_compile(module, example, options=options)
    except Exception as error:
        raise RuntimeUnavailableError(f"torch's compiler cannot compile the step ({reason(error)})") from error


def as_module(operators: Sequence[Operator], reads: Sequence[int], makes: Sequence[int]) -> fx.GraphModule:
    graph = fx.Graph()
    nodes: dict[int, fx.Node] = {value: graph.placeholder(f"value_{value}") for value in reads}

    def node(ref: Ref) -> fx.Node:
        return nodes[ref.value]

    for op in operators:
        arguments = map_refs(node, op.arguments)
        keywords = {name: map_refs(node, value) for name, value in op.keywords.items()}
        made = graph.call_function(kernel_of(op.kind), arguments, keywords)
        if _returns_one_tensor(op):
            (value,) = op.results
            nodes.update({} if value is None else {value: made})
            continue
        for position, value in enumerate(op.results):
            if value is not None:
                nodes[value] = graph.call_function(python_operator.getitem, (made, position))
    graph.output(tuple(nodes[value] for value in makes))
    return fx.GraphModule(torch.nn.Module(), graph)


def _returns_one_tensor(op: Operator) -> bool:
    returns = kernel_of(op.kind)._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.TensorType)
