"""Captures a model's step as the graph of operators that is split: layers, not what they consist of.

`torch.export` gives the forward pass up to the loss with one node a layer: a convolution, a linear layer, an LSTM cell.
Each is translated to an operator that there is a rule for, or stays whole under its own name.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from bow.errors import BowError, CaptureError, DataError, LossError
from bow.graph.learning_step import LearningStep, Step, batch_tensors, checked_model, step_from_loss
from bow.graph.refusal import quiet
from bow.graph.side_effects import changed, python_state, refuse_changes
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rules
from bow.planning.tiles.exported_nodes import REMEDY, Mutations, buffer, constant_of, held, refusal, refused
from bow.planning.tiles.graph_builder import Constant, GraphBuilder, Maker, TensorRef, Value, Weight, with_samples
from bow.planning.tiles.translations import TRANSLATIONS, Exported, Result, exported_call, pointwise


@dataclass(frozen=True)
class CapturedOperators:
    """The operators of a training step, from the batch to the loss. It can be pickled."""

    graph: OperatorGraph  # what is split and placed
    inputs: tuple[int, ...]  # the numbers of the batch's tensors, in the order in which they lie in it
    dtypes: Mapping[int, torch.dtype]  # the types of all tensors, by number
    counters: Mapping[str, int]  # by buffer that counts: by how much it grows in a step
    makers: Mapping[int, Maker]  # by tensor that is the same in every step: what makes it out of the model's buffers

    def constants(self, model: nn.Module, device: torch.device) -> dict[int, Tensor]:
        """The tensors that are the same in every step."""
        buffers = dict(model.named_buffers())
        return {number: make(buffers).detach().to(device) for number, make in self.makers.items()}

    def equals(self, other: "CapturedOperators", model: nn.Module) -> bool:
        """Whether another capture of a model's step computes the same, with the same numbers and constants."""
        cpu = torch.device("cpu")
        pairs = zip(self.constants(model, cpu).values(), other.constants(model, cpu).values(), strict=False)
        return self.graph == other.graph and all(mine.equal(theirs) for mine, theirs in pairs)

    def fits(self, batch: Any) -> bool:
        """Whether the tensors of a batch are of the shapes that were captured."""
        shapes = [tuple(leaf.shape) if isinstance(leaf, Tensor) else None for leaf in tree_leaves(batch)]
        return shapes == [self.graph.tensors[number].shape for number in self.inputs]

    def leaves(self, batch: Any, device: torch.device) -> dict[int, Tensor]:
        """The tensors of a batch by number."""
        tensors: Sequence[Any] = tree_leaves(batch)
        for place, (number, tensor) in enumerate(itertools.zip_longest(self.inputs, tensors)):
            wanted = None if number is None else (*self.graph.tensors[number].shape,)
            got = tuple(tensor.shape) if isinstance(tensor, Tensor) else None
            if wanted is None or got != wanted:
                raise DataError(
                    f"tensor {place} of the batch has the shape {got}, and the partition is of {wanted}; "
                    "give batches of the size that was planned"
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
    """Capture a training step as the operators that are split and placed.

    The step runs once on tensors without values, in the mode that the model is in (train or eval), for the shapes of
    this batch. Recurrent layers of `torch.nn.LSTM` are written out, one cell for each layer and step.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
        >>> batch = torch.randn(8, 1, 4, 4), torch.randint(10, (8,))
        >>> captured = capture_operators(model, batch, nn.functional.cross_entropy)
        >>> [operator.kind for operator in captured.graph.operators]
        ['conv2d', 'pointwise', 'reshape', 'linear', 'cross_entropy', 'counted_mean']

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 3.1.
    """
    if (loss is None) == (step is None):
        raise LossError(f"give either loss or step, got {'neither' if loss is None else 'both'}")
    chosen = step if step is not None else step_from_loss(loss)  # type: ignore[arg-type]
    batch_tensors(batch)
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
        with_samples(graph, made, rules), made, builder.dtypes, translation.mutations.counters(), builder.constants
    )


def _captured(model: nn.Module, step: Step, batch: Any) -> tuple[LearningStep, ExportedProgram]:
    learning_step = LearningStep(model, functools.partial(_without_changes, step))
    try:
        return learning_step, _exported(learning_step, batch)
    except CaptureError:
        # An attribute that is computed once and kept, such as a mask, is there behind one pass and changes no more.
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
    """Run a step, and refuse what `torch.export` undoes without a word: changed attributes, and assigned buffers."""
    name, values = type(model).__name__, python_state(model)
    before = dict(model.named_buffers(remove_duplicate=False))
    made = step(model, batch)
    refuse_changes(name, values, python_state(model), refusal)
    after = dict(model.named_buffers(remove_duplicate=False))
    assigned = next((name for name, buffer in before.items() if after.get(name) is not buffer), None)
    if assigned is not None:
        what = f"puts another tensor in the place of its buffer {assigned!r}"
        raise refusal(name, what, "change nothing but counters")
    return made


def _exported(step: LearningStep, batch: Any) -> ExportedProgram:
    try:
        with quiet():
            return torch.export.export(step, (batch,))
    except BowError:
        raise
    except Exception as error:
        raise refused(type(step.model).__name__, error) from error


