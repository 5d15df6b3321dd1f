"""Runs a step graph on threads of Python, which a scheduler gives operators while it runs."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from bow.devices import pin_here
from bow.errors import SettingError
from bow.graph import Operator, StepGraph
from bow.graph.execution import inputs_of, lent_generator, outputs_of, run_operator
from bow.graph.learning_step import StepOutputs
from bow.runtime.local import operators_of
from bow.schedule import Span, Timeline
from bow.schedule.scheduler.protocol import OperatorScheduler, Start
from bow.seeds import derive_seed


@dataclass(frozen=True)
class _Finished:
    start: Start
    began_ns: int
    ended_ns: int
    error: Exception | None = None


class ScheduledThreads:
    """Executors in Python: a thread each, and the calling thread, which asks the scheduler what comes next.

    The scheduler is the very object that the simulator drives, with the real clock: what it decides from what has
    really happened can be recorded and given to the native runtime, whose executors are many times faster. On its own
    this is how executors fare that share Python's lock: a baseline, and an oracle.

    Example:
        >>> import bow
        >>> from bow.runtime.local import dependencies_of
        >>> from bow.schedule.scheduler import ListScheduler
        >>> batch = torch.randn(4, 3), torch.randn(4, 1)
        >>> model = torch.nn.Linear(3, 1)
        >>> graph = bow.capture(model, batch, torch.nn.functional.mse_loss)
        >>> scheduler = ListScheduler(dependencies_of(operators_of(graph)), executors=1)
        >>> with ScheduledThreads(graph, scheduler, cores=[()]) as runtime:
        ...     outputs = runtime.run(dict(model.named_parameters()), {}, batch)
        >>> sorted(outputs.gradients)
        ['bias', 'weight']
    """

    def __init__(self, graph: StepGraph, scheduler: OperatorScheduler, cores: Sequence[Sequence[int]]) -> None:
        if not cores:
            raise SettingError("executors need cores, got none; give one set of cores for each executor")
        self._graph = graph
        self._operators = operators_of(graph)
        self._scheduler = scheduler
        made = [value for op in self._operators for value in op.results if value is not None]
        self._uses = Counter([value for op in self._operators for value in {*op.reads}] + made)
        self._finished: queue.SimpleQueue[_Finished] = queue.SimpleQueue()
        self._inboxes = [queue.SimpleQueue[Start | None]() for _ in cores]
        self._live: dict[int, Tensor] = {}
        self._seed = 0
        self._generator = torch.default_generator
        self._drawing = threading.Lock()
        self.timeline = Timeline()
        """Of the last run."""
        self.starts: list[Start] = []
        """What the scheduler decided in the last run, in order."""
        self._threads = [
            threading.Thread(target=self._serve, args=(inbox, tuple(own)), daemon=True, name=f"executor {number}")
            for number, (inbox, own) in enumerate(zip(self._inboxes, cores, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def run(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, *, seed: int = 0
    ) -> StepOutputs:
        """Run a step: the same numbers as `StepGraph.run` with this seed, bit for bit, whatever the scheduler.

        That holds where operators use as many threads here as there.
        """
        self._live = inputs_of(self._graph, parameters, buffers, batch)
        self._seed = seed
        self.starts = []
        try:
            with lent_generator(self._graph.device, seeded=True) as self._generator:
                self._run_all()
            return outputs_of(self._graph, self._live.__getitem__)
        finally:
            self._live = {}

    def close(self) -> None:
        """End the threads."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "ScheduledThreads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run_all(self) -> None:
        uses = Counter(self._uses)
        spans: list[Span] = []
        error: Exception | None = None
        began_ns = time.perf_counter_ns()
        num_running = self._hand_out(self._scheduler.start(0))
        while num_running:
            finished = self._finished.get()
            num_running -= 1
            error = error or finished.error
            spans.append(self._span(finished))
            if error is None:
                self._let_go(self._operators[finished.start.operator], uses)
                now_ns = time.perf_counter_ns() - began_ns
                num_running += self._hand_out(self._scheduler.finished(finished.start.operator, now_ns))
        self.timeline = Timeline(spans)
        if error is not None:
            raise error

    def _hand_out(self, starts: Sequence[Start]) -> int:
        for start in starts:
            self.starts.append(start)
            self._inboxes[start.executor].put(start)
        return len(starts)

    def _let_go(self, operator: Operator, uses: Counter[int]) -> None:
        """Values that nobody reads any more are freed."""
        for value in {*operator.reads, *(value for value in operator.results if value is not None)}:
            uses[value] -= 1
            if not uses[value] and value not in self._graph.results:
                self._live.pop(value, None)

    def _serve(self, inbox: "queue.SimpleQueue[Start | None]", cores: Sequence[int]) -> None:
        pin_here(cores)
        torch.get_num_threads()  # what is set before a thread has asked for the first time is lost
        with torch.no_grad():
            while (start := inbox.get()) is not None:
                self._finished.put(self._run_one(start))

    def _run_one(self, start: Start) -> _Finished:
        operator = self._operators[start.operator]
        if torch.get_num_threads() != start.threads:
            torch.set_num_threads(start.threads)
        began_ns = time.perf_counter_ns()
        error: Exception | None = None
        try:
            if operator.is_random:
                with self._drawing:  # there is one generator for all threads
                    self._generator.manual_seed(derive_seed(self._seed, operator.index))
                    run_operator(operator, self._live, self._graph)
            else:
                run_operator(operator, self._live, self._graph)
        except Exception as raised:  # it names the operator
            error = raised
        return _Finished(start, began_ns, time.perf_counter_ns(), error)

    def _span(self, finished: _Finished) -> Span:
        operator = self._operators[finished.start.operator]
        details = {"operator": operator.index, "threads": finished.start.threads}
        place = f"executor {finished.start.executor}"
        return Span(operator.kind, place, finished.began_ns, finished.ended_ns, operator.phase, details)
