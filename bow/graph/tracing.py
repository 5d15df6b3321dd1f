"""Trace a learning step into ATen operators, with torch's private modules.

Two passes. The first runs the step, autograd included, on fake tensors and records the operators that eager PyTorch
calls, each with the module that called it, its phase, and the autograd node that it made or belongs to. The second,
for a record in which operators write to their arguments, replays it under `functionalize`, so that none does; an
operator of the second pass inherits the origin of its operator in the first.
"""

import contextlib
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from bow.errors import BowError, CaptureError, warn_user
from bow.graph.learning_step import LearningStep
from bow.graph.operator import Phase
from bow.graph.refusal import quiet, refusal, refused

OLDEST = (2, 10)
NEWEST = (2, 14)
_ORIGIN = "bow_origin"
_aten: Any = torch.ops.aten

_UNHOLDABLE = {
    _aten.cudnn_batch_norm.default,
    _aten.miopen_batch_norm.default,
    _aten._cudnn_rnn.default,
    _aten.miopen_rnn.default,
}

_HIDES_WRITES = _aten.native_batch_norm.default  # its schema declares none

Node: TypeAlias = fx.Node


@dataclass(frozen=True)
class Origin:
    """The origin of an operator in the step."""

    phase: Phase
    module: str
    made: range  # sequence numbers of the autograd nodes that a forward operator made: its own, then its leaves'
    belongs: int | None  # sequence number of the autograd node that a backward operator belongs to


@dataclass(frozen=True)
class Trace:
    """A traced step: a graph of functional operators whose nodes know their origin."""

    nodes: list[Node]
    constants: dict[str, Any]  # by name in the graph: neither parameters, buffers nor batch; usually tensors
    outputs: Any  # the step's `StepOutputs`, with nodes in place of tensors
    custom_functions: frozenset[type]  # `torch.autograd.Function` classes in the loss's autograd graph


def check_version() -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise CaptureError(f"capture needs torch 2.10 or newer, this is {torch.__version__}; upgrade torch")
    if version > NEWEST:
        newest = ".".join(map(str, NEWEST))
        warn_user(f"capture has been tried up to torch {newest}, this is {torch.__version__}")


def trace(
    step: LearningStep, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, unrolled: bool
) -> Trace:
    mode = FakeTensorMode(allow_fallback_kernels=True, allow_non_fake_inputs=True)
    inputs = tree_map_only(
        Tensor, lambda tensor: mode.from_tensor(tensor.detach()), (dict(parameters), dict(buffers), batch)
    )
    flat, spec = tree_flatten(inputs)
    recorder = _Recorder(step)

    def run(*leaves: Any) -> Any:
        return recorder.run(*tree_unflatten(leaves, spec))

    try:
        with quiet(), _own_kernels(step, unrolled), torch.autograd.set_multithreading_enabled(False):
            recorded = make_fx(run, tracing_mode="fake")(*flat)
            given = [node for node in recorded.graph.nodes if node.op == "placeholder"]
            for node in recorded.graph.nodes:
                _check_repeatable(node, type(step.model).__name__, unrolled, set(given[: len(parameters)]))
            is_done = not any(map(_writes, recorded.graph.nodes))
            functional = recorded if is_done else make_fx(_replay(recorded), tracing_mode="fake")(*flat)
    except BowError:
        raise
    except Exception as error:
        raise refused(type(step.model).__name__, error) from error
    nodes = list(functional.graph.nodes)
    constants = {str(node.target): getattr(functional, str(node.target)) for node in nodes if node.op == "get_attr"}
    outputs = tree_unflatten(tree_leaves(nodes[-1].args[0]), recorder.outputs)
    return Trace(nodes[:-1], constants, outputs, frozenset(recorder.custom_functions))


def origin_of(node: Node) -> Origin:
    return node.meta.get(_ORIGIN) or Origin("forward", "", range(0), None)


class _Recorder:
    """Runs the step under make_fx and marks every node with its origin."""

    def __init__(self, step: LearningStep) -> None:
        self._step = step
        self.outputs: Any = None
        self.custom_functions: set[type] = set()

    def run(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Any) -> Any:
        with _Marker(_current_graph()) as marker, _module_paths(self._step.model, marker), _autocast_cache():

            def between(loss: Tensor) -> None:
                marker.phase = "backward"
                self.custom_functions.update(custom_functions(loss))

            made = self._step.run(parameters, buffers, batch, between)
        leaves, self.outputs = tree_flatten(made)
        return leaves