class _Translation:
    """Goes through an exported program."""

    def __init__(self, model: nn.Module, program: ExportedProgram, batch: Sequence[Tensor]) -> None:
        self.builder = GraphBuilder(model, batch)
        self._model = model
        self._program = program
        self.mutations = Mutations(program, type(model).__name__)
        self._values: dict[fx.Node, Any] = {}

    def run(self) -> tuple[OperatorGraph, tuple[int, ...]]:
        """The graph, and the numbers of the batch's tensors."""
        self._values.update(self._inputs())
        *nodes, output = (node for node in self._program.graph.nodes if node.op != "placeholder")
        for node in nodes:
            self._values[node] = self._translated(node)
        loss = self._values[output.args[0][0]]
        if not isinstance(loss, TensorRef):
            loss = TensorRef(self.builder.batch[0])  # a constant or a parameter: refused because no gradient flows
        return self.builder.finished(loss), tuple(self.builder.batch)

    def _inputs(self) -> dict[fx.Node, Value]:
        """What the program reads, by its placeholder."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        batch = iter(self.builder.batch)
        values: dict[fx.Node, Value] = {}
        placeholders = (node for node in self._program.graph.nodes if node.op == "placeholder")
        for node, spec in zip(placeholders, self._program.graph_signature.input_specs, strict=True):
            target = (spec.target or "").removeprefix("model.")
            if spec.kind is InputKind.PARAMETER:
                values[node] = Weight(names[id(self._model.get_parameter(target))])  # tied ones have one name
            elif spec.kind is InputKind.BUFFER:
                values[node] = Constant(target, node.meta["val"], functools.partial(buffer, target))
            elif spec.kind is InputKind.USER_INPUT:
                values[node] = TensorRef(next(batch))
            else:
                tensor = self._program.constants[spec.target or ""]
                values[node] = Constant((node.name,), node.meta["val"], functools.partial(held, tensor))
        return values

    def _translated(self, node: fx.Node) -> Any:
        """What a node makes: a value, a tuple of values, or nothing that anyone reads."""
        if not node.users:
            self._check_unread(node)
            return None
        if getattr(node.target, "__name__", "") == "getitem":
            source, place = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(place, int)
            made = self._values[source]
            return made[place] if isinstance(made, tuple) and place < len(made) else self._missing(source)
        if not isinstance(node.target, torch._ops.OpOverload):
            target = getattr(node.target, "__name__", node.target)
            what = f"calls {target}, which is no operator but runs a part of the step in its own way"
            raise refusal(self._name, what, "leave out torch.no_grad(), autocast, checkpointing and torch.cond")
        if node.meta.get("val") is None:
            return None
        if any(map(_depends_on_values, tree_leaves(node.meta["val"]))):
            what = f"makes a tensor whose shape depends on values, or reads a value, in {node.target}"
            raise refusal(self._name, what, REMEDY)
        name = self.mutations.functional_name(node)
        if name is None:
            return self._values[node.args[0]]  # type: ignore[index]
        exported = self._bound(node, name)
        constant = constant_of(node, exported)
        if constant is not None:
            return constant
        if not exported.operands:
            raise refusal(self._name, f"draws random numbers with {name}", "use dropout layers")
        self.builder.name = self._path(node, name.split(".")[1])
        return self._operator(node, exported)

    def _check_unread(self, node: fx.Node) -> None:
        """Refuse a node whose result nobody reads, but which changes what somebody does, otherwise than by counting."""
        if isinstance(node.target, torch._ops.OpOverload):
            self.mutations.functional_name(node)

    def _operator(self, node: fx.Node, exported: Exported) -> Any:
        translate = TRANSLATIONS.get(exported.function.split(".")[1]) if exported.function.startswith("aten.") else None
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

    def _bound(self, node: fx.Node, name: str) -> Exported:
        """A node's arguments by name, with values in the place of nodes."""
        given = fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        return exported_call(name, node.target, *given, node.meta["val"])

    def _path(self, node: fx.Node, function: str) -> str:
        """What the operators of a node are called: as their module, with the function where that has several."""
        stack = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())
        path: str = stack[-1][0].split("@")[0]
        if path != "model" and not path.startswith("model."):
            return f"loss.{function}"
        path = path.removeprefix("model").removeprefix(".")
        is_layer = path and not list(self._model.get_submodule(path).children())
        return path if is_layer else ".".join(filter(None, (path, function)))

    def _missing(self, node: fx.Node) -> Any:
        raise refusal(self._name, f"uses a second result of {node.target}", "use the first only")

    @property
    def _name(self) -> str:
        return type(self._model).__name__


def _depends_on_values(example: Any) -> bool:
    """Whether a value, or a tensor's shape, is known only when the step runs."""
    numbers = example.shape if isinstance(example, Tensor) else [example]
    return any(isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) for number in numbers)


def _is_random(target: Any, exported: Exported) -> bool:
    """Whether an operator draws random numbers: those that would for dropout do not where nothing is dropped."""
    drops_nothing = any(exported.arguments.get(name) == 0 for name in ("dropout", "dropout_p"))
    return torch.Tag.nondeterministic_seeded in target.tags and not drops_nothing
