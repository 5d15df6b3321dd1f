"""Captured learning tasks: which batch shapes are captured, how long captures are valid, and which are compiled."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

import bow.graph
from bow.compiling import cache_folder
from bow.data import Batch
from bow.engines.batches import FlatBatch
from bow.engines.frozen import FrozenValues, generators_kept, is_torchs_own
from bow.engines.outcome import LearningConfig
from bow.engines.task import Step, autocast
from bow.errors import CaptureError, DataError, GraphError, RuntimeUnavailableError, reason
from bow.files import JsonCache
from bow.graph import Operator, StepGraph, capture
from bow.graph.kinds import has_recurrent_layer
from bow.graph.operator import TensorSpec
from bow.interruption import Interruption
from bow.replicas import LearnerGroup
from bow.runtime.loading import content_hash
from bow.runtime.region import Region, check_compilable, compile_region, is_compiled

MAX_SHAPES = 8  # batch shapes to capture; others run uncaptured
MAX_CHANGES = 8  # of frozen Python values; after more of them, nothing is captured any more
STEPS = "steps"  # folder of step graphs in bow's cache
MAX_SEEN = 1000  # shapes seen once that are remembered

Captured = TypeVar("Captured")


class CaptureCache(Generic[Captured]):
    """Captures by batch shape, valid until a Python value that the step reads changes."""

    def __init__(self, settings: LearningConfig, model: Callable[[], nn.Module], most: int = MAX_SHAPES) -> None:
        self._step = settings.task_step
        self._usual = settings.batch_size
        self._most = most
        self._model = model
        self._captured: dict[Hashable, Captured] = {}
        # As text, equal in every process: a resumed training captures the same shapes.
        self._chosen: list[str] = []  # captured, or to be captured again at the next batch
        self._unfit: set[str] = set()
        self._seen: dict[str, int] = {}  # round of the first occurrence
        self._frozen: FrozenValues | None = None
        self._num_changes = 0
        self.num_captures = 0  # captures so far
        self.newest: Hashable = None  # the shape captured last
        self.refused: str | None = None  # why nothing is captured any more

    def __contains__(self, shape: object) -> bool:
        return shape in self._captured

    def __getitem__(self, shape: Hashable) -> Captured:
        return self._captured[shape]

    @property
    def generators(self) -> list[Any]:
        return self._frozen.generators if self._frozen is not None else []

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors that the step reads besides the batch and the model's parameters and buffers."""
        return self._frozen.tensors if self._frozen is not None else []

    @property
    def state(self) -> dict[str, Any]:
        shapes = {"chosen": list(self._chosen), "unfit": sorted(self._unfit), "seen": list(self._seen)}
        return {**shapes, "changes": self._num_changes}

    def load(self, state: Mapping[str, Any]) -> None:
        self.clear()
        self._chosen, self._unfit = list(state["chosen"]), set(state["unfit"])
        self._seen = dict.fromkeys(state["seen"], -1)
        self._num_changes = int(state["changes"])

    def clear(self) -> None:
        """Drop all captures; their shapes are captured again at the next batch."""
        self._captured.clear()
        self._frozen = None

    def is_first(self, shape: Hashable) -> bool:
        """Return whether this shape is the first to be captured, before any value has changed."""
        return not self._num_changes and self._chosen[:1] in ([], [repr(shape)])

    def drop_if_changed(self) -> bool:
        name = self._frozen.changed() if self._frozen is not None else None
        if name is None:
            return False
        self.clear()
        self._chosen.clear()
        self._num_changes += 1
        if self._num_changes > MAX_CHANGES:
            self.refused = f"{name!r} (a Python value of the step) changes too often; every change needs a new capture"
        return True

    def wants(self, shape: Hashable, leaves: Sequence[Any], round_index: int) -> bool:
        """Return whether to capture a shape: the first one at once, others at their second occurrence."""
        # Short batches, such as the data's last one, are never captured, not even first after a resume.
        key = repr(shape)
        if self.refused is not None or shape in self._captured or key in self._unfit:
            return False
        if self._usual is not None:
            lengths = (len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim())
            if next(lengths, self._usual) < self._usual:
                return False
        if len(self._seen) > MAX_SEEN:
            self._seen.clear()
        seen = self._seen.setdefault(key, round_index) < round_index
        return not self._chosen or key in self._chosen or (seen and len(self._chosen) < self._most)

    def add(self, shape: Hashable, capture: Callable[[FrozenValues], Captured]) -> None:
        frozen = self._frozen or FrozenValues(self._step, self._model())
        captured = _without_draws(frozen, capture)
        if frozen.changed():  # the step has filled a cache: capture again with it
            frozen = FrozenValues(self._step, self._model())
            captured = _without_draws(frozen, capture)
        if name := frozen.changed():
            raise CaptureError(f"the step changes {name!r} in Python, which a replayed graph does not; use a buffer")
        self._captured[shape] = captured
        if repr(shape) not in self._chosen:
            self._chosen.append(repr(shape))
        self.newest = shape
        self.num_captures += 1
        self._frozen = self._frozen or frozen

    def refuse(self, shape: Hashable, error: Exception) -> None:
        """Mark a shape as impossible to capture; if none is captured, stop capturing."""
        key = repr(shape)
        self._chosen = [each for each in self._chosen if each != key]
        if self._chosen:
            self._unfit.add(key)
        else:
            self.refused = reason(error)


