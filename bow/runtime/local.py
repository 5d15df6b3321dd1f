"""Run a step graph by a schedule on several executors of this machine, each with its own cores."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bow.errors import BowError, GraphError, SettingError, reason
from bow.forking import begin_to_compute
from bow.graph import Operator, StepGraph
from bow.graph.execution import failure, inputs_of, last_uses, outputs_of, run_operators
from bow.graph.kinds import is_update
from bow.graph.learning_step import StepOutputs
from bow.runtime.job import Affinity, JobBuilder
from bow.runtime.loading import is_available, native
from bow.schedule import (
    DynamicSchedule,
    FirstComeSchedule,
    OrderedSchedule,
    PrioritySchedule,
    Schedule,
    Span,
    Timeline,
)
from bow.schedule.scheduler import ListScheduler

Dependencies: TypeAlias = Sequence[frozenset[int]]  # by operator: those that must run before it


class LocalRuntime:
    """Runs the operators of a step graph on executors.

    Executors are threads of the native runtime, pinned to disjoint cores; they do not hold the GIL. Without a C++
    compiler, the same schedule runs in Python, one operator after another.

    Args:
        graph: a step graph; its updates, if any, are skipped.
        schedule: assigns operators to executors, with an order or priorities; None: one executor, in capture order.
        use_native: whether to use the native runtime; None: if available.
        cores: by executor: its cores; None: neighbouring cores of this machine, disjoint between executors.

    Raises:
        ScheduleError: the schedule does not fit the graph.
        SettingError: the schedule needs more cores than there are.
        RuntimeUnavailableError: `use_native=True`, and the native runtime is unavailable.

    Example:
        >>> import bow
        >>> batch = torch.randn(4, 3), torch.randn(4, 1)
        >>> model = torch.nn.Linear(3, 1)
        >>> graph = bow.capture(model, batch, torch.nn.functional.mse_loss)
        >>> with LocalRuntime(graph, use_native=False) as runtime:
        ...     outputs = runtime.run(dict(model.named_parameters()), {}, batch)
        >>> sorted(outputs.gradients)
        ['bias', 'weight']

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, sections 4 and 5.
    """

    def __init__(
        self,
        graph: StepGraph,
        schedule: Schedule | None = None,
        *,
        use_native: bool | None = None,
        cores: Sequence[Sequence[int]] | None = None,
    ) -> None:
        begin_to_compute("bow.LocalRuntime")
        for name, value, kind in (("graph", graph, StepGraph), ("schedule", schedule, Schedule | None)):
            if not isinstance(value, kind):
                what = "what bow.capture returns" if name == "graph" else "a bow.Schedule, or None"
                raise SettingError(f"{name} must be {what}, got {value!r}")
        operators = operators_of(graph)
        schedule = schedule or Schedule.sequential(len(operators))
        dependencies = dependencies_of(operators)
        schedule.check(dependencies)
        wanted = is_available() if use_native is None else use_native
        self._executors: _NativeExecutors | _OneAfterAnother
        if wanted:
            self._executors = _NativeExecutors(graph, Affinity.of(schedule, len(operators), cores), schedule)
        else:
            self._executors = _OneAfterAnother(graph, operators, schedule, dependencies)
        self.timeline: Timeline | None = None
        """Timeline of the last recorded run."""

    def run(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        batch: Any,
        *,
        seed: int | None = None,
        record: bool = False,
    ) -> StepOutputs:
        """Run a step: bit for bit the result of `StepGraph.run` with this seed, whatever the schedule.

        This holds if operators use the same number of threads in both.

        Args:
            parameters: tensors by the names of `model.named_parameters()`.
            buffers: tensors by the names of `model.named_buffers()`; they are not written to.
            batch: a batch with the shapes and dtypes of the captured one.
            seed: seed of the random numbers; None draws one from torch's generator.
            record: whether to record start and end of every operator in `timeline`.

        Raises:
            GraphError: a tensor is missing or does not fit; an operator fails, and the message names it.
        """
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        outputs, spans = self._executors.run(parameters, buffers, batch, seed, record)
        if record:
            self.timeline = Timeline(spans)
        return outputs

    def close(self) -> None:
        """Stop the executors' threads; the next run restarts them."""
        self._executors.close()

    def __enter__(self) -> "LocalRuntime":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def operators_of(graph: StepGraph) -> list[Operator]:
    return [operator for operator in graph.operators if not is_update(operator.kind)]


def dependencies_of(operators: Sequence[Operator]) -> list[frozenset[int]]:
    """By operator: the operators whose results it reads."""
    maker = {value: op.index for op in operators for value in op.results if value is not None}
    return [frozenset(maker[value] for value in op.reads if value in maker) for op in operators]


