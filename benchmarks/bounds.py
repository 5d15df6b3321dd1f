"""The parts of a learner's step, and how near engine `graph` comes to what bounds it: one learner on one core.

A round is taken apart by the sort of its operators, its batch, and the optimizer's step (one learner averages with
nobody), with two times of each: in the round, as the native runtime records it, and alone, where the runtime runs the
same again and again on the same tensors. The batch is timed alone only, on other samples each time. The bound is a
round of nothing but these parts, each as fast as alone. Beside it: the core's rate in a large matrix product, what
calling an operator costs, and what convolutions gain whose weights lie in the library's own order beforehand.
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import bow
from benchmarks import harness
from benchmarks.engines import has_convolutions
from benchmarks.harness import ratios, setting, spread, take_turns, warm_up
from benchmarks.trainings import ENDLESS, LEARNING_RATE, MOMENTUM, BowTraining, Data
from benchmarks.workloads import WORKLOADS
from bow.data import open_stream
from bow.devices import available_cores, core_sets
from bow.engines import Loss
from bow.graph import Operator, StepGraph, capture
from bow.graph.execution import inputs_of, run_operators
from bow.graph.kinds import has_recurrent_layer
from bow.graph.operator import map_refs
from bow.runtime.loading import NativeJob, build, native
from bow.runtime.local import LocalRuntime, operators_of
from bow.schedule import Schedule
from bow.schedule.profiler.measuring import BoundStep, measure_schedule, signature

DEFAULT, LAST = "contiguous", "channels_last"

AIMS = {"peak": 0.5, "alone": 0.7}
"""Of LeNet at batch 16: the step's rate over the core's, and the rate of its convolutions over that which they have
alone."""

MATRIX = 1024
IN_A_ROW = 12  # runs of an operator alone, the first two to fill the caches
CALLS = 10_000
CALLERS = {
    "python": "Python, the call alone",
    "runtime": "the native runtime, in order",
    "by_priority": "the native runtime, by priority",
    "handed_over": "the native runtime, each operator waiting for the other executor's",
}

CONVOLUTION, POOLING, PRODUCT = "convolution, forward", "pooling", "matrix products"
INPUT, WEIGHT = "convolution, gradient of the input", "convolution, gradient of the weights"
NORM, RECURRENT, MOVING, OTHERS = "batch norm", "recurrent layers", "copies and fills", "element by element"
PARTS = (CONVOLUTION, INPUT, WEIGHT, POOLING, NORM, PRODUCT, RECURRENT, MOVING, OTHERS)
STEP = "step of SGD"
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Config(harness.Config):
    models: tuple[str, ...] = setting(
        tuple(WORKLOADS), "models", choices=tuple(WORKLOADS), quick=("logistic_regression",)
    )
    batches: tuple[int, ...] = setting((4, 16, 64), "batch sizes", quick=(4,))
    turns: int = setting(7, "turns of each case", quick=2)
    steps: int = setting(10, "steps that are recorded in a turn", quick=2)
    stint_s: float = setting(0.2, "seconds that rounds of the engine are timed for in a turn", quick=0.01)


def measure(config: Config) -> dict[str, Any]:
    """Take every step apart on one thread."""
    build()
    torch.set_num_threads(1)
    costs = measure_operator_costs(config.turns)
    cells = []
    for model in config.models:
        for order in (DEFAULT, LAST) if has_convolutions(WORKLOADS[model]) else (DEFAULT,):
            for batch_size in config.batches:
                cells.append(_cell(model, batch_size, order, config))
                harness.say(f"{model}, batch {batch_size}, {order}: {cells[-1]['near']}")
    return {"operator_us": {name: spread(own, 2, scale=1e6) for name, own in costs.items()}, "cells": cells}


def page(values: Row) -> dict[str, Any]:
    """What the page shows besides: titles, and LeNet beside its aims."""
    aimed = [each for each in values["cells"] if (each["model"], each["batch_size"]) == ("lenet", 16)]
    titles = {name: each.title for name, each in WORKLOADS.items()}
    return {"titles": titles, "callers": CALLERS, "aims": AIMS, "aimed": aimed}


def _cell(model: str, batch_size: int, order: str, config: Config) -> dict[str, Any]:
    workload = WORKLOADS[model]
    module = workload.model()
    if order == LAST:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data = workload.make_data(64 * batch_size)
    step = step_of(module, tuple(part[:batch_size] for part in data), workload.loss)
    operators = [each for each in operators_of(step.graph) if not each.is_view]
    names = [signature(each, step.graph) for each in operators]
    schedule = Schedule.sequential(step.num_operators)
    live = values_of(step)
    loops = {name: Loop(each, step.graph, live) for name, each in zip(names, operators, strict=True)}
    forward = [each for each in operators if part_of(each) == CONVOLUTION]
    stream = open_stream(data, batch_size=batch_size, steps=ENDLESS)
    training = BowTraining(module, workload.loss, stream, 1, bow.Engine("graph", compile=False))
    warm_up(training)
    row = training.replicas.group.matrix.z
    turns: dict[str, Callable[[], Any]] = {
        "core": _seconds_of_product,
        "inside": lambda: measure_schedule(step, schedule, config.steps)[0],
        "alone": lambda: {name: loop.seconds() for name, loop in loops.items()},
        "round": lambda: batch_size / harness.rate(training, config.stint_s),
        "kept": lambda: [_with_kept_order(each, live) for each in forward],
        "batch": lambda: _seconds_of_batch(data, batch_size),
        "step": lambda: _step_in_a_round(training, config.steps),
        "step alone": lambda: SgdSteps(torch.randn_like(row), torch.randn_like(row)).seconds(),
    }
    found = take_turns(turns, config.turns)
    if training.engine != "graph":
        raise harness.CaseError(f"{model} ran as {training.engine}")
    training.close()

    def seconds(*parts: str) -> tuple[list[float], list[float]]:
        """Seconds by turn in the step, and alone, of these parts."""
        own = [(each.index, name) for each, name in zip(operators, names, strict=True) if part_of(each) in parts]
        inside = [sum(turn[index] for index, _ in own) / 1e9 for turn in found["inside"]]
        return inside, [sum(turn[name] for _, name in own) for turn in found["alone"]]

    rows = []
    for part in (*PARTS, STEP):
        own = [each for each in operators if part_of(each) == part]
        if own or part == STEP:
            inside, alone = seconds(part) if own else (found["step"], found["step alone"])
            rows.append(
                {
                    "part": part,
                    "operators": len(own),
                    "mflop": round(sum(each.flops for each in own) / 1e6, 3),
                    "inside_us": spread(inside, 1, scale=1e6),
                    "alone_us": spread(alone, 1, scale=1e6),
                    "near": spread(ratios(alone, inside), 3),
                }
            )
    flops, core = step.graph.flops, [2 * MATRIX**3 / each for each in found["core"]]
    inside, alone = seconds(*PARTS)
    bound = list(map(sum, zip(alone, found["batch"], found["step alone"], strict=True)))
    kernels, kernels_alone = seconds(CONVOLUTION, INPUT, WEIGHT)
    kept = [sum(after for after, _ in turn) / sum(before for _, before in turn) for turn in found["kept"] if turn]
    return {
        "model": model,
        "batch_size": batch_size,
        "order": order,
        "mflop": round(flops / 1e6, 3),
        "core_gflop_per_s": spread(core, 1, scale=1e-9),
        "round_us": spread(found["round"], 1, scale=1e6),
        "inside_us": spread(inside, 1, scale=1e6),
        "alone_us": spread(alone, 1, scale=1e6),
        "batch_us": spread(found["batch"], 1, scale=1e6),
        "bound_us": spread(bound, 1, scale=1e6),
        "peak": spread([flops / s / rate for s, rate in zip(found["round"], core, strict=True)], 3),
        "near": spread(ratios(bound, found["round"]), 3),
        "convolutions": spread(ratios(kernels_alone, kernels), 3) if forward else None,
        "kept": spread(kept, 3) if kept else None,
        "rows": rows,
    }


def step_of(module: nn.Module, batch: Any, loss: Loss) -> BoundStep:
    """The step as engine `graph` captures it: recurrent layers are single operators."""
    graph = capture(module, batch, loss, unrolled=False)
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return BoundStep(graph, parameters, dict(module.named_buffers()), batch)


def part_of(operator: Operator) -> str:
    """The sort of an operator, one of `PARTS`."""
    name = operator.kind.split(".")[1]
    if name == "convolution_backward":
        return INPUT if operator.results[0] is not None else WEIGHT
    if has_recurrent_layer(operator):
        return RECURRENT
    if name == "convolution":
        return CONVOLUTION
    if name in PRODUCTS:
        return PRODUCT
    if "pool" in name:
        return POOLING
    if "batch_norm" in name:
        return NORM
    return OTHERS if operator.flops else MOVING


def values_of(step: BoundStep) -> dict[int, torch.Tensor]:
    """Every value of a step."""
    live = inputs_of(step.graph, step.parameters, step.buffers, step.batch)
    with torch.no_grad():
        run_operators(step.graph, live, 0, ((each, ()) for each in step.graph.operators))
    return live


class Loop:
    """One operator of a step, run again and again on the same tensors by the native runtime."""

    def __init__(self, operator: Operator, graph: StepGraph, live: Mapping[int, torch.Tensor]) -> None:
        values, numbers = dict(graph.values), itertools.count(max(graph.values) + 1)
        made = []
        for index in range(IN_A_ROW):
            results = {old: next(numbers) for old in operator.results if old is not None}
            values |= {new: values[old] for old, new in results.items()}
            own = tuple(None if old is None else results[old] for old in operator.results)
            made.append(dataclasses.replace(operator, index=index, results=own))
        last = next(value for value in made[-1].results if value is not None)
        constants = {value: live[value] for value in operator.reads}
        again = StepGraph(tuple(made), values, {}, {}, {}, constants, last, {}, {}, {}, graph.device)
        self.runtime = LocalRuntime(again)

    def seconds(self) -> float:
        """The median time of a run."""
        self.runtime.run({}, {}, (), seed=0, record=True)
        assert self.runtime.timeline is not None
        found = statistics.median([span.duration_ns for span in self.runtime.timeline.spans][2:]) / 1e9
        self.runtime.close()
        return found


def _step_in_a_round(training: BowTraining, rounds: int) -> float:
    training.replicas.timeline.start()
    for _ in range(rounds + 1):
        training()
    spans = training.replicas.timeline.take().spans
    return statistics.median([span.duration_ns for span in spans if span.name == "step and averaging"][1:]) / 1e9


def _seconds_of_batch(data: Data, batch_size: int) -> float:
    """The median time of gathering a batch."""
    slot, job = native().Slot, native().Job(IN_A_ROW * (1 + len(data)) + len(data))
    slots = itertools.count()
    parts = [next(slots) for _ in data]
    gathers = []
    for indices in torch.randperm(len(data[0]))[: IN_A_ROW * batch_size].view(IN_A_ROW, batch_size).unbind():
        chosen = next(slots)
        job.bind(chosen, indices)
        for part in parts:
            arguments = [slot(part), 0, slot(chosen)]
            gathers.append(job.add_operator("aten::index_select", "", arguments, {}, [next(slots)]))
    for part, tensor in zip(parts, data, strict=True):
        job.bind(part, tensor)
    job.schedule([gathers], [], 1)
    times = _times(job)
    each = [sum(times[node] for node in gathers[at : at + len(data)]) for at in range(0, len(gathers), len(data))]
    return statistics.median(map(float, each[2:])) / 1e9


class SgdSteps:
    """Steps of SGD with momentum of one learner, one after another."""

    def __init__(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        self.job, momenta = native().Job(2), torch.zeros_like(weights)
        self.job.bind(0, torch.ones(()))
        self.job.bind(1, gradient)
        finish = self.job.add_finish(0, 0, [], [(1, torch.empty_like(gradient), 0)], into_row=False)
        self.steps = [self.job.add_average(0, 1) for _ in range(IN_A_ROW)]
        self.job.schedule([[finish]], [], 1, commit=[self.steps])
        self.job.expect(0, [], [])
        self.job.feed(0, [], 0)
        settings, unread = (LEARNING_RATE, MOMENTUM, 0.0, False), torch.empty_like(weights)  # z, without averaging
        self.job.set_rows(weights[None], [momenta[None]], unread, None, [settings], [], 0.0, 0.0, synchronise=False)

    def seconds(self) -> float:
        times = _times(self.job)
        return statistics.median([float(times[step]) for step in self.steps[2:]]) / 1e9


def _times(job: NativeJob) -> dict[int, int]:
    """Run a job on one core, and return the nanoseconds of each of its nodes."""
    team = native().Team(core_sets(1), [1])
    job.run(team, record=True)
    team.close()
    return {node: end - start for _, node, start, end in job.spans()}


def _with_kept_order(operator: Operator, live: Mapping[int, torch.Tensor]) -> tuple[float, float]:
    """Seconds of a forward convolution whose weights lie in oneDNN's own order beforehand, and without that."""
    arguments = map_refs(lambda ref: live[ref.value], operator.arguments)
    images, weight, bias, stride, padding, dilation, _, _, groups = arguments
    kept = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, images.shape)
    fused = torch.ops.mkldnn._convolution_pointwise.default
    with torch.no_grad():
        return (
            _seconds(lambda: fused(images, kept, bias, padding, stride, dilation, groups, "none", [], "")),
            _seconds(lambda: fused(images, weight, bias, padding, stride, dilation, groups, "none", [], "")),
        )


