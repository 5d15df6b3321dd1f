"""Figure 5.6 of Budea, 2019: one learner's operators on n streams, as TensorFlow places them, against n learners."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.branches import branch_schedule
from benchmarks.gpu.comparisons import NEVER
from benchmarks.gpu.parts import Context
from benchmarks.gpu.racing import Race, Subject
from benchmarks.trainings import LEARNING_RATE, MOMENTUM, WARM_UP, branch
from bow.engines import step_from_loss
from bow.graph import StepGraph
from bow.runtime.streams import StreamRuntime
from bow.schedule import Schedule
from bow.schedule.profiler import BoundStep
from bow.schedule.profiler.device import bind_on
from bow.sync import SMA

STREAMS = (1, 2, 4, 8)
MODELS = (("logistic", 16), ("lenet", 16))


class SpreadTraining:
    """One learner whose operators go to several streams by a schedule; SGD behind them, on the first one."""

    def __init__(
        self,
        subject: Subject,
        graph: StepGraph,
        schedule: Schedule,
        captured: bool,
    ) -> None:
        device = self._device = subject.machine.device
        self._streams = [device.stream(f"operators {index}") for index in range(len(schedule.threads))]
        self._batch_size = subject.batch_size
        self._graph: Any = None
        with device.issuing():
            branch(device, self._streams)
            with device.on(self._streams[0]):
                self._model = model = subject.workload.model().to(device.torch_device)
                self._feed = subject.feed(device)
                self._batch = self._feed.next()
                self._parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
                self._buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
                self._momenta = [torch.zeros_like(p) for p in self._parameters.values()]
        self._runtime = StreamRuntime(graph, schedule, device, self._streams)
        if captured:
            with device.issuing(), torch.no_grad():
                for _ in range(WARM_UP):
                    self._step()
                self._runtime.close()
                with device.capture(self._streams[0]) as self._graph:
                    self._step()

    engine = None
    epochs = 0

    @property
    def model(self) -> torch.nn.Module:
        return self._model

    def __call__(self) -> int:
        with torch.no_grad():
            with self._device.on(self._streams[0]):
                self._feed.into(*self._batch)
                if self._graph is not None:
                    self._graph.replay()
            if self._graph is None:
                self._step()
        return self._batch_size

    def close(self) -> None:
        """Give memory back."""
        if self._graph is not None:
            self._graph.reset()
        self._runtime.close()

    def _step(self) -> None:
        outputs = self._runtime.run(self._parameters, self._buffers, self._batch)
        with self._device.on(self._streams[0]):
            parameters = list(self._parameters.values())
            gradients = [outputs.gradients[name] for name in self._parameters]
            torch._foreach_mul_(self._momenta, MOMENTUM)
            torch._foreach_add_(self._momenta, gradients)
            torch._foreach_sub_(parameters, self._momenta, alpha=LEARNING_RATE)
            for name, buffer in outputs.buffers.items():
                self._buffers[name].copy_(buffer)


def subject_of(race: Race) -> BoundStep:
    """The step that contestants run, on the device, captured from a model of its own."""
    machine, workload = race.context.machine, race.subject.workload
    batch = tuple(part[: race.batch_size] for part in race.subject.data)
    found = bind_on(machine.device, workload.model(), batch, step_from_loss(workload.loss))
    machine.synchronize()
    return found


def measure(context: Context) -> None:
    """For each number of streams: one learner spread over them, and as many learners, without averaging."""
    groups: list[dict[str, Any]] = []
    config = context.config
    for model, batch_size in MODELS:
        if groups and not context.time.allows(5):
            context.cut(f"{model}: left out")
            continue
        race = Race(context, model, batch_size)
        graph = subject_of(race).graph
        for count in STREAMS if not config.fake else STREAMS[:2]:
            for captured in (False, True):
                name = f"one learner on {count} streams{', as a graph' if captured else ''}"
                race.other(name, 1, spread(race, graph, branch_schedule(graph, count), captured))
            race.bow(f"{count} learners", count, engine="graph", sync=SMA(every=NEVER))
        race.run(config.repeats, config.stint_s)
        race.close()
        groups.append({key: context.findings[key] for key in ("model", "batch_size", "contestants")})
        context.record(groups=groups)


def spread(race: Race, graph: StepGraph, schedule: Schedule, captured: bool) -> Callable[[], SpreadTraining]:
    """What makes a contestant whose operators are spread over streams."""
    return functools.partial(SpreadTraining, race.subject, graph, schedule, captured=captured)
