"""Captures a model's step as an operator graph at the granularity of layers, by `torch.export`."""

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.errors import BowError, CaptureError, DataError, LossError
from bow.graph.learning_step import LearningStep, Step, batch_tensors, checked_model, step_from_loss
from bow.graph.refusal import REMEDY as REMEDY
from bow.graph.refusal import changed, python_state, quiet, refuse_changes
from bow.graph.refusal import refusal as _refusal
from bow.graph.refusal import refused as _refused
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rules
from bow.planning.tiles.graph_builder import (
    Constant,
    ConstantFactory,
    GraphBuilder,
    TensorRef,
    Value,
    Weight,
    annotate_sample_dims,
    filled,
)
from bow.planning.tiles.inlining import disabled_autocast_left_out, inline_regions
from bow.planning.tiles.operators import TRANSLATIONS
from bow.planning.tiles.operators.calls import Exported, Result, exported_call, function
from bow.planning.tiles.operators.losses import pointwise

_INSTEAD = "train without a partition"
refusal = functools.partial(_refusal, instead=_INSTEAD)  # error for a step that cannot be captured
refused = functools.partial(_refused, instead=_INSTEAD)  # error for a step in which torch raised an exception
# Operators whose result depends only on the shape of their argument, and its fill value.
_FILLED = {"new_zeros": 0.0, "zeros_like": 0.0, "new_ones": 1.0, "ones_like": 1.0}


def constant_of(node: fx.Node, exported: Exported) -> Constant | None:
    """Return the constant that a node computes; None if it depends on the batch, weights or random numbers."""
    example = node.meta["val"]
    if not isinstance(example, Tensor):
        return None
    if exported.name in _FILLED:
        return filled(example, _FILLED[exported.name])
    if exported.name in ("new_full", "full_like"):
        return filled(example, exported["fill_value"])
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if not all(isinstance(value, Constant) for value in exported.operands):
        return None
    by_place = [_picklable_argument(value) for key, value in exported.arguments.items() if key not in exported.keywords]
    by_name = {key: _picklable_argument(value) for key, value in exported.arguments.items() if key in exported.keywords}
    return Constant((node.name,), example, functools.partial(_computed, exported.function, by_place, by_name))


def constant_tensor(tensor: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor held by the model's code."""
    return tensor


def _picklable_argument(argument: Any) -> Any:
    """Return an argument with tensors replaced by their makers, which can be pickled."""
    if isinstance(argument, Value):
        assert isinstance(argument, Constant)
        return argument.make
    return [_picklable_argument(each) for each in argument] if isinstance(argument, (list, tuple)) else argument


def _computed(name: str, by_place: Sequence[Any], by_name: Mapping[str, Any], buffers: Mapping[str, Tensor]) -> Tensor:
    def made(argument: Any) -> Any:
        if isinstance(argument, list):
            return [made(each) for each in argument]
        return argument(buffers) if callable(argument) else argument

    keywords = {key: made(value) for key, value in by_name.items()}
    tensor: Tensor = function(name)(*(made(value) for value in by_place), **keywords)
    return tensor


_ADDITIONS = ("aten.add_.Tensor", "aten.add_.Scalar")


class Mutations:
    """Analyses in-place changes of an exported step."""

    def __init__(self, program: ExportedProgram, model: str) -> None:
        self._model = model
        self._nodes = list(program.graph.nodes)
        placeholders = [node for node in self._nodes if node.op == "placeholder"]
        specs = zip(placeholders, program.graph_signature.input_specs, strict=True)
        self._buffers = {
            node: (spec.target or "").removeprefix("model.") for node, spec in specs if spec.kind is InputKind.BUFFER
        }

    def functional_operator(self, node: fx.Node) -> str | None:
        """Return the functional counterpart of a node's operator; None if the node only increments a counter."""
        target: Any = node.target
        if not target._schema.is_mutable:
            return str(target)
        if self.is_counter(node):
            return None
        namespace, name, overload = str(target).split(".")
        written = node.args[0] if node.args else None
        functional = getattr(getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None), overload, None)
        if functional is None or not name.endswith("_") or not isinstance(written, fx.Node):
            raise refusal(
                self._model, f"calls {target}, which changes its arguments", "use one that returns a new tensor"
            )
        aliases = _aliases(written)
        if aliases[0].op == "placeholder":
            what = f"changes {aliases[0].name} in place ({target})"
            raise refusal(self._model, what, "change nothing but counters")
        if any(user is not node and node < user for alias in aliases for user in alias.users):
            what = f"changes a tensor in place ({target}) that is used again elsewhere"
            raise refusal(self._model, what, "change a copy")
        return f"{namespace}.{name.removesuffix('_')}.{overload}"

    def is_counter(self, node: fx.Node) -> bool:
        """Whether a node increments a buffer that is not read otherwise, such as batch norm's batch counter."""
        if str(node.target) not in _ADDITIONS or not isinstance(node.args[1], int):
            return False
        buffer = _counter_buffer(node)
        if buffer not in self._buffers or buffer.meta["val"].dim() or buffer.meta["val"].is_floating_point():
            return False
        readers = [(each, user) for each in (buffer, node) for user in each.users]
        return all(str(user.target) in _ADDITIONS and user.args[0] is each for each, user in readers)

    def counters(self) -> dict[str, int]:
        """Return the increment per step of each counter buffer."""
        counts: dict[str, int] = {}
        for node in self._nodes:
            if node.op == "call_function" and self.is_counter(node):
                name = self._buffers[_counter_buffer(node)]
                counts[name] = counts.get(name, 0) + node.args[1]
        return counts


