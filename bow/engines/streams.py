"""Learners that run at the same time, each on a thread of Python with cores of its own."""

import contextlib
import contextvars
import dataclasses
import itertools
import threading
import time
import warnings
import weakref
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from bow.devices import available_cores, core_sets, share_cores
from bow.engines.base import Engine
from bow.engines.eager import InTurn, Learned, batch_of
from bow.engines.outcome import Batches, Outcome, Stacked, TaskSettings
from bow.engines.place import Crew, num_threads
from bow.engines.random import DrawWatch, OwnNumbers, task_random, uncompiled
from bow.engines.task import Batch
from bow.replicas import LearnerGroup
from bow.schedule.scheduler import Learn, Run, TaskScheduler
from bow.seeds import derive_seed
from bow.sync import Synchroniser

IN_TURN = (
    "the learning task does what only one learner at a time can: it draws random numbers in compiled code, in the "
    "backward pass, from a generator of its own, or from a state that it sets, as activation checkpointing does, or it "
    "takes forward-mode derivatives (torch.func.jvp); engine streams runs the learners in turn"
)


@dataclasses.dataclass
class _Done:
    """A learning task that has ended."""

    learner: int
    learned: Learned
    finite: bool


class Streams(Engine):
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
    learners_run_ahead = True

    def __init__(self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> None:
        super().__init__(group, sync, settings)
        self._in_turn = InTurn(group, settings)
        self._tasks = self._in_turn.tasks
        self._watched: set[Hashable] = set()
        self._known: set[Hashable] = set()
        self._draws = False
        self._entangled = False
        self._open_crew()

    @property
    def description(self) -> str:
        """`streams`, or `streams (in turn)` where the learning task's random numbers leave no choice."""
        return f"{self.name} (in turn)" if self._entangled else self.name

    @property
    def runs_ahead(self) -> bool:
        """Not where learners run in turn."""
        return not self._entangled

    def resized(self) -> None:
        """Wrap the learners anew; where there are other places for them, the next round starts those."""
        self._in_turn.resized()
        if self._places() != (len(self._crew), self._crew.threads):
            self.close()
            self._forgotten.detach()
            self._open_crew()

    def close(self) -> None:
        """End the learners' threads; the next round starts them again."""
        self._crew.close()

    def rounds_ahead(self, batches: Sequence[Batches]) -> int:
        """Rounds that nothing is to be learned about first."""
        together = batches[: super().rounds_ahead(batches)]
        return sum(1 for _ in itertools.takewhile(self._ready, together))

    def learn(self, batches: Batches) -> Outcome:
        """Run the learning tasks at once, or in turn where that is to be."""
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
        with num_threads(self._crew.threads):  # as everywhere else, so that results do not depend on where it ran
            if self._entangled:
                return self._in_turn.learn(batches, self.round_index)
            signatures, compiled = self._signatures(batches), self._tasks.is_compiled
            compiling = compiled or signatures <= self._watched
            watch = DrawWatch(operators=not compiling)
            with contextlib.nullcontext() if compiling else uncompiled():
                outcome = self._in_turn.learn(batches, self.round_index, watch)
        if self._tasks.is_compiled == compiled:  # else it was another task that was looked at
            self._draws |= watch.draws
            seen = self._known if compiling or self._draws else self._watched
            seen |= signatures
            if watch.entangled:
                self._fall_back()
        return outcome

    def _learn_at_once(self, batches: Sequence[Batches], ahead: int) -> list[Outcome]:
        """Run rounds on the places."""
        period = _Period(self, batches, ahead)
        context = contextvars.copy_context()
        scheduler = TaskScheduler(len(self.group), len(self._crew), self.settings.dispatch)
        runs = scheduler.start([_present(each, len(self.group)) for each in batches], synchronise=ahead < len(batches))
        with task_random(self.group.device) as generator:
            before = generator.get_state()
            with uncompiled() if self._draws else contextlib.nullcontext():
                self._crew.run(scheduler, runs, lambda run: context.copy().run(period.execute, run))
            untouched = torch.equal(generator.get_state(), before)
        if not untouched:
            self._drew_unseen()
        return period.outcomes()

    def run_task(self, task: Learn, batch: Batch, seed: int) -> _Done:
        """Carry out a learning task on this thread."""
        with torch.no_grad():  # as on the calling thread; the mode is a thread's own
            learned = self._tasks.run(task.learner, batch, lambda: self._numbers(seed))
            gradient = self.group.learners[task.learner].gradient
            finite = bool(torch.isfinite(learned.loss) & torch.isfinite(gradient.sum()))
        return _Done(task.learner, learned, finite)

    def outcome(self, done: Sequence[_Done | None], *, taken: bool) -> Outcome:
        """What a round's tasks left."""
        losses, metrics = self._tasks.collected([None if each is None else each.learned for each in done])
        finite = torch.tensor([each is not None and each.finite for each in done])
        taken_by = [index if each is None else each.learner for index, each in enumerate(done)] if taken else None
        return Outcome(losses, finite, [each is not None for each in done], metrics, taken_by)

    def _numbers(self, seed: int) -> contextlib.AbstractContextManager[object]:
        return OwnNumbers(seed) if self._draws else contextlib.nullcontext()

    def _drew_unseen(self) -> None:
        """The default generator moved: the task drew random numbers that it did not draw when it was looked at."""
        if self._draws:
            self._fall_back()
            return
        self._draws = True
        self._known.clear()
        self._watched.clear()
        self._tell(
            f"the learning task drew random numbers in round {self.round_index} for the first time: those of this "
            "round do not follow from the seed, later ones do"
        )

    def _fall_back(self) -> None:
        self._entangled = True
        self._tell(IN_TURN)

    def _tell(self, message: str) -> None:
        self._note("engine changed", message)
        warnings.warn(message, stacklevel=8)

    def _ready(self, batches: Batches) -> bool:
        return not self._entangled and self._signatures(batches) <= self._known

    def _signatures(self, batches: Batches) -> set[Hashable]:
        """What sets batches apart for the learning task, above all their shapes."""
        compiled = self._tasks.is_compiled
        if isinstance(batches, Stacked):
            return {_signature(batches.value, compiled, stacked=1)}
        return {_signature(batch, compiled) for batch in batches if batch is not None}

    def _places(self) -> tuple[int, int]:
        """How many places there are to be, and with how many threads each."""
        return share_cores(len(self.group), len(available_cores()), torch.get_num_threads())

    def _open_crew(self) -> None:
        places, threads = self._places()
        self._crew = Crew(core_sets(places, threads), threads)
        self._forgotten = weakref.finalize(self, self._crew.dismiss)  # nobody has to remember `close`


class _Period:
    """Rounds that are run on places, and what has come of them so far.

    Args:
        engine: whose rounds they are.
        batches: by round.
        ahead: in so many of them, from the first on, learners step alone.
    """

    def __init__(self, engine: Streams, batches: Sequence[Batches], ahead: int) -> None:
        self._engine = engine
        self._batches = batches
        self._ahead = ahead
        self._learners = len(engine.group)
        self._done: list[list[_Done | None]] = [[None] * self._learners for _ in batches]
        self._stepping = threading.Lock()
        if not ahead:  # else every synchroniser that reads G synchronises in every round
            for learner, present in zip(engine.group.learners, _present(batches[-1], self._learners), strict=True):
                if not present:
                    learner.gradient.zero_()

    def execute(self, run: Run) -> None:
        """Carry out one learning task, and the learner's step where it steps alone."""
        assert isinstance(run.task, Learn)
        engine = self._engine
        index, position = divmod(run.task.batch, self._learners)
        began = time.perf_counter_ns()
        seed = derive_seed(engine.settings.seed, engine.round_index + index, engine.group.first + position)
        done = engine.run_task(run.task, batch_of(self._batches[index], position), seed)
        if index < self._ahead:
            # One optimizer for all learners: who steps takes the others' gradients away from it.
            with self._stepping, torch.no_grad():
                done.finite = engine.step_alone(run.task.learner, done.finite)
        self._done[index][position] = done
        place, index = f"place {run.place}", engine.round_index + index
        engine.record("learning task", "learning", began, place, learner=run.task.learner, round=index)

    def outcomes(self) -> list[Outcome]:
        """What every round left."""
        return [self._engine.outcome(done, taken=index < self._ahead) for index, done in enumerate(self._done)]


def _present(batches: Batches, learners: int) -> list[bool]:
    return [True] * learners if isinstance(batches, Stacked) else [batch is not None for batch in batches]


def _signature(batch: Batch, compiled: bool, stacked: int = 0) -> Hashable:
    """Structure of a batch, shapes and dtypes of its tensors; its numbers too where they are compiled in."""
    if type(batch) in (tuple, list) and all(type(leaf) is Tensor for leaf in batch):  # almost always, and in no time
        return type(batch), *((leaf.shape[stacked:], leaf.dtype) for leaf in batch)
    leaves, spec = tree_flatten(batch)
    return str(spec), tuple(_leaf_signature(leaf, compiled, stacked) for leaf in leaves)


def _leaf_signature(leaf: object, compiled: bool, stacked: int) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.shape[stacked:], leaf.dtype
    return repr(leaf) if compiled else type(leaf).__name__
