"""Finds out which dimension of every tensor is that of the samples."""

from collections.abc import Sequence
from dataclasses import replace

from bow.planning.problem.box import whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.rule import Rules, WholeRule

NOWHERE = -1


def with_samples(graph: OperatorGraph, batch: Sequence[int], rules: Rules) -> OperatorGraph:
    """The graph, every operator of which says in its attribute `sample` which dimension of its output is the samples'.

    The samples are the first dimension of the batch's tensors. An output's dimension is theirs where half of it needs
    less than all of the samples of an input: this is asked of the rules, so that it holds for every operator that has
    one. Of an operator without a rule, the same dimension of the same size.
    """
    dims = {number: 0 for number in batch if graph.tensors[number].shape}
    found = []
    for operator in graph.operators:
        sample = _sample_dim(graph, operator, dims, rules)
        if sample != NOWHERE:
            rank = len(graph.output_shape(operator))
            dims.update({each: sample for each in operator.outputs if len(graph.tensors[each].shape) == rank})
        found.append(replace(operator, attributes={**operator.attributes, "sample": sample}))
    return replace(graph, operators=tuple(found))


def _sample_dim(graph: OperatorGraph, operator: PlanOperator, dims: dict[int, int], rules: Rules) -> int:
    rule, shape = rules.of(operator), graph.output_shape(operator)
    if isinstance(rule, WholeRule):
        for number in operator.inputs:
            dim = dims.get(number, NOWHERE)
            if 0 <= dim < len(shape) and shape[dim] == graph.tensors[number].shape[dim]:
                return dim
        return NOWHERE
    for dim, size in enumerate(shape):
        if size > 1:
            box = (*whole(shape)[:dim], (0, size // 2), *whole(shape)[dim + 1 :])
            for number, needed in zip(operator.inputs, rule.input_boxes(operator, graph, box), strict=True):
                of = dims.get(number, NOWHERE)
                if of != NOWHERE and needed is not None and needed[of] != (0, graph.tensors[number].shape[of]):
                    return dim
    return NOWHERE
