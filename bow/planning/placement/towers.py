"""Data parallelism with the weights on a processor: synchronous or asynchronous towers."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal, TypeAlias

from bow.errors import SettingError
from bow.planning.placement.groups import SimulatedEvaluator
from bow.planning.simulator.step_model import TaskKind

Towers: TypeAlias = Literal["synchronous", "asynchronous"]

STEPS = 6  # steps simulated per tower; the first one is excluded from the mean, as in the paper


@dataclass(frozen=True)
class TowersResult:
    """Times of a simulation of towers."""

    step_s: float  # step time, one batch per tower
    computing_s: tuple[float, ...]  # by tower: computing time of its accelerator per step


@dataclass(frozen=True)
class _Layer:
    """Weights that are transferred together."""

    num_bytes: int  # of the weights, and also of their gradients
    ready_ns: int  # time from the start of computing to the end of their gradients
    update_ns: int  # on the processor


def towers(evaluator: SimulatedEvaluator, kind: Towers = "synchronous") -> TowersResult:
    """Simulate a replica of the network on each accelerator, with the weights on the first processor."""
    # The processor updates a layer once for all towers (synchronous) or once per tower, and sends it back. Channels and
    # the processor are first come, first served.
    if not evaluator.processors:
        raise SettingError("towers keep their weights on a CPU device, and the topology has none; add one")
    return _TowerSimulation(evaluator, kind == "synchronous").result()


class _TowerSimulation:
    def __init__(self, evaluator: SimulatedEvaluator, is_synchronous: bool) -> None:
        self._topology, self._home = evaluator.problem.topology, evaluator.processors[0]
        self._towers = evaluator.accelerators
        self._is_synchronous = is_synchronous
        self._computing_ns, self._layers = _tower(evaluator, self._towers[0], self._home)
        if not self._layers:
            raise SettingError("the network has no weights to train; towers have nothing to share")
        self._free_ns: dict[object, int] = defaultdict(int)
        self._began = [[0] for _ in self._towers]
        self._arrived: dict[tuple[str, int, int], int] = defaultdict(int)
        self._order = count()
        # time, order of the request, event, and its arguments (tower, step, layer)
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def result(self) -> TowersResult:
        for tower in range(len(self._towers)):
            self._compute(0, tower, 0)
        while self._events:
            now, _, event, arguments = heappop(self._events)
            event(now, *arguments)
        spans = [(began[-1] - began[1]) / (STEPS - 1) for began in self._began]
        return TowersResult(sum(spans) / len(spans) / 1e9, (self._computing_ns / 1e9,) * len(self._towers))

    def _schedule(self, at: int, event: Callable[..., None], *arguments: int) -> None:
        heappush(self._events, (at, next(self._order), event, arguments))

    def _compute(self, now: int, tower: int, step: int) -> None:
        for number, layer in enumerate(self._layers):
            self._schedule(now + layer.ready_ns, self._push, tower, step, number)

    def _push(self, now: int, tower: int, step: int, layer: int) -> None:
        """Send a layer's gradients to the processor."""
        self._schedule(self._transfer(now, self._towers[tower], self._home, layer), self._update, tower, step, layer)

    def _update(self, now: int, tower: int, step: int, layer: int) -> None:
        """Update a layer; with synchronous towers once the last gradients have arrived."""
        self._arrived["gradients", step, layer] += 1
        if self._is_synchronous and self._arrived["gradients", step, layer] < len(self._towers):
            return
        those = range(len(self._towers)) if self._is_synchronous else (tower,)
        end = self._occupy([self._home], now, self._layers[layer].update_ns * len(those))
        for each in those:
            self._schedule(end, self._pull, each, step, layer)

    def _pull(self, now: int, tower: int, step: int, layer: int) -> None:
        """Send the weights back."""
        self._schedule(self._transfer(now, self._home, self._towers[tower], layer), self._arrive, tower, step)

    def _arrive(self, now: int, tower: int, step: int) -> None:
        """Continue the tower once all its weights have arrived."""
        self._arrived["weights", tower, step] += 1
        if self._arrived["weights", tower, step] == len(self._layers):
            self._began[tower].append(now)
            if step + 1 < STEPS:
                self._compute(now, tower, step + 1)

    def _transfer(self, now: int, source: int, target: int, layer: int) -> int:
        duration = self._topology.transfer_ns(self._layers[layer].num_bytes, source, target)
        return self._occupy([("channel", number) for number in self._topology.route(source, target)], now, duration)

    def _occupy(self, places: Sequence[object], now: int, duration: int) -> int:
        end = max([now, *(self._free_ns[place] for place in places)]) + duration
        self._free_ns.update(dict.fromkeys(places, end))
        return end


def _tower(evaluator: SimulatedEvaluator, device: int, home: int) -> tuple[int, list[_Layer]]:
    """Return a tower's computing time, and its layers in the order in which their gradients become available."""
    result = evaluator.result((device,) * len(evaluator.groups))
    model, pairs = result.model, list(zip(result.tasks, result.times, strict=True))
    ends = {task.owner: time.end_ns for task, time in pairs if task.kind is TaskKind.GATHER}
    computing = sum(task.duration_ns for task in result.tasks if task.kind in (TaskKind.FORWARD, TaskKind.BACKWARD))
    layers = []
    for number, group in enumerate(model.weight_groups):
        if group.trainable:
            num_bytes = sum(model.graph.weights[name].num_bytes for name in group.weights)
            layers.append(_Layer(num_bytes, ends[number], model.costs.update_ns(num_bytes, home)))
    return computing, sorted(layers, key=lambda layer: layer.ready_ns)
