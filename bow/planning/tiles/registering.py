"""Rules for operators of one's own."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from bow.errors import GraphError, reason
from bow.planning.rules import RULES
from bow.planning.rules.mapped import places
from bow.planning.rules.rule import Rule, Rules
from bow.planning.tiles.builder import GraphBuilder, Made, Value, Weight
from bow.planning.tiles.calls import CALLS, LocalCall
from bow.planning.tiles.calls.elements import call_by_name
from bow.planning.tiles.checking import check_rule
from bow.planning.tiles.encoding import function
from bow.planning.tiles.translations import exported_call

Registered: TypeAlias = Mapping[str, tuple[Rule, LocalCall | None]]
"""By kind of operator: its rule, and what computes a tile of it."""

_registered: dict[str, tuple[Rule, LocalCall | None]] = {}


def registered_rules() -> Registered:
    """The rules that were registered besides those that bow has."""
    return dict(_registered)


def take_over_rules(registered: Registered) -> None:
    """Register what another process has registered, and tried out there.

    Args:
        registered: its `registered_rules()`.
    """
    for rule, call in registered.values():
        _register(rule, call, RULES)


def register_rule(
    rule: Rule, *examples: Sequence[Any], call: LocalCall | None = None, rules: Rules = RULES, trials: int = 20
) -> None:
    """Let an operator be split.

    The rule is tried out first: each example is split at random, computed tile by tile, and compared with the operator
    itself, what it makes and the gradients of what it reads. In the graph that is planned, the operator has its
    arguments as the attribute `arguments`, tensors as `{"operand": number}`.

    Args:
        rule: of the operator whose full name is `rule.kind`, such as `mylib.scale.default` for
            `torch.ops.mylib.scale`.
        examples: arguments to call the operator with, at least one list of them. An `nn.Parameter` is a weight.
            float64 is compared to 1e-9, float32 to 1e-4.
        call: computes a tile; None: the operator itself, called with the tile's parts of its tensors.
        rules: where to register it.
        trials: how many splits of each example are tried out.

    Raises:
        GraphError: there is no such operator, no example, or a tile differs from its part of the whole.

    Example:
        >>> import torch
        >>> from bow.planning.rules.views import PointwiseRule
        >>> from bow.planning.rules.rule import Rules
        >>> register_rule(PointwiseRule("aten.sinc.default"), [torch.rand(4, 6, dtype=torch.float64)], rules=Rules())
        >>> register_rule(PointwiseRule("aten.cumsum.default"), [torch.rand(4, 6), 1], rules=Rules())
        Traceback (most recent call last):
        ...
        bow.errors.GraphError: the rule of 'aten.cumsum.default' is wrong: ...

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 4.
    """
    if not examples:
        raise GraphError(f"the rule of {rule.kind!r} comes without an example; give arguments to try the operator with")
    for example in examples:
        _try_out(rule, call or call_by_name, example, trials)
    _register(rule, call, rules)


def _register(rule: Rule, call: LocalCall | None, rules: Rules) -> None:
    rules.register(rule)
    if rules is RULES:
        _registered[rule.kind] = rule, call
    if call is not None:
        CALLS[rule.kind] = call


def _try_out(rule: Rule, call: LocalCall, example: Sequence[Any], trials: int) -> None:
    weights = [argument for argument in example if isinstance(argument, nn.Parameter)]
    model = nn.ParameterDict({str(number): weight for number, weight in enumerate(weights)})
    batch = [each for each in example if isinstance(each, Tensor) and not isinstance(each, nn.Parameter)]
    builder = GraphBuilder(model, batch, flows=True)

    def value(argument: Any) -> Value | Any:
        if isinstance(argument, nn.Parameter):
            return Weight(str(next(n for n, weight in enumerate(weights) if weight is argument)))
        if isinstance(argument, Tensor):
            return Made(builder.batch[next(n for n, tensor in enumerate(batch) if tensor is argument)])
        return argument

    try:
        operator_function = function(rule.kind)
        made = operator_function(*example)
    except Exception as error:
        raise GraphError(
            f"{rule.kind!r}, which a rule is of, cannot be called with its example ({reason(error)}); name an operator "
            "as namespace.name.overload, and give the arguments that it takes"
        ) from error
    exported = exported_call(rule.kind, operator_function, [value(argument) for argument in example], {}, made)
    outputs = builder.add(rule.kind, exported.operands, exported.outputs, exported.by_name())
    graph = builder.finished(outputs[0])
    (operator,) = graph.operators
    operands = [batch[index] if kind == "input" else weights[index] for kind, index in places(operator)]
    check_rule(rule, call, graph, operator, operands, whole_call=call_by_name, trials=trials)