def _without_draws(frozen: FrozenValues, capture: Callable[[FrozenValues], Captured]) -> Captured:
    with generators_kept(frozen.generators) as have_drawn:
        captured = capture(frozen)
        if have_drawn():
            raise CaptureError("the step draws random numbers from Python or NumPy; draw them with torch")
    return captured


# Compile a learning task, which takes half a minute, if running it operator by operator would take this long in all.
# Estimated from FLOPs and operators at the rates below, not timed, so that the same training always runs alike.
COMPILING_PAYS_S = 120

# Expected time of compiling: constant, per operator, per repeated operator, and number of different operators (large
# graphs mostly repeat theirs); on two cores of 2026 (LeNet 14 s, ResNet-8 23 s, an LSTM 34 s).
COMPILE_S, COMPILE_OPERATOR_S, COMPILE_REPEATED_S, MOST_DIFFERENT = 10.0, 0.1, 0.0085, 100

FLOPS_PER_S = 20e9
OPERATOR_S = 5e-6

# Whether the caller has autocast on; structure of the batch; shape, strides and dtype of every tensor.
Shape: TypeAlias = tuple[Any, ...]
NO_SHAPE: Shape = ()


@dataclass(frozen=True)
class CapturedTask:
    """A learning task for batches of one shape."""

    graph: StepGraph
    region: Region | None  # the compiled task; None: runs operator by operator


