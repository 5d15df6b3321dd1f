"""Captured learning tasks: which shapes of batches have one, for how long it holds, and which are compiled."""

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
from bow.disk_cache import JsonCache
from bow.engines.batches import FlatBatch
from bow.engines.frozen import FrozenValues, generators_kept, is_torchs_own
from bow.engines.outcome import LearningConfig
from bow.engines.task import Batch, Step, autocast
from bow.errors import CaptureError, DataError, GraphError, RuntimeUnavailableError, reason
from bow.graph import Operator, StepGraph, capture
from bow.graph.kinds import has_recurrent_layer
from bow.replicas import LearnerGroup
from bow.runtime.loading import content_hash
from bow.runtime.region import Region, compile_region, is_compiled

MAX_SHAPES = 8
"""Batches of so many different shapes are captured, each when it comes for the second time; others run uncaptured."""

MAX_CHANGES = 8
"""Values in Python that a capture has frozen may change so often; then nothing is captured any more."""

STEPS = "steps"
"""The folder in bow's cache where step graphs are kept."""

MAX_SEEN = 1000
"""So many shapes that came once are remembered."""

Captured = TypeVar("Captured")


class CaptureCache(Generic[Captured]):
    """What was captured, by shape of batch, until a value in Python changes that the step reads."""

    def __init__(self, settings: LearningConfig, model: Callable[[], nn.Module], most: int = MAX_SHAPES) -> None:
        self._step = settings.task_step
        self._usual = settings.batch_size
        self._most = most
        self._model = model
        self._captured: dict[Hashable, Captured] = {}
        # In words, alike in every process: a training that goes on captures what it would have captured.
        self._chosen: list[str] = []  # what is captured, or was and will be when it comes again
        self._unfit: set[str] = set()
        self._seen: dict[str, int] = {}  # in which round first
        self._frozen: FrozenValues | None = None
        self._num_changes = 0
        self.num_captures = 0
        """How often something has been captured."""
        self.newest: Hashable = None
        """The shape that was captured last."""
        self.refused: str | None = None
        """Why nothing is captured any more."""

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._captured)

    def __contains__(self, shape: object) -> bool:
        return shape in self._captured

    def __getitem__(self, shape: Hashable) -> Captured:
        return self._captured[shape]

    @property
    def generators(self) -> list[Any]:
        """Random generators of the step's own."""
        return self._frozen.generators if self._frozen is not None else []

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors that the step reads and that are neither of the batch nor the model's parameters and buffers."""
        return self._frozen.tensors if self._frozen is not None else []

    @property
    def state(self) -> dict[str, Any]:
        """For checkpoints: which shapes are captured, cannot be, have come; how often values have changed."""
        shapes = {"chosen": list(self._chosen), "unfit": sorted(self._unfit), "seen": list(self._seen)}
        return {**shapes, "changes": self._num_changes}

    def load(self, state: Mapping[str, Any]) -> None:
        """Capture from now on what `state` says."""
        self.clear()
        self._chosen, self._unfit = list(state["chosen"]), set(state["unfit"])
        self._seen = dict.fromkeys(state["seen"], -1)
        self._num_changes = int(state["changes"])

    def clear(self) -> None:
        """Forget what was captured; the same shapes are captured at once when they come again."""
        self._captured.clear()
        self._frozen = None

    def is_first(self, shape: Hashable) -> bool:
        """Whether this is what is captured first, before values have changed."""
        return not self._num_changes and self._chosen[:1] in ([], [repr(shape)])

    def forget_if_changed(self) -> bool:
        """Forget what was captured if a value in Python that it has frozen has changed, and say whether that was so."""
        name = self._frozen.changed() if self._frozen is not None else None
        if name is None:
            return False
        self.clear()
        self._chosen.clear()
        self._num_changes += 1
        if self._num_changes > MAX_CHANGES:
            self.refused = f"{name!r} changes in Python again and again, and the step would be captured anew each time"
        return True

    def wants(self, shape: Hashable, leaves: Sequence[Any], round_index: int) -> bool:
        """Whether to capture for a shape: the first that comes, others when they come for the second time.

        None that is short, such as the data's last batch, which may be the first after a resume.
        """
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
        """Capture for a shape."""
        frozen = self._frozen or FrozenValues(self._step, self._model())
        captured = _without_draws(frozen, capture)
        if frozen.changed():  # what is computed once and kept is there now
            frozen = FrozenValues(self._step, self._model())
            captured = _without_draws(frozen, capture)
        if name := frozen.changed():
            raise CaptureError(f"the step changes {name!r} in Python, which a graph would not repeat; use a buffer")
        self._captured[shape] = captured
        if repr(shape) not in self._chosen:
            self._chosen.append(repr(shape))
        self.newest = shape
        self.num_captures += 1
        self._frozen = self._frozen or frozen

    def refuse(self, shape: Hashable, error: Exception) -> None:
        """A shape cannot be captured; where none is, nothing will be."""
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
            raise CaptureError("the step draws from a random generator of Python's or NumPy's; draw with torch")
    return captured


