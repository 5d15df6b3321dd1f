"""Runs a step graph by a schedule: several executors of this machine, each with cores of its own."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from bow.errors import BowError, GraphError, reason
from bow.forking import begin_to_compute
from bow.graph import Operator, StepGraph
from bow.graph.execution import failure, inputs_of, lent_generator, outputs_of, run_operator
from bow.graph.kinds import is_update
from bow.graph.learning_step import StepOutputs
from bow.runtime.job import JobBuilder
from bow.runtime.loading import is_available, native
from bow.runtime.seating import Seating
from bow.schedule import Schedule, Span, Timeline
from bow.schedule.scheduler import ListScheduler
from bow.seeds import derive_seed

Dependencies: TypeAlias = Sequence[frozenset[int]]
"""By operator: those that must have run before it."""


class LocalRuntime:
    """Runs the operators of a step graph on executors.

    Executors are threads of the native runtime, pinned to disjoint cores; they hold no lock of Python's. Without a
    C++ compiler the same schedule is carried out in Python, one operator after another.

    Args:
        graph: a step graph, without updates or with updates that are left out.
        schedule: which executor runs which operators, in which order or by which priority; None: one executor, in the
            order of capture.
        use_native: None: the native runtime where there is one.
        cores: by executor: those that it keeps to; None: neighbouring ones of this machine that no other executor has.

    Raises:
        ScheduleError: the schedule does not fit the graph.
        SettingError: the schedule needs more cores than there are.
        RuntimeUnavailableError: `use_native=True`, and there is none.

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
        operators = [op for op in graph.operators if not is_update(op.kind)]
        schedule = schedule or Schedule.sequential(len(operators))
        dependencies = dependencies_of(operators)
        schedule.check(dependencies)
        wanted = is_available() if use_native is None else use_native
        self._executors: _Executors
        if wanted:
            self._executors = _NativeExecutors(graph, Seating.of(schedule, len(operators), cores), schedule)
        else:
            self._executors = _PythonExecutors(graph, operators, schedule, dependencies)
        self.timeline: Timeline | None = None
        """Of the last run that was recorded."""

    def run(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        batch: Any,
        *,
        seed: int | None = None,
        record: bool = False,
    ) -> StepOutputs:
        """Run a step: the same numbers as `StepGraph.run` with this seed, bit for bit, whatever the schedule.

        That holds where operators use as many threads here as there.

        Args:
            parameters: tensors by the names of `model.named_parameters()`.
            buffers: tensors by the names of `model.named_buffers()`; they are not written to.
            batch: like the one that the graph was captured with.
            seed: of the random numbers; None takes one from torch's generator.
            record: whether `timeline` shall have start and end of every operator.

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
        """End the executors' threads; the next run starts them again."""
        self._executors.close()

    def __enter__(self) -> "LocalRuntime":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def dependencies_of(operators: Sequence[Operator]) -> list[frozenset[int]]:
    """By operator: those whose results it reads."""
    maker = {value: op.index for op in operators for value in op.results if value is not None}
    return [frozenset(maker[value] for value in op.reads if value in maker) for op in operators]


class _Executors(Protocol):
    def run(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, seed: int, record: bool
    ) -> tuple[StepOutputs, list[Span]]: ...

    def close(self) -> None: ...


class _NativeExecutors:
    def __init__(self, graph: StepGraph, seating: Seating, schedule: Schedule) -> None:
        self._graph = graph
        self._builder = JobBuilder([graph], [None])
        job = self._builder.job
        inputs = (*graph.parameters.values(), *graph.buffers.values(), *graph.batch.values(), *graph.constants)
        job.keep([*inputs, *graph.results])
        job.schedule(
            order=seating.order,
            priority=list(schedule.priority or ()),
            num_lanes=len(schedule.threads),
            first_come=schedule.first_come,
            stays=schedule.stay,
            small=list(schedule.small),
            after=seating.waits,
            threads=seating.operator_threads,
        )
        self._team = native().Team(seating.cores, seating.threads)

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