class CapturedTasks(CaptureCache[CapturedTask]):
    """Step graphs of a training's learning task, one per captured batch shape."""

    def __init__(
        self, group: LearnerGroup, settings: LearningConfig, warn: Callable[[str], None], most: int = MAX_SHAPES
    ) -> None:
        super().__init__(settings, lambda: group.learners[0].module, most)
        self._group = group
        self._settings = settings
        self._warn = warn
        self._traced_step = with_autocast(settings.task_step, group.device, settings.engine.precision)
        self.kept = KeptGraphs()
        self._compilable: Callable[[], StepGraph] | None = None
        self._has_switched = False  # to the compiled task, in the middle of a training

    @property
    def any_compiled(self) -> bool:
        return any(task.region is not None for task in self._captured.values())

    @property
    def compilable(self) -> StepGraph | None:
        """The step graph to compile; None if nothing captured can be compiled."""
        task = next(iter(self._captured.values()), None)
        if task is None or self._num_changes:
            return None
        try:
            graph = task.graph if self._compilable is None else self._compilable()
            check_compilable(graph)
        except (CaptureError, RuntimeUnavailableError):
            return None
        return graph

    @property
    def state(self) -> dict[str, Any]:
        return {**super().state, "switched": self._has_switched}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        if state.get("switched"):
            self._has_switched, self._settings = True, self._settings.compiled(True)

    def by_learner(
        self, batches: Sequence[Batch | None], shapes: Sequence[Shape | None], round_index: int
    ) -> list[CapturedTask] | None:
        """Return every learner's task, any other's where it has no batch; None if one has to run in `eager`."""
        present = {shape: batch for shape, batch in zip(shapes, batches, strict=True) if shape is not None}
        for shape, batch in present.items():
            self._see_to(shape, batch, round_index)
        found = [shape for shape in present if shape in self]
        if len(found) < len(present) or not found:
            return None
        return [self[found[0] if shape is None else shape] for shape in shapes]

    def _see_to(self, shape: Shape, batch: Batch, round_index: int) -> None:
        if shape is NO_SHAPE:
            self.refused = "a batch contains something that is not a dense tensor"
        elif self.wants(shape, tree_leaves(batch), round_index):
            try:
                self.add(shape, lambda frozen: self._capture(batch, self.is_first(shape), frozen))
            except (CaptureError, DataError) as error:
                self.refuse(shape, error)
                if self.refused is None:
                    self._warn(f"batches of another shape cannot be captured ({reason(error)}); they run in eager")

    def invalidate_disk_cache(self, shape: Shape) -> bool:
        """Drop all captures if the one for this shape is from the disk cache, and not trusted; return whether it is."""
        if not self.kept.invalidate_disk_cache(shape):
            return False
        self.clear()
        return True

    def _capture(self, batch: Batch, compiles: bool, frozen: FrozenValues) -> CapturedTask:
        """Capture the task for a batch; recurrent layers are unrolled if it is compiled or has a schedule."""
        settings = self._settings
        has_schedule = settings.schedule is not None
        graph = self._graph(batch, frozen, unrolled=has_schedule or (compiles and settings.engine.compile))
        changed_buffers(graph)
        if not compiles or has_schedule:  # a region is one operator
            return CapturedTask(graph, None)
        self._compilable = lambda: graph
        if any(map(has_recurrent_layer, graph.operators)):
            self._compilable = functools.cache(functools.partial(self._graph, _like(batch), frozen, unrolled=True))
        if settings.engine.compile or compiling_pays(graph, settings.rounds):
            try:
                unrolled = self._compilable()
                return CapturedTask(unrolled, compile_region(unrolled))
            except (RuntimeUnavailableError, CaptureError) as error:
                if not Interruption.pending:
                    self._warn(f"the learning task is not compiled ({reason(error)}); it runs operator by operator")
        return CapturedTask(graph, None)

    def _graph(self, batch: Batch, frozen: FrozenValues, *, unrolled: bool) -> StepGraph:
        model = self._group.learners[0].module
        has_layers = any(isinstance(module, nn.RNNBase) for module in model.modules())
        settings = self._settings.engine.precision, self._settings.engine.accumulate, unrolled and has_layers
        shape = shape_of(batch)
        key = self.kept.key(model, (shape, *settings), frozen)
        graph = self.kept.find(key, shape)
        if unrolled and graph is not None and any(map(has_recurrent_layer, graph.operators)):
            graph = None  # from a layer that is no module, which the key does not cover
        if graph is None:
            graph = capture(model, batch, step=self._traced_step, unrolled=unrolled)
            if frozen.changed() is None and not graph.constants:  # which `frozen` may not have found
                self.kept.store(key, graph)
        return graph


def _like(batch: Batch) -> Batch:
    return tree_map_only(Tensor, lambda tensor: TensorSpec.of(tensor).empty(tensor.device), batch)


def shape_of(batch: Batch) -> Shape:
    """Return the key of a batch's step graph; `NO_SHAPE` if it cannot have one."""
    signature = FlatBatch.of(batch, strides=True).signature
    return NO_SHAPE if signature is None else (torch.is_autocast_enabled("cpu"), *signature)


def changed_buffers(graph: StepGraph) -> list[str]:
    """Return the buffers that a step writes to; raise if it changes the shape or dtype of one."""
    changed = [name for name, value in graph.new_buffers.items() if value != graph.buffers[name]]
    for name in changed:
        before, after = graph.values[graph.buffers[name]], graph.values[graph.new_buffers[name]]
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise CaptureError(f"the step changes buffer {name!r} from {before} to {after}; keep its shape and dtype")
    return changed


def expected_compile_s(graph: StepGraph) -> float:
    """Return the expected seconds of compiling; 0 if the result is cached."""
    if is_compiled(graph):
        return 0.0
    count = len(graph.operators)
    return COMPILE_S + COMPILE_OPERATOR_S * min(count, MOST_DIFFERENT) + COMPILE_REPEATED_S * count


