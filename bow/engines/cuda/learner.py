"""One learner on a device with streams: its stream, its random numbers, its learning task as a graph."""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from bow.data import Batch, Indexed
from bow.devices import CapturedGraph, Event, Kernels, Stream, StreamDevice
from bow.engines.batches import FlatBatch
from bow.engines.captured import changed_buffers
from bow.engines.eager import LearningTasks
from bow.engines.live_check import Expected, LiveCheck
from bow.engines.random import DEFAULT_GENERATOR
from bow.engines.task import Learned, Step
from bow.errors import CaptureError, GraphError
from bow.graph import StepGraph
from bow.graph import capture as capture_step
from bow.replicas import Learner, LearnerGroup, ParameterLayout, buffer_slots, buffer_state, load_buffers
from bow.runtime.streams import StreamRuntime
from bow.schedule import Schedule


class SpreadTask:
    """One learner's learning task on batches of one shape: a step graph on several streams, from the first and back."""

    # The gradient goes to the learner's row of `G`, buffers are written in place, and random numbers are those of the
    # device's generator, in the order of issue.

    def __init__(
        self,
        device: StreamDevice,
        graph: StepGraph,
        schedule: Schedule,
        streams: Sequence[Stream],
        learner: Learner,
        layout: ParameterLayout,
    ) -> None:
        self._runtime = StreamRuntime(graph, schedule, device, streams)
        self._module = learner.module
        self._parameters: dict[str, Tensor] = dict(learner.module.named_parameters())
        slots = [(name, slot) for slot in layout.slots for name in slot.names if name in graph.gradients]
        self._trained = [name for name, _ in slots]  # of a tied parameter, one name
        self._gradients = [slot.of(learner.gradient) for _, slot in slots]
        self._changed = changed_buffers(graph)

    def run(self, batch: Batch) -> Learned:
        """Issue the task up to the gradient; the first stream is the current one."""
        buffers = dict(self._module.named_buffers())
        try:
            made = self._runtime.run(self._parameters, buffers, batch)
        except GraphError as error:
            # The caller explains out-of-memory errors, and failed assertions do not concern the operator.
            if isinstance(error.__cause__, (torch.OutOfMemoryError, AssertionError)):
                raise error.__cause__ from None
            raise
        torch._foreach_copy_(self._gradients, [made.gradients[name] for name in self._trained])
        for name in self._changed:
            buffers[name].copy_(made.buffers[name])
        return Learned(made.loss, made.metrics)

    def close(self) -> None:
        self._runtime.close()


WARM_UP = 3  # learning tasks to run before a capture: libraries choose algorithms and allocate workspaces


@dataclass
class IssuedTask:
    """Results of a learning task, on the device."""

    results: Tensor  # [loss, finite, metrics...]; the sum of the gradient is second where `Kernels.sgd_row` steps
    metrics: list[str]  # names


@dataclass
class LearnerGraph:
    """A learning task as a graph."""

    graph: CapturedGraph
    inputs: FlatBatch  # the batch that it reads, always at the same addresses
    task: IssuedTask
    draws: bool  # whether it draws random numbers
    spread: SpreadTask | None  # the captured task if spread over streams: the graph reads its tensors