class _NativeExecutors:
    def __init__(self, graph: StepGraph, affinity: Affinity, schedule: Schedule) -> None:
        self._graph = graph
        self._builder = JobBuilder([graph], [None])
        job = self._builder.job
        inputs = (*graph.parameters.values(), *graph.buffers.values(), *graph.batch.values(), *graph.constants)
        job.keep([*inputs, *graph.results])
        job.schedule(
            order=affinity.order,
            priority=list(schedule.priority) if isinstance(schedule, PrioritySchedule) else [],
            num_lanes=len(schedule.threads),
            first_come=isinstance(schedule, FirstComeSchedule),
            stays=isinstance(schedule, DynamicSchedule) and schedule.stay,
            small=list(schedule.small) if isinstance(schedule, DynamicSchedule) else [],
            after=affinity.waits,
            threads=affinity.operator_threads,
        )
        self._team = native().Team(affinity.cores, affinity.threads)

    def run(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, seed: int, record: bool
    ) -> tuple[StepOutputs, list[Span]]:
        graph, job = self._graph, self._builder.job
        inputs = inputs_of(graph, parameters, buffers, batch)
        for value, tensor in inputs.items():
            job.bind(value, tensor)
        job.feed(0, [], seed % 2**64)
        try:
            job.run(self._team, record)
        except BowError:
            raise
        except Exception as error:
            if job.failed_node < 0:
                raise
            raise named(error, job.failed_node, self._builder) from error
        outputs = outputs_of(graph, job.value)
        job.release(sorted(graph.results - set(inputs)))
        return outputs, spans_of(self._builder) if record else []

    def close(self) -> None:
        self._team.close()


class _OneAfterAnother:
    """Runs a schedule on the calling thread, one operator after another in Python."""

    def __init__(
        self, graph: StepGraph, operators: Sequence[Operator], schedule: Schedule, before: Dependencies
    ) -> None:
        order = in_turn(schedule, before)
        self._graph = graph
        self._operators = [operators[index] for _, index in order]
        self._finished = last_uses(self._operators, graph.results)
        self._executor = {index: executor for executor, index in order}
        held = schedule.executors_of(len(order)) if isinstance(schedule, OrderedSchedule) else [()] * len(order)
        self._threads = {
            index: sum(schedule.threads[each] for each in held[index] or (executor,)) for executor, index in order
        }

    @torch.no_grad()
    def run(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, seed: int, record: bool
    ) -> tuple[StepOutputs, list[Span]]:
        live = inputs_of(self._graph, parameters, buffers, batch)
        spans: list[Span] = []

        @contextlib.contextmanager
        def around(operator: Operator) -> Iterator[None]:
            if torch.get_num_threads() != self._threads[operator.index]:
                torch.set_num_threads(self._threads[operator.index])
            began = time.perf_counter_ns()
            yield
            ended = time.perf_counter_ns()
            if record:
                place = f"executor {self._executor[operator.index]}"
                spans.append(Span(operator.kind, place, began, ended, operator.phase, _details(operator)))

        order = zip(self._operators, self._finished, strict=True)
        before = torch.get_num_threads()
        try:
            run_operators(self._graph, live, seed, order, around)
        finally:
            if torch.get_num_threads() != before:
                torch.set_num_threads(before)
        return outputs_of(self._graph, live.__getitem__), spans

    def close(self) -> None:
        pass


def in_turn(schedule: Schedule, dependencies: Dependencies) -> list[tuple[int, int]]:
    """Return one sequential order that respects schedule and dependencies: (executor, operator)."""
    order: list[tuple[int, int]] = []
    if not isinstance(schedule, OrderedSchedule):
        executors = itertools.cycle(range(len(schedule.threads)))
        scheduler = ListScheduler(
            dependencies, executors=1, priority=schedule.priority if isinstance(schedule, PrioritySchedule) else None
        )
        starts = scheduler.start()
        while starts:
            (start,) = starts
            order.append((next(executors), start.operator))
            starts = scheduler.finished(start.operator)
        return order
    orders, waits = schedule.on_executors()
    before = [others | set(waits.get(index, ())) for index, others in enumerate(dependencies)]
    done: set[int] = set()
    positions = [0] * len(orders)
    while len(order) < len(dependencies):
        for executor, own in enumerate(orders):
            while positions[executor] < len(own) and before[own[positions[executor]]] <= done:
                index = own[positions[executor]]
                order.append((executor, index))
                done.add(index)
                positions[executor] += 1
    return order


def named(error: Exception, node: int, builder: JobBuilder) -> Exception:
    operator = builder.labels[node].operator
    if operator is None:
        return GraphError(f"{builder.labels[node].name} failed: {reason(error)}")
    copy = builder.copy_of(node)
    assert copy is not None
    return failure(operator, copy.graph, error)


def spans_of(builder: JobBuilder, executor: int | None = None) -> list[Span]:
    """Return the recorded times of a job's last run, by executor, or all on the given one."""
    spans = []
    for own, node, start_ns, end_ns in builder.job.spans():
        label = builder.labels[node]
        details: dict[str, str | int | float] = {"learner": label.learner} if label.learner >= 0 else {}
        if label.operator is not None:
            details |= _details(label.operator)
        place = f"executor {own if executor is None else executor}"
        spans.append(Span(label.name, place, start_ns, end_ns, label.category, details))
    return spans


def _details(operator: Operator) -> dict[str, str | int | float]:
    return {"operator": operator.index, **({"module": operator.module} if operator.module else {})}