def compiling_pays(graph: StepGraph, rounds: int | None) -> bool:
    if rounds is None or any(_normalises_maps(graph, operator) for operator in graph.operators):
        return False
    seconds = graph.flops / FLOPS_PER_S + len(graph.operators) * OPERATOR_S
    return rounds * seconds >= COMPILING_PAYS_S


def _normalises_maps(graph: StepGraph, operator: Operator) -> bool:
    """Return whether this is batch norm of images, which torch's compiler slows down on some processors."""
    made = operator.results[0] if "batch_norm" in operator.kind and operator.phase == "forward" else None
    return made is not None and len(graph.values[made].shape) > 2


def with_autocast(step: Step, device: torch.device, precision: str | None) -> Step:
    if precision is None:
        return step

    def run(model: nn.Module, batch: Batch) -> Any:
        with autocast(device, precision):
            return step(model, batch)

    return run


class KeptGraphs:
    """Disk cache of step graphs, shared by trainings of the same model."""

    # Capturing imports torch's compiler and traces the step, which takes two seconds; reading a graph takes
    # milliseconds. The key covers everything that capturing reads: the code of step and model and the values they name
    # (`FrozenValues.text`), parameters, buffers and modules, the batch's shape, torch's settings, versions, the
    # machine. Anything it misses is found by the live check in its first rounds. Graphs with operators of other
    # libraries are not cached: their implementations cannot be described.

    def __init__(self) -> None:
        self._found: dict[Any, set[str]] = {}  # by shape, until the training finds its graph equal to the step
        self._distrusted = False

    def key(self, model: nn.Module, shape: Any, frozen: FrozenValues) -> str | None:
        """Return the key of a step graph; None if it cannot be described."""
        text = None if self._distrusted else frozen.text()
        return None if text is None else content_hash(_recipe(), text, repr(shape), *_model(model), *_settings())

    def find(self, key: str | None, shape: Any) -> StepGraph | None:
        graph = None if key is None or (cache := _cache()) is None else cache.find(key, _read)
        if graph is not None and key is not None:
            self._found.setdefault(shape, set()).add(key)
        return graph

    def store(self, key: str | None, graph: StepGraph) -> None:
        if key is not None and _is_torchs_own(graph) and (cache := _cache()) is not None:
            with contextlib.suppress(OSError):
                cache.store(key, graph.to_json())

    def trust(self, shape: Any) -> None:
        self._found.pop(shape, None)

    def invalidate_disk_cache(self, shape: Any) -> bool:
        """If one was found for this shape, delete all that are not trusted and disable the cache; return whether."""
        if shape not in self._found:
            return False
        found, self._found, self._distrusted = self._found, {}, True
        for key in set().union(*found.values()):
            if (cache := _cache()) is not None:
                cache.path(key).unlink(missing_ok=True)
        return True


def _cache() -> JsonCache | None:
    try:
        return JsonCache(cache_folder() / STEPS)
    except RuntimeUnavailableError:  # no cache folder
        return None


def _read(text: str) -> StepGraph | None:
    try:
        graph = StepGraph.from_json(text)
    except GraphError:
        return None
    return graph if _is_torchs_own(graph) else None


def _is_torchs_own(graph: StepGraph) -> bool:
    return all(is_torchs_own(operator.kind) for operator in graph.operators)


@functools.cache
def _recipe() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(Path(bow.graph.__path__[0]).glob("*.py")))


def _model(model: nn.Module) -> Iterator[str]:
    known: dict[int, int] = {}
    for kind in (model.named_parameters, model.named_buffers):
        for name, tensor in kind(remove_duplicate=False):
            yield f"{name} {_tensor(tensor)} {known.setdefault(id(tensor), len(known))}"
    for name, module in model.named_modules(remove_duplicate=False):
        yield f"{name} {type(module).__module__}.{type(module).__qualname__} {module.training}"


def _tensor(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.stride()} {tensor.dtype} {tensor.device} {tensor.requires_grad}"


def _settings() -> Iterator[str]:
    """Yield torch's settings that decide which operators a step calls."""
    yield str(torch.get_default_dtype())
    yield str(torch.backends.mkldnn.enabled)
    yield str(torch.are_deterministic_algorithms_enabled())
    yield f"{torch._C._get_flash_sdp_enabled()} {torch._C._get_math_sdp_enabled()}"
    yield str(torch.get_autocast_dtype("cpu"))