COMPILING_PAYS_S = 120
"""A learning task is compiled, which takes half a minute, when running it operator by operator would take so long in
all: by FLOPs and operators at the rates below, and not by the clock, so that the same training always runs alike."""

COMPILE_S, COMPILE_OPERATOR_S, COMPILE_REPEATED_S, MOST_DIFFERENT = 10.0, 0.1, 0.0085, 100
"""What compiling takes at all, and for each operator, on two cores of 2026 (LeNet 14 s, ResNet-8 23 s, an LSTM 34 s):
an expectation for those who plan. In large graphs most operators are repetitions, which take less."""

FLOPS_PER_S = 20e9
OPERATOR_S = 5e-6

Shape: TypeAlias = tuple[Any, ...]
"""Whether the caller has autocast on; how a batch is made up; shape, strides and dtype of every tensor."""

NO_SHAPE: Shape = ()


@dataclass(frozen=True)
class CapturedTask:
    """A learning task for batches of certain shapes."""

    graph: StepGraph
    region: Region | None
    """What runs it as a whole; None: operator by operator."""


class CapturedTasks(CaptureCache[CapturedTask]):
    """The learning task of a training as step graphs, one for each shape of batch that is worth it."""

    def __init__(
        self, group: LearnerGroup, settings: LearningConfig, tell: Callable[[str], None], most: int = MAX_SHAPES
    ) -> None:
        super().__init__(settings, lambda: group.learners[0].module, most)
        self._group = group
        self._settings = settings
        self._tell = tell
        self._traced_step = with_autocast(settings.task_step, group.device, settings.precision)
        self._kept = KeptGraphs()
        self._compilable: Callable[[], StepGraph] | None = None

    @property
    def any_compiled(self) -> bool:
        """Whether one of them is a compiled region."""
        return any(task.region is not None for task in self._captured.values())

    @property
    def compile_s(self) -> float | None:
        """Seconds that compiling may take, 0 where it was done before; None where nothing is captured that could be."""
        task = next(iter(self._captured.values()), None)
        if task is None:
            return None
        try:
            graph = task.graph if self._compilable is None else self._compilable()
        except CaptureError:
            return None
        if is_compiled(graph):
            return 0.0
        count = len(graph.operators)
        return COMPILE_S + COMPILE_OPERATOR_S * min(count, MOST_DIFFERENT) + COMPILE_REPEATED_S * count

    def by_learner(
        self, batches: Sequence[Batch | None], shapes: Sequence[Shape | None], round_index: int
    ) -> list[CapturedTask] | None:
        """The learning task of every learner, any other's where it has no batch; None if one has to run in `eager`."""
        present = {shape: batch for shape, batch in zip(shapes, batches, strict=True) if shape is not None}
        for shape, batch in present.items():
            self._see_to(shape, batch, round_index)
        found = [shape for shape in present if shape in self]
        if len(found) < len(present) or not found:
            return None
        return [self[found[0] if shape is None else shape] for shape in shapes]

    def _see_to(self, shape: Shape, batch: Batch, round_index: int) -> None:
        if shape is NO_SHAPE:
            self.refused = "a batch holds something that is no dense tensor"
        elif self.wants(shape, tree_leaves(batch), round_index):
            try:
                self.add(shape, lambda frozen: self._capture(batch, self.is_first(shape), frozen))
            except (CaptureError, DataError) as error:
                self.refuse(shape, error)
                if self.refused is None:
                    self._tell(f"batches of another shape cannot be captured ({reason(error)}); they run in eager")

    def distrust(self) -> bool:
        """Capture anew what an earlier training has captured, if that is what there is."""
        if not self._kept.distrust():
            return False
        self.clear()
        return True

    def _capture(self, batch: Batch, compiles: bool, frozen: FrozenValues) -> CapturedTask:
        """The learning task for a batch; recurrent layers are unrolled where that is compiled or has a schedule."""
        settings = self._settings
        has_schedule = settings.schedule is not None
        graph = self._graph(batch, frozen, unrolled=has_schedule or (compiles and settings.compile))
        changed_buffers(graph)
        if not compiles or has_schedule:  # a region is one operator
            return CapturedTask(graph, None)
        self._compilable = lambda: graph
        if any(map(has_recurrent_layer, graph.operators)):
            self._compilable = functools.cache(functools.partial(self._graph, _like(batch), frozen, unrolled=True))
        if settings.compile or compiling_pays(graph, settings.rounds):
            try:
                unrolled = self._compilable()
                return CapturedTask(unrolled, compile_region(unrolled))
            except (RuntimeUnavailableError, CaptureError) as error:
                self._tell(f"the learning task is not compiled ({reason(error)}); it runs operator by operator")
        return CapturedTask(graph, None)

    def _graph(self, batch: Batch, frozen: FrozenValues, *, unrolled: bool) -> StepGraph:
        """The step graph for a batch, as an earlier training has captured it or captured now."""
        model = self._group.learners[0].module
        has_layers = any(isinstance(module, nn.RNNBase) for module in model.modules())
        settings = self._settings.precision, self._settings.engine.accumulate, unrolled and has_layers
        key = self._kept.key(model, (shape_of(batch), *settings), frozen)
        graph = self._kept.find(key)
        if unrolled and graph is not None and any(map(has_recurrent_layer, graph.operators)):
            graph = None  # of a layer that is no module, which cannot be unrolled
        if graph is None:
            graph = capture(model, batch, step=self._traced_step, unrolled=unrolled)
            if frozen.changed() is None and not graph.constants:  # which may be tensors that nobody has come across
                self._kept.store(key, graph)
        return graph