def _seconds_of_product() -> float:
    matrix, result = torch.randn(MATRIX, MATRIX), torch.empty(MATRIX, MATRIX)
    return _seconds(lambda: torch.mm(matrix, matrix, out=result))


def _seconds(run: Callable[[], object]) -> float:
    """The median time of a call."""
    times = []
    for _ in range(IN_A_ROW):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def measure_operator_costs(turns: int) -> dict[str, list[float]]:
    """By caller: seconds for calling one operator on one thread, whatever it computes: a chain of additions."""
    calls = list(range(CALLS))
    probes = {
        "python": _from_python,
        "runtime": lambda: _chain([calls], []),
        "by_priority": lambda: _chain([], [0] * CALLS),
    }
    if len(available_cores()) > 1:
        probes["handed_over"] = lambda: _chain([calls[::2], calls[1::2]], [])
    return take_turns(probes, turns)


def _from_python() -> float:
    call, one = torch.ops.aten.add.Tensor, torch.ones(1)
    began = time.perf_counter()
    for _ in range(CALLS):
        call(one, one)
    return (time.perf_counter() - began) / CALLS


def _chain(order: list[list[int]], priority: list[int]) -> float:
    slot, job = native().Slot, native().Job(CALLS + 1)
    for call in range(CALLS):
        job.add_operator("aten::add", "Tensor", [slot(call), slot(0)], {}, [call + 1])
    executors = max(1, len(order))
    job.bind(0, torch.ones(1))
    job.schedule(order, priority, executors)
    team = native().Team(core_sets(executors), [1] * executors)
    job.run(team)
    began = time.perf_counter()
    job.run(team)
    seconds = (time.perf_counter() - began) / CALLS
    team.close()
    return seconds
