"""Measures every operator of a step on a device with streams."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bow.devices import CapturedGraph, StreamDevice
from bow.graph import Operator, StepGraph, capture
from bow.graph.execution import inputs_of, run_operator
from bow.graph.learning_step import Step
from bow.runtime.issue import operators_of
from bow.schedule.profiler.cache import Cache, signature
from bow.schedule.profiler.profile import OperatorTime, Profile
from bow.schedule.profiler.stopwatch import Stopwatch, stopwatch_of
from bow.schedule.profiler.subject import Subject
from bow.values import whole

WARM_UP = 3
REPEATS = 10
COPIES = 8
"""So often an operator stands in the graph that is timed: a tiny kernel alone would be lost in the graph's launch."""


def subject_on(device: StreamDevice, model: nn.Module, batch: Any, step: Step) -> Subject:
    """A model's step with copies of all its tensors on a device; the caller's stream has made them."""
    place = device.torch_device
    with device.issuing(), torch.no_grad():
        module = copy.deepcopy(model).to(place)
        there = tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device=place).copy_(tensor), batch)
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return Subject(capture(module, there, step=step), parameters, dict(module.named_buffers()), there)


def measure_on(
    device: StreamDevice,
    subject: Subject,
    *,
    repeats: int = REPEATS,
    cache: bool = True,
    watch: Stopwatch | None = None,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Measure what every operator takes on one stream of a device, captured as in training: the place `stream`.

    An operator is captured several times in a row, since a kernel in a graph costs the time from one to the next, and
    the graph is replayed behind another replay of itself, so that the host is not waited for. Operators of one
    signature are measured once, views cost nothing.

    Example:
        >>> from bow.testing import FakeDevice
        >>> device, batch = FakeDevice(), torch.randn(4, 3)
        >>> subject = subject_on(device, torch.nn.Linear(3, 1), batch, lambda model, batch: model(batch).mean())
        >>> measure_on(device, subject, repeats=2, cache=False).names[1]
        'aten.addmm.default'

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.2.
    """
    whole("repeats", repeats)
    operators = operators_of(subject.graph)
    names = [signature(operator, subject.graph) for operator in operators]
    store = Cache(hardware_of(device))
    known = {key: time for key, time in store.read().items() if time.repeats >= repeats} if cache else {}
    if not {key for key, _ in known} >= set(names):
        if progress is not None:
            progress(f"{len(set(names))} different operators of {len(names)} on {device.torch_device}")
        watch = stopwatch_of(device) if watch is None else watch
        times = _Measuring(device, subject, repeats, watch).by_signature(names)
        known = {(name, 1): time for name, time in times.items()}
        if cache:
            store.write(known)
    return Profile(
        names=tuple(operator.kind for operator in operators),
        modules=tuple(operator.module for operator in operators),
        times={1: tuple(known[name, 1] for name in names)},
        hardware=hardware_of(device),
    )


def hardware_of(device: StreamDevice) -> str:
    """What times depend on besides operators: the device, and the versions of torch and CUDA."""
    place = device.torch_device
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else type(device).__name__
    return f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, stream"


class _Measuring:
    """Times operators on one stream, each when a step has come to it and what it reads is there."""

    def __init__(self, device: StreamDevice, subject: Subject, repeats: int, watch: Stopwatch) -> None:
        self._device = device
        self._subject = subject
        self._repeats = repeats
        self._watch = watch
        # Streams of this priority are hardly used: those of learners are scarce.
        self._stream = device.stream("profile", high_priority=True)
        self._generator = device.generator()

    def by_signature(self, names: Sequence[str]) -> dict[str, OperatorTime]:
        """What operators with these signatures take."""
        subject, graph, device = self._subject, self._subject.graph, self._device
        made = device.event("the caller has made what is profiled")
        device.caller().record(made)
        self._stream.wait(made)
        device.prepare_captures()
        found: dict[str, OperatorTime] = {}
        over = device.event("the profile is over")
        with torch.no_grad(), device.issuing(), device.on(self._stream), device.drawing_from(self._generator):
            live = inputs_of(graph, subject.parameters, subject.buffers, subject.batch)
            for operator, name in zip(operators_of(graph), names, strict=True):
                if name not in found:
                    found[name] = self._time(operator, live)
                run_operator(operator, live, graph)
                for value in graph.last_uses[operator.index]:
                    live.pop(value, None)
        self._stream.record(over)
        over.synchronize()  # the caller may give the memory of the subject back
        return found

    def _time(self, operator: Operator, live: Mapping[int, Tensor]) -> OperatorTime:
        if operator.is_view:
            return OperatorTime(0.0, 0.0, self._repeats)
        graph = self._subject.graph
        for _ in range(WARM_UP):
            _run_apart(operator, live, graph)
        with self._device.capture(self._stream, self._device.generator()) as captured:
            for _ in range(COPIES):
                _run_apart(operator, live, graph)
        for _ in range(WARM_UP):
            captured.replay()
        found = OperatorTime.of([seconds / COPIES for seconds in self._replays(captured)])
        captured.reset()
        return found

    def _replays(self, captured: CapturedGraph) -> Iterator[float]:
        for _ in range(self._repeats):
            captured.replay()  # while it runs, the host issues the one that is timed
            begin = self._watch.mark()
            captured.replay()
            yield self._watch.seconds(begin, self._watch.mark())


def _run_apart(operator: Operator, live: Mapping[int, Tensor], graph: StepGraph) -> None:
    """Run an operator and forget what it makes."""
    run_operator(operator, dict(live), graph)