class StreamLearner:
    """A learner on its own stream, and on further ones if its operators are spread over several."""

    def __init__(
        self,
        device: StreamDevice,
        kernels: Kernels,
        group: LearnerGroup,
        tasks: LearningTasks,
        index: int,
        steps: bool,
    ) -> None:
        self.index = index
        self.stream = device.stream(f"learner {index}")
        self.streams = [self.stream]  # all of its own; work on the others is joined on the first one
        self.finished_event = device.event(f"learner {index} has finished")
        self.shapes_without_random: set[Hashable] = set()  # batch shapes whose uncaptured tasks draw no random numbers
        self._device = device
        self._kernels = kernels
        self._group = group
        self._tasks = tasks
        self._steps = steps  # whether `Kernels.sgd_row` follows its learning tasks
        self._generator = device.generator()
        self._captured: dict[Hashable, LearnerGraph] = {}

    @property
    def module(self) -> nn.Module:
        return self._group.learners[self.index].module

    def learn(self, batch: FlatBatch, seed: Callable[[], int]) -> IssuedTask:
        """Issue the learning task on the current stream; its gradient goes to the learner's row of `G`."""
        captured = self._captured.get(batch.signature)
        if captured is None:
            with contextlib.nullcontext() if batch.signature in self.shapes_without_random else self._drawing(seed()):
                return self.run(batch)
        for static, leaf in zip(captured.inputs.leaves, batch.leaves, strict=True):
            static.copy_(leaf)
        if captured.draws:
            self._generator.manual_seed(seed())
        captured.graph.replay()
        return captured.task

    def open_streams(self, count: int) -> None:
        more = range(len(self.streams), count)
        self.streams += [self._device.stream(f"{self.stream.name}, stream {number}") for number in more]

    def capture(self, batch: FlatBatch, after_event: Event, spread: SpreadTask | None = None) -> None:
        with self._trying(after_event, capturing=True):
            inputs = self.inputs_like(batch)
            with _closing(spread):  # a capture must not wait for work outside of it
                draws = self.warm_up(inputs, spread=spread)
            try:
                with _closing(spread), self._device.capture(self.stream, self._generator) as graph:
                    task = self.run(inputs, spread)
            except BaseException:
                self._generator = self._device.generator()  # the old one belongs to the unfinished capture
                raise
        self._captured[batch.signature] = LearnerGraph(graph, inputs, task, draws, spread)

    def trace(self, batch: FlatBatch, after_event: Event, step: Step) -> StepGraph:
        """Trace the learning task for batches of this shape as a step graph; nothing is computed."""
        with self._trying(after_event):
            inputs = gathered(self.inputs_like(batch).batch, self._kernels)
            with _disable_current_modes():  # a device that watches operators must not see tracing
                return capture_step(self.module, inputs, step=step)

    def try_out(self, batch: FlatBatch, after_event: Event, *, strictly: bool) -> bool:
        """Run the learning task a few times, undo it, and return whether it draws random numbers."""
        with self._trying(after_event, capturing=strictly):
            return self.warm_up(self.inputs_like(batch), strictly=strictly)

    def probe(self, batch: FlatBatch, after_event: Event) -> list[str]:
        """Run the learning task once, undo it, and return the names of the step's metrics."""
        with self._trying(after_event), self._device.drawing_from(self._generator):
            return self.run(self.inputs_like(batch)).metrics

    def expect(
        self, live: LiveCheck, batch: FlatBatch, after_event: Event, seed: int, draws_as_eager: bool
    ) -> Expected:
        drew: list[bool] = []

        @contextlib.contextmanager
        def numbers() -> Iterator[Callable[[], bool]]:
            with self._drawing(seed):
                before = state_of(self._generator)
                yield lambda: draws_as_eager or not any(drew)
            drew.append(state_of(self._generator) != before)

        self.stream.wait(after_event)
        with self._device.on(self.stream), torch.autograd.set_multithreading_enabled(False):
            expected = live.run_step(self.index, gathered(self.inputs_like(batch).batch, self._kernels), numbers)
            self.stream.record(self.finished_event)
        return expected

    def inputs_like(self, batch: FlatBatch) -> FlatBatch:
        """Copy a batch into new tensors of the current stream, at addresses that stay."""
        device = self._device.torch_device
        leaves = [
            torch.empty(leaf.shape, dtype=leaf.dtype, device=device).copy_(leaf) if isinstance(leaf, Tensor) else leaf
            for leaf in batch.leaves
        ]
        return batch.with_leaves(leaves)

    def warm_up(self, batch: FlatBatch, *, strictly: bool = True, spread: SpreadTask | None = None) -> bool:
        """Run the learning task a few times on the current stream; return whether it draws random numbers."""
        before = state_of(self._generator)
        with self._device.drawing_from(self._generator):
            for _ in range(WARM_UP):
                self.run(batch, spread)
            with self._device.without_waiting() if strictly else contextlib.nullcontext():
                self.run(batch, spread)
        return state_of(self._generator) != before

    @contextlib.contextmanager
    def _drawing(self, seed: int) -> Iterator[None]:
        self._generator.manual_seed(seed)
        with DEFAULT_GENERATOR, self._device.drawing_from(self._generator):
            yield

    @contextlib.contextmanager
    def _trying(self, after_event: Event, *, capturing: bool = False) -> Iterator[None]:
        """Context of learning tasks outside of the training: changes to buffers and Python values are undone."""
        self.stream.wait(after_event)
        with self._device.on(self.stream):
            before = buffer_state(self.module)
            empty = [(owner, key) for _, (owner, key) in buffer_slots(self.module) if owner._buffers[key] is None]
            try:
                with python_values_restored(self.module, strictly=capturing):
                    yield
            finally:
                load_buffers(self.module, before)
                for owner, key in empty:
                    owner._buffers[key] = None
                self.stream.record(self.finished_event)

    def forget(self) -> None:
        for captured in self._captured.values():
            captured.graph.reset()
        self._captured.clear()

    def run(self, batch: FlatBatch, spread: SpreadTask | None = None) -> IssuedTask:
        """Issue every operator of the learning task, from the current stream on and back to it."""
        bound = [(owner, key, owner._buffers[key]) for _, (owner, key) in buffer_slots(self.module)]
        # Backward on this thread: torch's own thread for the device is shared by all learners.
        with torch.autograd.set_multithreading_enabled(False):
            inputs = gathered(batch.batch, self._kernels)
            if spread is not None:
                learned = spread.run(inputs)
            else:
                with contextlib.nullcontext() if self._tasks.is_compiled else fused_batch_counters(self.module):
                    learned = self._tasks.run(self.index, inputs)
        for owner, key, buffer in bound:
            assigned = owner._buffers[key]
            if assigned is not buffer and buffer is not None and assigned is not None:
                if (assigned.shape, assigned.dtype) != (buffer.shape, buffer.dtype):
                    continue
                buffer.copy_(assigned)  # a graph keeps reading the same address
                owner._buffers[key] = buffer
        row = self._group.learners[self.index].gradient
        finite = row.sum()
        if not self._steps:
            # Infinite minus infinite is NaN: one value covers loss and gradient.
            finite = finite + learned.loss
            finite = (finite - finite) == 0
        values = [learned.loss, finite, *learned.metrics.values()]
        dtype = torch.promote_types(row.dtype, torch.float32)
        results = torch.stack([value.to(row.device, dtype) for value in values])
        return IssuedTask(results, list(learned.metrics))


