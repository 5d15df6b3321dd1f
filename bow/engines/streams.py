"""Run learners in parallel, each on a Python thread with its own cores."""

import contextlib
import contextvars
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from bow.data import Batches, Stacked
from bow.devices import available_cores, core_sets, num_threads, share_cores
from bow.engines.batches import FlatBatch
from bow.engines.context import RoundContext
from bow.engines.eager import SequentialTasks
from bow.engines.first_come import FinishedTask, Period
from bow.engines.loop import step_alone
from bow.engines.outcome import Outcome
from bow.engines.random import DrawWatch, OwnNumbers, uncompiled
from bow.engines.runner import AheadRunner
from bow.engines.task_scheduler import TaskStart
from bow.engines.thread_pool import ThreadPool
from bow.graph.execution import lent_generator

IN_TURN = (
    "the learners run one after another, because the learning task draws random numbers in compiled code, in the "
    "backward pass, from its own generator, or from a state that it sets (as activation checkpointing does), or takes "
    "forward-mode derivatives (torch.func.jvp)"
)


class Streams(AheadRunner):
    """Run any module as `eager` does, several learners at once: for models that cannot be captured."""

    # A place is a thread pinned to its cores with its share of torch's threads. Python itself runs one thread at a
    # time: this pays where operators are large. The first one or two rounds with batches of any new shape run in turn,
    # on the calling thread, to watch the learning task's random draws and to compile parts of the model. If it draws
    # for dropout and the like, every task draws from its own generator, the same numbers as in `eager`, and compiled
    # parts run uncompiled. Where that is impossible, learners run in turn, with a warning. Thread-local settings of
    # torch, such as `torch.autocast`, have to be made in the step and not around the round.

    name = "streams"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._in_turn = SequentialTasks(context.group, context.settings)
        self._tasks = self._in_turn.tasks
        self._watched: set[Hashable] = set()
        self._known: set[Hashable] = set()
        self._before: set[str] = set()  # signatures that an earlier training has watched, as text
        self._draws = False
        self._runs_in_turn = False
        self._open_pool()

    @property
    def description(self) -> str:
        return f"{self.name} (in turn)" if self._runs_in_turn else self.name

    @property
    def runs_ahead(self) -> bool:
        return not self._runs_in_turn

    @property
    def state(self) -> dict[str, Any]:
        seen = self._before.union(map(repr, self._watched | self._known))
        return {"seen": sorted(seen), "draws": self._draws, "in turn": self._runs_in_turn, **self._in_turn.tasks.state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; known shapes run in turn once more, to compile."""
        self._in_turn.tasks.load(state)
        self._draws, self._before = state["draws"], set(state["seen"])
        if state["in turn"] and not self._runs_in_turn:
            self._fall_back()

    def resized(self) -> None:
        self._in_turn.resized()
        if self._places() != (len(self._pool), self._pool.threads):
            self.close()
            self._forgotten.detach()
            self._open_pool()

    def close(self) -> None:
        self._pool.close()

    def num_ahead(self, batches: Sequence[Batches]) -> int:
        return sum(1 for _ in itertools.takewhile(self._ready, batches))

    def learn(self, batches: Batches) -> Outcome:
        self.context.snapshot.take()
        if not self._ready(batches):
            return self._learn_in_turn(batches)
        return self._learn_at_once([batches], ahead=0)[0]

    def learn_ahead(self, batches: Sequence[Batches], due: bool) -> list[Outcome]:
        return self._learn_at_once(batches, ahead=len(batches) - due)

    def _learn_in_turn(self, batches: Batches) -> Outcome:
        """Run a round on the calling thread, to watch draws or to compile the model."""
        # The two exclude each other, because torch compiles nothing under a dispatch mode: a first round is watched,
        # and if nothing is drawn a second one compiles.
        with num_threads(self._pool.threads):  # as on the threads, so that results do not depend on where it ran
            if self._runs_in_turn:
                return self._in_turn.learn(batches, self.context.round_index)
            signatures, compiled = self._signatures(batches), self._tasks.is_compiled
            if not self._draws:
                self._watched |= {each for each in signatures if repr(each) in self._before}
            compiling = compiled or signatures <= self._watched
            watch = DrawWatch(operators=not compiling)
            with contextlib.nullcontext() if compiling else uncompiled():
                outcome = self._in_turn.learn(batches, self.context.round_index, watch)
        if self._tasks.is_compiled == compiled:  # otherwise a different task was watched
            self._draws |= watch.draws
            seen = self._known if compiling or self._draws else self._watched
            seen |= signatures
            if watch.unsafe_in_parallel:
                self._fall_back()
        return outcome

    def _learn_at_once(self, batches: Sequence[Batches], ahead: int) -> list[Outcome]:
        period = Period(self.group, batches, ahead)
        scheduler, runs = period.start(len(self._pool), self.context.settings.engine.dispatch)
        context = contextvars.copy_context()
        stepping = threading.Lock()
        with lent_generator(self.group.device) as generator:
            before = generator.get_state()
            with uncompiled() if self._draws else contextlib.nullcontext():
                self._pool.run(scheduler, runs, lambda run: context.copy().run(self._run_task, period, run, stepping))
            untouched = torch.equal(generator.get_state(), before)
        if not untouched:
            self._drew_unseen()
        return period.outcomes()

    def _run_task(self, period: Period, run: TaskStart, stepping: threading.Lock) -> None:
        """Run one learning task on this thread, and the learner's step if it steps alone."""
        task = run.task
        index, position = period.locate(task)
        began = time.perf_counter_ns()
        seed = self.context.task_seed(position, rounds_ahead=index)
        with torch.no_grad():  # as on the calling thread; the mode is thread-local
            learned = self._tasks.run(task.learner, period.batch(task), lambda: self._numbers(seed))
            gradient = self.group.learners[task.learner].gradient
            finite = bool(torch.isfinite(learned.loss) & torch.isfinite(gradient.sum()))
            if period.steps(task):
                with stepping:  # the optimizer is shared: a step removes the others' gradients from it
                    finite = step_alone(self.context, task.learner, finite)
        period.take(task, FinishedTask(learned, finite))
        place, index = f"place {run.place}", self.context.round_index + index
        self.context.log.record("learning task", "learning", began, place, learner=task.learner, round=index)

    def _numbers(self, seed: int) -> contextlib.AbstractContextManager[object]:
        return OwnNumbers(seed) if self._draws else contextlib.nullcontext()

    def _drew_unseen(self) -> None:
        """Handle draws from the default generator by a task that did not draw when it was watched."""
        if self._draws:
            self._fall_back()
            return
        self._draws = True
        for each in (self._known, self._watched, self._before):
            each.clear()
        self.context.log.warn(
            f"the learning task drew random numbers in round {self.context.round_index} for the first time: those of "
            "this round do not follow from the seed, later ones do",
        )

    def _fall_back(self) -> None:
        self._runs_in_turn = True
        self.context.log.warn(IN_TURN)

    def _ready(self, batches: Batches) -> bool:
        return not self._runs_in_turn and self._signatures(batches) <= self._known

    def _signatures(self, batches: Batches) -> set[Hashable]:
        # Compiled code contains numbers as constants.
        other: Callable[[object], Hashable] = repr if self._tasks.is_compiled else lambda leaf: type(leaf).__name__
        if isinstance(batches, Stacked):
            return {FlatBatch.of(batches.value, stacked=True, other=other).signature}
        return {FlatBatch.of(batch, other=other).signature for batch in batches if batch is not None}

    def _places(self) -> tuple[int, int]:
        return share_cores(len(self.group), len(available_cores()), torch.get_num_threads())

    def _open_pool(self) -> None:
        places, threads = self._places()
        self._pool = ThreadPool(core_sets(places, threads), threads)
        self._forgotten = weakref.finalize(self, self._pool.stop)  # if `close` is never called
