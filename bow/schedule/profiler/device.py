"""Measure every operator of a step on a device with streams, and build policies for it."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bow.devices import CapturedGraph, StreamDevice
from bow.graph import Operator, capture
from bow.graph.execution import inputs_of, run_operator
from bow.graph.learning_step import Step
from bow.runtime.local import operators_of
from bow.schedule import OrderedSchedule
from bow.schedule.profiler.measuring import BoundStep, OperatorTime, Profile, ProfileCache, signature
from bow.schedule.profiler.policies import Policy
from bow.schedule.scheduler import DecisionRecorder, ListScheduler, critical_path, held_by_core
from bow.schedule.scheduler.protocol import simulate_operators
from bow.values import whole

WARM_UP, REPEATS = 3, 10
STREAMS = (2, 3, 4)  # numbers of streams worth trying
COPIES = 8
"""Copies of an operator in the timed graph: a single tiny kernel would be lost in the graph's launch."""


class Stopwatch(Protocol):
    """Measures a device's working time. Use it on the issuing thread and stream."""

    def mark(self) -> Any:
        """Mark the end of the work issued so far on the current stream."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks; blocks the host until the second."""


class HostStopwatch:
    """Host clock, read after synchronising: exact if work runs as soon as it is issued."""

    def __init__(self, device: StreamDevice) -> None:
        self._device = device

    def mark(self) -> float:
        """Synchronise with the current stream and read the clock."""
        over = self._device.event("a mark of the stopwatch")
        self._device.caller().record(over)
        over.synchronize()
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class CudaStopwatch:
    """GPU clock, by timing events in the stream: independent of what the host does meanwhile."""

    def mark(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def stopwatch_of(device: StreamDevice) -> Stopwatch:
    return CudaStopwatch() if device.torch_device.type == "cuda" else HostStopwatch(device)


def bind_on(device: StreamDevice, model: nn.Module, batch: Any, step: Step) -> BoundStep:
    """Capture a model's step with copies of all its tensors on a device, made by the caller's stream."""
    place = device.torch_device
    with device.issuing(), torch.no_grad():
        module = copy.deepcopy(model).to(place)
        there = tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device=place).copy_(tensor), batch)
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return BoundStep(capture(module, there, step=step), parameters, dict(module.named_buffers()), there)


def measure_on(
    device: StreamDevice,
    step: BoundStep,
    *,
    repeats: int = REPEATS,
    cache: bool = True,
    watch: Stopwatch | None = None,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure every operator on one stream of a device, captured as in training (Tang et al., 2018, section 4.2)."""
    # An operator is captured several times in a row, since kernels in a graph cost the time from one to the next, and
    # the graph is replayed right after another replay, so that the host's latency is hidden.
    whole("repeats", repeats)
    names = [signature(each, step.graph) for each in operators_of(step.graph)]
    store = ProfileCache(hardware_of(device))
    known = {key: found for key, found in store.read().items() if found.repeats >= repeats} if cache else {}
    if not {key for key, _ in known} >= set(names):
        if progress is not None:
            progress(f"{len(set(names))} different operators of {len(names)} on {device.torch_device}")
        watch = stopwatch_of(device) if watch is None else watch
        times = _Measuring(device, step, repeats, watch).by_signature(names)
        known = {(name, 1): found for name, found in times.items()}
        if cache:
            store.write(known)
    return Profile.of(step.graph, {1: tuple(known[name, 1] for name in names)}, hardware_of(device))


def hardware_of(device: StreamDevice) -> str:
    """Describe what times depend on besides operators: the device, and the versions of torch and CUDA."""
    place = device.torch_device
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else type(device).__name__
    return f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, stream"


def device_policies(step: BoundStep, profile: Profile, streams: Sequence[int] = STREAMS) -> list[Policy]:
    """Return policies for one stream and for several that shorten the simulated step (Tang et al., 2018)."""
    policies = [_critical_path(step, profile, 1)]
    for count in streams:
        policy = _critical_path(step, profile, count)
        if policy.predicted.makespan < policies[-1].predicted.makespan:
            policies.append(policy)
    return policies


def _critical_path(step: BoundStep, profile: Profile, streams: int) -> Policy:
    times, before = profile.nanoseconds(1), step.dependencies
    recorder = DecisionRecorder(ListScheduler(before, streams, critical_path(before, times).levels, stay=True))
    predicted = simulate_operators(recorder, lambda start: times[start.operator], names=step.kinds)
    name = "one stream" if streams == 1 else f"critical path on {streams} streams"
    return Policy(name, OrderedSchedule((1,) * streams, held_by_core(recorder.decisions, streams)), predicted)


class _Measuring:
    """Times operators on one stream, each with its actual inputs, at its place in the step."""

    def __init__(self, device: StreamDevice, step: BoundStep, repeats: int, watch: Stopwatch) -> None:
        self._device = device
        self._step = step
        self._repeats = repeats
        self._watch = watch
        # Streams of this priority are hardly used; those of learners are scarce.
        self._stream = device.stream("profile", high_priority=True)
        self._generator = device.generator()

    def by_signature(self, names: Sequence[str]) -> dict[str, OperatorTime]:
        step, graph, device = self._step, self._step.graph, self._device
        made = device.event("the caller has made what is profiled")
        device.caller().record(made)
        self._stream.wait(made)
        device.prepare_captures()
        found: dict[str, OperatorTime] = {}
        over = device.event("the profile is over")
        with torch.no_grad(), device.issuing(), device.on(self._stream), device.drawing_from(self._generator):
            live = inputs_of(graph, step.parameters, step.buffers, step.batch)
            for operator, name in zip(operators_of(graph), names, strict=True):
                if name not in found:
                    found[name] = self._time(operator, live)
                run_operator(operator, live, graph)
                for value in graph.last_uses[operator.index]:
                    live.pop(value, None)
        self._stream.record(over)
        over.synchronize()  # the caller may free the step's memory
        return found

    def _time(self, operator: Operator, live: Mapping[int, Tensor]) -> OperatorTime:
        if operator.is_view:
            return OperatorTime(0.0, 0.0, self._repeats)
        graph = self._step.graph
        for _ in range(WARM_UP):
            run_operator(operator, dict(live), graph)
        with self._device.capture(self._stream, self._device.generator()) as captured:
            for _ in range(COPIES):
                run_operator(operator, dict(live), graph)
        for _ in range(WARM_UP):
            captured.replay()
        found = OperatorTime.of([seconds / COPIES for seconds in self._replays(captured)])
        captured.reset()
        return found

    def _replays(self, captured: CapturedGraph) -> Iterator[float]:
        for _ in range(self._repeats):
            captured.replay()  # hides the host's latency: while it runs, the timed replay is issued
            begin = self._watch.mark()
            captured.replay()
            yield self._watch.seconds(begin, self._watch.mark())