def _counter_buffer(node: fx.Node) -> fx.Node:
    """Return the start of a chain of in-place additions."""
    while str(node.target) in _ADDITIONS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_view(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem and isinstance(node.args[0], fx.Node) and _is_view(node.args[0])
    return not target._schema.is_mutable and any(each.alias_info for each in target._schema.returns)


def _aliases(node: fx.Node) -> list[fx.Node]:
    """Return all nodes that may alias a node's memory, first the one that owns it."""
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    found = [node]
    for each in found:
        found += [user for user in each.users if _is_view(user)]
    return found


@dataclass(frozen=True)
class CapturedOperators:
    """The operators of a training step, from the batch to the loss. Picklable."""

    graph: OperatorGraph
    inputs: tuple[int, ...]  # numbers of the batch's tensors, in their order in the batch
    dtypes: Mapping[int, torch.dtype]  # of all tensors, by number
    counters: Mapping[str, int]  # increment per step, by counter buffer
    constant_factories: Mapping[int, ConstantFactory]  # of the step-invariant tensors, by number

    def constants(self, model: nn.Module, device: torch.device) -> dict[int, Tensor]:
        buffers = dict(model.named_buffers())  # copied: an operator that writes to one would hide that it is lost
        return {
            number: make(buffers).detach().to(device, copy=True) for number, make in self.constant_factories.items()
        }

    def equals(self, other: "CapturedOperators", model: nn.Module) -> bool:
        """Whether another capture of the model's step has the same graph and constants."""
        cpu = torch.device("cpu")
        pairs = zip(self.constants(model, cpu).values(), other.constants(model, cpu).values(), strict=False)
        return self.graph == other.graph and all(mine.equal(theirs) for mine, theirs in pairs)

    def fits(self, batch: Any) -> bool:
        shapes = [tuple(leaf.shape) if isinstance(leaf, Tensor) else None for leaf in tree_leaves(batch)]
        return shapes == [self.graph.tensors[number].shape for number in self.inputs]

    def leaves(self, batch: Any, device: torch.device) -> dict[int, Tensor]:
        tensors: Sequence[Any] = tree_leaves(batch)
        for place, (number, tensor) in enumerate(itertools.zip_longest(self.inputs, tensors)):
            wanted = None if number is None else (*self.graph.tensors[number].shape,)
            got = tuple(tensor.shape) if isinstance(tensor, Tensor) else None
            if wanted is None or got != wanted:
                raise DataError(
                    f"tensor {place} of the batch has shape {got}, the partition was planned for {wanted}; "
                    "use batches of the planned size"
                )
        return {number: tensor.to(device) for number, tensor in zip(self.inputs, tensors, strict=True)}


def capture_operators(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    step: Step | None = None,
    rules: Rules = RULES,
) -> CapturedOperators:
    # Uses fake tensors and the model's current mode. An LSTM is unrolled into cells.
    if (loss is None) == (step is None):
        raise LossError(f"give either loss or step, got {'neither' if loss is None else 'both'}")
    chosen = step if step is not None else step_from_loss(loss)  # type: ignore[arg-type]
    batch_tensors(batch)
    batch = tree_map_only(Tensor, Tensor.clone, batch)  # a tensor that occurs twice may be two in the next batch
    model = checked_model(model)
    learning_step, program = _captured(model, chosen, batch)
    translation = _Translation(learning_step.model, program, tree_leaves(batch))
    graph, made = translation.run()
    if not graph.tensors[graph.loss].differentiable:
        raise LossError(
            "the loss does not depend on the model's parameters; compute it from what the model returns, without "
            "detach() or torch.no_grad()"
        )
    builder = translation.builder
    return CapturedOperators(
        annotate_sample_dims(graph, made, rules),
        made,
        builder.dtypes,
        translation.mutations.counters(),
        builder.constants,
    )


def _captured(model: nn.Module, step: Step, batch: Any) -> tuple[LearningStep, ExportedProgram]:
    learning_step = LearningStep(model, functools.partial(_without_changes, step))
    try:
        return learning_step, _exported(learning_step, batch)
    except CaptureError:
        # A lazily computed attribute, such as a cached mask, is set by the first pass and does not change again.
        once = LearningStep(model, step)
        before = python_state(once.model)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with contextlib.suppress(Exception), quiet(), torch.random.fork_rng(devices=[]):
            once.run(dict(model.named_parameters()), buffers, batch)
        if not changed(before, python_state(once.model)):
            raise
    learning_step = LearningStep(once.model, functools.partial(_without_changes, step))
    return learning_step, _exported(learning_step, batch)


def _without_changes(step: Step, model: nn.Module, batch: Any) -> Any:
    """Run a step and raise on changed attributes and reassigned buffers, which `torch.export` silently reverts."""
    name, values = type(model).__name__, python_state(model)
    before = dict(model.named_buffers(remove_duplicate=False))
    made = step(model, batch)
    refuse_changes(name, values, python_state(model), refusal)
    after = dict(model.named_buffers(remove_duplicate=False))
    assigned = next((name for name, buffer in before.items() if after.get(name) is not buffer), None)
    if assigned is not None:
        what = f"assigns a new tensor to its buffer {assigned!r}"
        raise refusal(name, what, "change nothing but counters")
    return made


def _exported(step: LearningStep, batch: Any) -> ExportedProgram:
    try:
        with quiet(), disabled_autocast_left_out():
            program = torch.export.export(step, (batch,))
    except BowError:
        raise
    except Exception as error:
        raise refused(type(step.model).__name__, error) from error
    inline_regions(program.graph_module, lambda what: refusal(type(step.model).__name__, what, "change a copy"))
    return program


class _Translation:
    def __init__(self, model: nn.Module, program: ExportedProgram, batch: Sequence[Tensor]) -> None:
        self.builder = GraphBuilder(model, batch)
        self._model, self._name = model, type(model).__name__
        self._program = program
        self.mutations = Mutations(program, self._name)
        self._values: dict[fx.Node, Any] = {}

    def run(self) -> tuple[OperatorGraph, tuple[int, ...]]:
        """Return the graph and the numbers of the batch's tensors."""
        self._values.update(self._inputs())
        *nodes, output = (node for node in self._program.graph.nodes if node.op != "placeholder")
        for node in nodes:
            self._values[node] = self._translated(node)
        loss = self._values[output.args[0][0]]
        if not isinstance(loss, TensorRef):
            loss = TensorRef(self.builder.batch[0])  # a constant or a parameter: rejected for lack of a gradient
        return self.builder.build(loss), tuple(self.builder.batch)

    def _inputs(self) -> dict[fx.Node, Value]:
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        batch = iter(self.builder.batch)
        values: dict[fx.Node, Value] = {}
        placeholders = (node for node in self._program.graph.nodes if node.op == "placeholder")
        for node, spec in zip(placeholders, self._program.graph_signature.input_specs, strict=True):
            target = (spec.target or "").removeprefix("model.")
            if spec.kind is InputKind.PARAMETER:
                values[node] = Weight(names[id(self._model.get_parameter(target))])  # tied parameters share a name
            elif spec.kind is InputKind.BUFFER:
                values[node] = Constant(target, node.meta["val"], operator.itemgetter(target))
            elif spec.kind is InputKind.USER_INPUT:
                values[node] = TensorRef(next(batch))
            else:
                constant = self._program.constants[spec.target or ""]
                if not isinstance(constant, Tensor):
                    raise refusal(self._name, "draws from a torch.Generator", "use torch's default random numbers")
                # A copy: the user may change the tensor in place, which another capture has to show.
                constant = constant.detach().clone()
                values[node] = Constant((node.name,), node.meta["val"], functools.partial(constant_tensor, constant))
        return values

    def _translated(self, node: fx.Node) -> Any:
        """Translate a node: return a value, a tuple of values, or None if it is not read."""
        if node.op == "get_attr":  # the body of a region
            return None
        if not node.users:
            if isinstance(node.target, torch._ops.OpOverload):
                self.mutations.functional_operator(node)  # raises on in-place changes other than counters
            return None
        if getattr(node.target, "__name__", "") == "getitem":
            source, place = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(place, int)
            made = self._values[source]
            if not isinstance(made, tuple) or place >= len(made):
                raise refusal(
                    self._name, f"uses another output of {source.target} than the first", "use the first only"
                )
            return made[place]
        if not isinstance(node.target, torch._ops.OpOverload):
            target = getattr(node.target, "__name__", node.target)
            what = f"calls {target}, a higher-order operator, which cannot be captured"
            raise refusal(self._name, what, "leave out autocast, checkpointing and torch.cond")
        if node.meta.get("val") is None:
            return None
        if any(map(_depends_on_values, tree_leaves(node.meta["val"]))):
            what = f"makes a tensor whose shape depends on values, or reads a value, in {node.target}"
            raise refusal(self._name, what, REMEDY)
        name = self.mutations.functional_operator(node)
        if name is None:
            return self._values[node.args[0]]  # type: ignore[index]
        given = fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        exported = exported_call(name, node.target, *given, node.meta["val"])
        constant = constant_of(node, exported)
        if constant is not None:
            return constant
        if not exported.operands:
            raise refusal(self._name, f"draws random numbers with {name}", "use dropout layers")
        self.builder.name = self._path(node, exported.name)
        return self._operator(node, exported)

    def _operator(self, node: fx.Node, exported: Exported) -> Any:
        if exported.name == "instance_norm" and exported["use_input_stats"] and exported["running_mean"] is not None:
            raise refusal(
                self._name, "updates the running statistics of instance norm", "set track_running_stats=False"
            )
        translate = TRANSLATIONS.get(exported.name) if exported.function.startswith("aten.") else None
        result: Result = None if translate is None else translate(self.builder, exported)
        target: Any = node.target
        if result is None and _is_random(target, exported):
            raise refusal(self._name, f"draws random numbers with {exported.function}", "use dropout layers")
        if result is None and torch.Tag.pointwise in target.tags:
            result = pointwise(self.builder, exported)
        if result is None:
            result = self.builder.add(
                exported.function, exported.operands, exported.outputs, exported.by_name(), exported.size
            )
        several = isinstance(node.meta["val"], (tuple, list))
        return result[0] if isinstance(result, tuple) and not several else result

    def _path(self, node: fx.Node, function: str) -> str:
        """Return the name of a node's operators: the module path, with the function unless the module is a leaf."""
        stack = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())
        path: str = stack[-1][0].split("@")[0]
        if path != "model" and not path.startswith("model."):
            return f"loss.{function}"
        path = path.removeprefix("model").removeprefix(".")
        is_layer = path and not list(self._model.get_submodule(path).children())
        return path if is_layer else ".".join(filter(None, (path, function)))


def _depends_on_values(example: Any) -> bool:
    numbers = example.shape if isinstance(example, Tensor) else [example]
    return any(isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) for number in numbers)


def _is_random(target: Any, exported: Exported) -> bool:
    """Whether an operator draws random numbers; with a dropout probability of 0 it does not."""
    drops_nothing = any(exported.arguments.get(name) == 0 for name in ("dropout", "dropout_p"))
    return torch.Tag.nondeterministic_seeded in target.tags and not drops_nothing