@contextlib.contextmanager
def python_values_restored(model: nn.Module, *, strictly: bool) -> Iterator[None]:
    """Restore plain values of modules after tasks outside of the training; `strictly` raises if they changed."""
    plain = (bool, int, float, str, type(None))
    held = [
        (vars(module), name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, plain) and not name.startswith("_")
    ]
    try:
        yield
        changed = [name for attributes, name, value in held if attributes.get(name) != value]
        if changed and strictly:
            what = f"the step changes {changed[0]!r} in Python"
            raise CaptureError(f"{what}, which a replayed graph does not; use a buffer")
    finally:
        for attributes, name, value in held:
            attributes[name] = value


class _Counter(Tensor):
    """A batch norm's number of batches: what is added is only noted, until anything else is done with it."""

    buffer: Tensor
    noted: int

    def read(self) -> Tensor:
        if self.noted:
            self.buffer.add_(self.noted)
            self.noted = 0
        return self.buffer

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.add_ and len(args) > 1 and type(args[1]) is int and not kwargs:
            args[0].noted += args[1]
            return args[0]
        args, kwargs = tree_map_only(_Counter, _Counter.read, (args, kwargs or {}))
        return func(*args, **kwargs)


@contextlib.contextmanager
def fused_batch_counters(model: nn.Module) -> Iterator[None]:
    """Count the batches of all batch norms by one operator after the learning task, not by one each."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    norms = [module for module in model.modules() if type(module) in kinds and module.momentum is not None]
    counters: list[tuple[nn.Module, _Counter]] = []
    for norm in norms:
        if (buffer := norm._buffers["num_batches_tracked"]) is not None:
            counter = buffer.as_subclass(_Counter)
            counter.buffer, counter.noted = buffer, 0
            norm._buffers["num_batches_tracked"] = counter
            counters.append((norm, counter))
    try:
        yield
    finally:
        for norm, counter in counters:
            if norm._buffers["num_batches_tracked"] is counter:
                norm._buffers["num_batches_tracked"] = counter.buffer
    for count in sorted({counter.noted for _, counter in counters} - {0}):
        torch._foreach_add_([counter.buffer for _, counter in counters if counter.noted == count], count)


def _closing(task: SpreadTask | None) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if task is None else contextlib.closing(task)


def gathered(batch: Batch, kernels: Kernels) -> Batch:
    return batch.gather(kernels.gather) if isinstance(batch, Indexed) else batch


def state_of(generator: torch.Generator) -> bytes:
    return bytes(generator.get_state().numpy())