class _PythonExecutors:
    """Carries out a schedule on the calling thread."""

    def __init__(
        self,
        graph: StepGraph,
        operators: Sequence[Operator],
        schedule: Schedule,
        dependencies: Sequence[frozenset[int]],
    ) -> None:
        self._graph = graph
        self._operators = operators
        self._order = in_turn(schedule, dependencies)
        held = schedule.executors_of(len(operators))
        self._threads = [
            sum(schedule.threads[each] for each in held[index] or (executor,)) for executor, index in self._order
        ]
        uses: dict[int, int] = {}
        for position, (_, index) in enumerate(self._order):
            made = (value for value in operators[index].results if value is not None)
            uses.update(dict.fromkeys([*operators[index].reads, *made], position))
        self._finished: list[list[int]] = [[] for _ in self._order]
        for value in uses.keys() - graph.results:
            self._finished[uses[value]].append(value)

    @torch.no_grad()
    def run(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, seed: int, record: bool
    ) -> tuple[StepOutputs, list[Span]]:
        live = inputs_of(self._graph, parameters, buffers, batch)
        spans = []
        with _threads_put_back(), lent_generator(self._graph.device, seeded=True) as generator:
            for (executor, index), threads, finished in zip(self._order, self._threads, self._finished, strict=True):
                operator = self._operators[index]
                if torch.get_num_threads() != threads:
                    torch.set_num_threads(threads)
                began = time.perf_counter_ns()
                if operator.is_random:
                    generator.manual_seed(derive_seed(seed, operator.index))
                run_operator(operator, live, self._graph)
                if record:
                    spans.append(span_of(operator, executor, began, time.perf_counter_ns()))
                for value in finished:
                    live.pop(value, None)
        return outputs_of(self._graph, live.__getitem__), spans

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _threads_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def in_turn(schedule: Schedule, dependencies: Dependencies) -> list[tuple[int, int]]:
    """One order in which a schedule can be carried out: (executor, operator).

    Args:
        schedule: one that fits the dependencies.
        dependencies: by operator.
    """
    order: list[tuple[int, int]] = []
    if schedule.order is None:
        executors = itertools.cycle(range(len(schedule.threads)))
        scheduler = ListScheduler(dependencies, executors=1, priority=schedule.priority)
        starts = scheduler.start()
        while starts:
            (start,) = starts
            order.append((next(executors), start.operator))
            starts = scheduler.finished(start.operator)
        return order
    lanes, waits = schedule.on_executors()
    before = [others | set(waits.get(index, ())) for index, others in enumerate(dependencies)]
    done: set[int] = set()
    positions = [0] * len(lanes)
    while len(order) < len(dependencies):
        for executor, lane in enumerate(lanes):
            while positions[executor] < len(lane) and before[lane[positions[executor]]] <= done:
                index = lane[positions[executor]]
                order.append((executor, index))
                done.add(index)
                positions[executor] += 1
    return order


def named(error: Exception, node: int, builder: JobBuilder) -> Exception:
    """What to raise for a node that failed: an error that names the operator and its shapes."""
    operator = builder.labels[node].operator
    if operator is None:
        return GraphError(f"{builder.labels[node].name} failed: {reason(error)}")
    program = builder.program_of(node)
    assert program is not None
    return failure(operator, program.graph, error)


def spans_of(builder: JobBuilder, executor: int | None = None) -> list[Span]:
    """The recorded times of the last run of a job.

    Args:
        builder: of the job.
        executor: what ran it, if it was one; None: each lane its own.
    """
    spans = []
    for lane, node, start_ns, end_ns in builder.job.spans():
        label = builder.labels[node]
        details: dict[str, str | int | float] = {"learner": label.learner} if label.learner >= 0 else {}
        if label.operator is not None:
            details |= _details(label.operator)
        place = f"executor {lane if executor is None else executor}"
        spans.append(Span(label.name, place, start_ns, end_ns, label.category, details))
    return spans


def span_of(operator: Operator, executor: int, start_ns: int, end_ns: int) -> Span:
    """The recorded time of one operator that ran in Python."""
    return Span(operator.kind, f"executor {executor}", start_ns, end_ns, operator.phase, _details(operator))


def _details(operator: Operator) -> dict[str, str | int | float]:
    return {"operator": operator.index, **({"module": operator.module} if operator.module else {})}
