"""Learners that run at the same time, each on a thread of Python with cores of its own."""

import contextlib
import contextvars
import itertools
import threading
import time
import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from bow.devices import available_cores, core_sets, share_cores
from bow.engines.batches import Batches, FlatBatch, Stacked
from bow.engines.context import RoundContext
from bow.engines.eager import InTurn
from bow.engines.first_come import FinishedTask, Period
from bow.engines.loop import step_alone
from bow.engines.outcome import Outcome
from bow.engines.random import DrawWatch, OwnNumbers, task_random, uncompiled
from bow.engines.runner import AheadRunner
from bow.engines.task_scheduler import Learn, TaskStart
from bow.engines.thread_pool import ThreadPool, num_threads

IN_TURN = (
    "the learning task does what only one learner at a time can: it draws random numbers in compiled code, in the "
    "backward pass, from a generator of its own, or from a state that it sets, as activation checkpointing does, or it "
    "takes forward-mode derivatives (torch.func.jvp); engine streams runs the learners in turn"
)


class Streams(AheadRunner):
    """Runs any module as `eager` does, several learners at once: for models that cannot be captured.

    There are as many places as learners, as far as there are cores; learners beyond that share them. A place is a
    thread that is pinned to its cores and has its share of torch's threads. Python itself runs one thread at a time:
    it pays where operators are large.

    The first one or two rounds with batches of any new shape run in turn, on the calling thread: what the learning
    task draws is looked at, and compiled parts of the model are compiled. Where it draws for dropout and the like,
    every task draws from a generator of its own, the very numbers of `eager`, and compiled parts run as they were
    written. Where it cannot, learners run in turn, with a warning.

    `step` is called by several threads at once. What is a matter of the thread in torch, such as `torch.autocast`,
    has to be done in the step and not around the round.
    """

    name = "streams"

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._in_turn = InTurn(context.group, context.settings)
        self._tasks = self._in_turn.tasks
        self._watched: set[Hashable] = set()
        self._known: set[Hashable] = set()
        self._before: set[str] = set()  # what another training has looked at, in words
        self._draws = False
        self._entangled = False
        self._open_pool()

    @property
    def description(self) -> str:
        """`streams`, or `streams (in turn)` where the learning task's random numbers leave no choice."""
        return f"{self.name} (in turn)" if self._entangled else self.name

    @property
    def runs_ahead(self) -> bool:
        """Not where learners run in turn."""
        return not self._entangled

    @property
    def state(self) -> dict[str, Any]:
        """What has been looked at, so that what was compiled by then is at once."""
        seen = self._before.union(map(repr, self._watched | self._known))
        return {"seen": sorted(seen), "draws": self._draws, "in turn": self._entangled, **self._in_turn.tasks.state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Look at nothing again that another training has looked at; what it has compiled is compiled in turn."""
        self._in_turn.tasks.load(state)
        self._draws, self._before = state["draws"], set(state["seen"])
        if state["in turn"] and not self._entangled:
            self._fall_back()

    def resized(self) -> None:
        """Wrap the learners anew; where there are other places for them, the next round starts those."""
        self._in_turn.resized()
        if self._places() != (len(self._pool), self._pool.threads):
            self.close()
            self._forgotten.detach()
            self._open_pool()

    def close(self) -> None:
        """End the learners' threads; the next round starts them again."""
        self._pool.close()

    def num_ahead(self, batches: Sequence[Batches]) -> int:
        """Rounds that nothing is to be learned about first."""
        return sum(1 for _ in itertools.takewhile(self._ready, batches))

    def learn(self, batches: Batches) -> Outcome:
        """Run the learning tasks at once, or in turn where that is to be."""
        self.context.before.keep()
        if not self._ready(batches):
            return self._learn_in_turn(batches)
        return self._learn_at_once([batches], ahead=0)[0]

    def learn_ahead(self, batches: Sequence[Batches], due: bool) -> list[Outcome]:
        """Run the learning tasks of several rounds, each by the learner that is free first."""
        return self._learn_at_once(batches, ahead=len(batches) - due)

    def _learn_in_turn(self, batches: Batches) -> Outcome:
        """Run a round on the calling thread: whatever the model compiles is compiled, and what it draws is looked at.

        The two exclude each other, because torch compiles nothing while somebody watches its operators: a first round
        is watched, and where nothing is drawn a second one compiles.
        """
        with num_threads(self._pool.threads):  # as everywhere else, so that results do not depend on where it ran
            if self._entangled:
                return self._in_turn.learn(batches, self.context.round_index)
            signatures, compiled = self._signatures(batches), self._tasks.is_compiled
            if not self._draws:
                self._watched |= {each for each in signatures if repr(each) in self._before}
            compiling = compiled or signatures <= self._watched
            watch = DrawWatch(operators=not compiling)
            with contextlib.nullcontext() if compiling else uncompiled():
                outcome = self._in_turn.learn(batches, self.context.round_index, watch)
        if self._tasks.is_compiled == compiled:  # else it was another task that was looked at
            self._draws |= watch.draws
            seen = self._known if compiling or self._draws else self._watched
            seen |= signatures
            if watch.entangled:
                self._fall_back()
        return outcome

    def _learn_at_once(self, batches: Sequence[Batches], ahead: int) -> list[Outcome]:
        """Run rounds on the threads."""
        period = Period(self.group, batches, ahead)
        scheduler, runs = period.start(len(self._pool), self.context.settings.dispatch)
        context = contextvars.copy_context()
        stepping = threading.Lock()
        with task_random(self.group.device) as generator:
            before = generator.get_state()
            with uncompiled() if self._draws else contextlib.nullcontext():
                self._pool.run(scheduler, runs, lambda run: context.copy().run(self._run_task, period, run, stepping))
            untouched = torch.equal(generator.get_state(), before)
        if not untouched:
            self._drew_unseen()
        return period.outcomes()

    def _run_task(self, period: Period, run: TaskStart, stepping: threading.Lock) -> None:
        """Carry out one learning task on this thread, and the learner's step where it steps alone."""
        task = run.task
        assert isinstance(task, Learn)
        index, position = period.locate(task)
        began = time.perf_counter_ns()
        seed = self.context.task_seed(position, rounds_ahead=index)
        with torch.no_grad():  # as on the calling thread; the mode is a thread's own
            learned = self._tasks.run(task.learner, period.batch(task), lambda: self._numbers(seed))
            gradient = self.group.learners[task.learner].gradient
            finite = bool(torch.isfinite(learned.loss) & torch.isfinite(gradient.sum()))
            if period.steps(task):
                with stepping:  # one optimizer for all learners: a step takes the others' gradients away from it
                    finite = step_alone(self.context, task.learner, finite)
        period.take(task, FinishedTask(learned, finite))
        place, index = f"place {run.place}", self.context.round_index + index
        self.context.log.record("learning task", "learning", began, place, learner=task.learner, round=index)

    def _numbers(self, seed: int) -> contextlib.AbstractContextManager[object]:
        return OwnNumbers(seed) if self._draws else contextlib.nullcontext()

    def _drew_unseen(self) -> None:
        """The default generator moved: the task drew random numbers that it did not draw when it was looked at."""
        if self._draws:
            self._fall_back()
            return
        self._draws = True
        for each in (self._known, self._watched, self._before):
            each.clear()
        self.context.log.tell(
            f"the learning task drew random numbers in round {self.context.round_index} for the first time: those of "
            "this round do not follow from the seed, later ones do",
            stacklevel=8,
        )

    def _fall_back(self) -> None:
        self._entangled = True
        self.context.log.tell(IN_TURN, stacklevel=9)

    def _ready(self, batches: Batches) -> bool:
        return not self._entangled and self._signatures(batches) <= self._known

    def _signatures(self, batches: Batches) -> set[Hashable]:
        """What sets batches apart for the learning task, above all their shapes."""
        other = _leaf_if_compiled if self._tasks.is_compiled else _leaf
        if isinstance(batches, Stacked):
            return {FlatBatch.of(batches.value, stacked=True, other=other).signature}
        return {FlatBatch.of(batch, other=other).signature for batch in batches if batch is not None}

    def _places(self) -> tuple[int, int]:
        """How many places there are to be, and with how many threads each."""
        return share_cores(len(self.group), len(available_cores()), torch.get_num_threads())

    def _open_pool(self) -> None:
        places, threads = self._places()
        self._pool = ThreadPool(core_sets(places, threads), threads)
        self._forgotten = weakref.finalize(self, self._pool.dismiss)  # nobody has to remember `close`


def _leaf(leaf: object) -> Hashable:
    return type(leaf).__name__


def _leaf_if_compiled(leaf: object) -> Hashable:
    return repr(leaf)  # numbers are compiled in