def _like(batch: Batch) -> Batch:
    """Tensors like those of a batch, which are never written to and so take no memory."""

    def like(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    made: Batch = tree_map_only(Tensor, like, batch)
    return made


def shape_of(batch: Batch) -> Shape:
    """What sets batches apart for a step graph; `NO_SHAPE` where it cannot take one."""
    signature = FlatBatch.of(batch, strides=True).signature
    return NO_SHAPE if signature is None else (torch.is_autocast_enabled("cpu"), *signature)


def changed_buffers(graph: StepGraph) -> list[str]:
    """The buffers that a step writes to; it must not make something else of one than a tensor of its kind."""
    changed = [name for name, value in graph.new_buffers.items() if value != graph.buffers[name]]
    for name in changed:
        before, after = graph.values[graph.buffers[name]], graph.values[graph.new_buffers[name]]
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise CaptureError(
                f"the step makes {after} of buffer {name!r}, which was {before}; keep its shape and dtype"
            )
    return changed


def compiling_pays(graph: StepGraph, rounds: int | None) -> bool:
    """Whether compiling a learning task will have been worth its time."""
    if rounds is None or any(_normalises_maps(graph, operator) for operator in graph.operators):
        return False
    seconds = graph.flops / FLOPS_PER_S + len(graph.operators) * OPERATOR_S
    return rounds * seconds >= COMPILING_PAYS_S


def _normalises_maps(graph: StepGraph, operator: Operator) -> bool:
    """Whether this is batch norm of pictures, which torch's compiler makes slower: 0.82 to 0.94 in ResNet-8."""
    made = operator.results[0] if "batch_norm" in operator.kind and operator.phase == "forward" else None
    return made is not None and len(graph.values[made].shape) > 2


def with_autocast(step: Step, device: torch.device, precision: str | None) -> Step:
    """A step that computes in the precision that was asked for, however it is captured."""
    if precision is None:
        return step

    def run(model: nn.Module, batch: Batch) -> Any:
        with autocast(device, precision):
            return step(model, batch)

    return run


class KeptGraphs:
    """Step graphs on disk: what one training has captured, the next one of the same model finds.

    Capturing imports torch's compiler and traces the step, which takes two seconds; reading a graph takes milliseconds.
    A graph is kept under everything that capturing it reads: the code of step and model and the values that they name
    (`FrozenValues.text`), parameters, buffers and modules, the batch's shape, torch's settings, versions, the machine.
    What such a description may miss, the live check finds in its first rounds; then the step is captured anew. Graphs
    with operators of other libraries are not kept: what is registered for those is in no place that can be described.
    """

    def __init__(self) -> None:
        self._found: list[str] = []
        self._distrusted = False

    def key(self, model: nn.Module, shape: Any, frozen: FrozenValues) -> str | None:
        """What sets a step graph apart; None where that cannot be told."""
        text = None if self._distrusted else frozen.text()
        return None if text is None else content_hash(_recipe(), text, repr(shape), *_model(model), *_settings())

    def find(self, key: str | None) -> StepGraph | None:
        """The graph of a key; None where there is none, or it is damaged."""
        graph = None if key is None or (cache := _cache()) is None else cache.find(key, _read)
        if graph is not None and key is not None:
            self._found.append(key)
        return graph

    def store(self, key: str | None, graph: StepGraph) -> None:
        """Keep a graph, where there is room for it."""
        if key is not None and _is_torchs_own(graph) and (cache := _cache()) is not None:
            with contextlib.suppress(OSError):
                cache.store(key, graph.to_json())

    def distrust(self) -> bool:
        """Forget the graphs that were found and take no more; False where none was."""
        found, self._found, self._distrusted = self._found, [], True
        for key in found:
            if (cache := _cache()) is not None:
                cache.path(key).unlink(missing_ok=True)
        return bool(found)


def _cache() -> JsonCache | None:
    try:
        return JsonCache(cache_folder() / STEPS)
    except RuntimeUnavailableError:  # there is no folder for it
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
    """The code that captures."""
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
    """Settings of torch's that decide which operators a step calls."""
    yield str(torch.get_default_dtype())
    yield str(torch.backends.mkldnn.enabled)
    yield str(torch.are_deterministic_algorithms_enabled())
    yield f"{torch._C._get_flash_sdp_enabled()} {torch._C._get_math_sdp_enabled()}"
    yield str(torch.get_autocast_dtype("cpu"))