class _Marker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator below autograd, and marks the nodes that the tracer makes of it."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "forward"
        self.modules: list[str] = []
        self._graph = graph
        self._last_made = _last_sequence()
        self._last_belongs: int | None = None
        _mark_new(graph, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # Some calls, such as a query of the device, leave no node.
        if _ORIGIN not in next(iter(reversed(self._graph.nodes))).meta:
            _mark_new(self._graph, self._origin())
        return result

    def _origin(self) -> Origin:
        if self.phase == "backward":
            running = torch._C._current_autograd_node()
            if running is not None:  # None while gradients of several uses are added up: belongs to the last node
                self._last_belongs = running._sequence_nr()
            return Origin("backward", "", range(0), self._last_belongs)
        before, self._last_made = self._last_made, _last_sequence()
        made = range(before + 1, self._last_made + 1)
        return Origin("forward", self.modules[-1] if self.modules else "", made, None)


def _replay(recorded: fx.GraphModule) -> Callable[..., Any]:
    """Return a function that runs a recorded graph without writes and passes the origins on."""

    def run(*leaves: Any) -> Any:
        interpreter = _Functional(recorded, _current_graph())
        return torch.func.functionalize(interpreter.run, remove="mutations")(*leaves)

    return run


class _Functional(fx.Interpreter):
    """Runs a recorded graph node by node and marks the nodes that the tracer makes of each."""

    def __init__(self, recorded: fx.GraphModule, graph: fx.Graph) -> None:
        super().__init__(recorded)
        self._graph = graph
        _mark_new(graph, None)

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        _mark_new(self._graph, n.meta.get(_ORIGIN))
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is _HIDES_WRITES and args[5] and args[3] is not None:
            # It writes the running statistics; this operator declares it and is the same kernel.
            target = _aten._native_batch_norm_legit.default
        if _fills_at_random(target) and not args[0].is_contiguous():
            # Its functional form makes a contiguous tensor; this view keeps the memory order, and with it the kernels
            # that read the tensor and the element that gets each random number.
            super().call_function(target, (_in_memory_order(args[0]), *args[1:]), kwargs)
            return args[0]
        return super().call_function(target, args, kwargs)


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.target is _HIDES_WRITES or (schema is not None and schema.is_mutable)


def _fills_at_random(target: Any) -> bool:
    overload = isinstance(target, torch._ops.OpOverload)
    return overload and target._schema.is_mutable and torch.Tag.nondeterministic_seeded in target.tags


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Return a view of a tensor whose last dimension has the smallest stride."""
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dim: -tensor.stride()[dim]))


def _check_repeatable(node: Node, model: str, unrolled: bool, parameters: Collection[Node]) -> None:
    """Refuse operators that a graph could not repeat faithfully."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    if origin_of(node).phase == "backward" and torch.Tag.nondeterministic_seeded in node.target.tags:
        raise refusal(
            model,
            f"draws random numbers in its backward pass ({node.target}), where activation checkpointing would "
            "draw those of the forward pass again",
            "take dropout out of what is checkpointed",
        )
    if node.target in _UNHOLDABLE or (unrolled and node.target is _aten.mkldnn_rnn_layer.default):
        raise refusal(model, f"calls {node.target}, which keeps or changes memory unseen", "use a layer of torch.nn")
    bases = [_base(written) for written in _written(node)]
    if any(base in parameters for base in bases):
        raise refusal(model, f"changes a parameter in place ({node.target})", "keep what changes in a buffer")
    if any(base.op == "get_attr" for base in bases):
        raise refusal(
            model,
            f"writes to a tensor that is neither a buffer nor an input ({node.target})",
            "register it with register_buffer",
        )


def _written(node: Node) -> Iterator[Node]:
    """Iterate over the arguments that a node writes to."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for position, parameter in enumerate(node.target._schema.arguments):
        argument = node.args[position] if position < len(node.args) else node.kwargs.get(parameter.name)
        if parameter.alias_info is not None and parameter.alias_info.is_write:  # of several tensors by a _foreach one
            yield from (each for each in tree_leaves(argument) if isinstance(each, Node))


def _base(node: Node) -> Node:
    """Return the node that owns the memory of a chain of views."""
    while node.args and isinstance(node.args[0], Node):
        returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
        if node.target is not operator.getitem and not any(each.alias_info for each in returns):
            break
        node = node.args[0]
    return node


def _current_graph() -> fx.Graph:
    mode: Any = get_proxy_mode()
    graph: fx.Graph = mode.tracer.graph
    return graph


def _mark_new(graph: fx.Graph, origin: Origin | None) -> None:
    """Set the origin of every node added since the last call. Done at once: tracing later removes nodes."""
    for node in itertools.takewhile(lambda node: _ORIGIN not in node.meta, reversed(graph.nodes)):
        node.meta[_ORIGIN] = origin


def _last_sequence() -> int:
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    return number - 1


def custom_functions(loss: Tensor) -> set[type]:
    """Return the user's `torch.autograd.Function` classes in a loss's autograd graph."""
    found, seen, waiting = set(), set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        function = getattr(type(node), "_forward_cls", None)
        if function is not None:
            found.add(function)
    return found


@contextlib.contextmanager
def _module_paths(model: nn.Module, marker: _Marker) -> Iterator[None]:
    """Keep `marker.modules` the stack of running modules."""

    def entering(path: str) -> Callable[..., None]:
        return lambda *_: marker.modules.append(path)

    def leaving(*_: Any) -> None:
        marker.modules.pop()

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(entering(path), prepend=True))
        handles.append(module.register_forward_hook(leaving, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _own_kernels(step: nn.Module, unrolled: bool) -> Iterator[None]:
    """Keep torch from dispatching to library kernels that a graph cannot hold or that are not wanted."""
    # oneDNN's recurrent layers become matrix products where they are `unrolled`. cuDNN's batch norm writes the running
    # statistics undeclared, so torch's own is used. Convolutions choose their library at run time.
    onednn, cudnn = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    products = unrolled and any(isinstance(module, nn.RNNBase) for module in step.modules())
    torch._C._set_mkldnn_enabled(onednn and not products)
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch._C._set_cudnn_enabled(cudnn)


@contextlib.contextmanager
def _autocast_cache() -> Iterator[None]:
    """Let autocast cast a weight once per step, as in eager mode; make_fx would cast it at every use."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(enabled)
