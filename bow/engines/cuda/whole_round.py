"""The whole round as one CUDA graph."""

import abc
import contextlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bow.devices import CapturedGraph, Stream, StreamDevice
from bow.engines.cuda.base import StreamEngine
from bow.engines.cuda.feed import Fed, Given
from bow.engines.cuda.learner import Made, StreamLearner
from bow.engines.outcome import TaskSettings
from bow.replicas import LearnerGroup
from bow.sync import Synchroniser


@dataclass
class StaticRound:
    """Memory that a round's graphs read and write.

    Attributes:
        given: the batches of all learners.
        rows: where results go, by learner.
    """

    given: Given
    rows: Tensor

    def fed(self) -> Fed:
        """The batches by learner."""
        return Fed(self.given, len(self.rows))

    def take(self, fed: Fed) -> None:
        """Copy a round's batches here, on the current stream."""
        if fed.stacked is not None:
            for static, leaf in zip(self.given.leaves, fed.stacked.leaves, strict=True):
                static.copy_(leaf)
            return
        for learner, given in enumerate(fed.given):
            assert given is not None
            for static, leaf in zip(self.given.leaves, given.leaves, strict=True):
                static[learner].copy_(leaf)


@dataclass
class _CapturedRound:
    static: StaticRound
    graphs: dict[bool, CapturedGraph]
    """By whether it has a synchronisation task."""
    draws: bool


class RoundGraphs(StreamEngine):
    """What engines have in common that replay one graph a round.

    Rounds in which a learner has no batch, or one of a rare shape, run on the learners' streams.
    """

    def __init__(
        self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings, device: StreamDevice | None = None
    ) -> None:
        self._rounds: dict[Hashable, _CapturedRound] = {}
        self._last_replayed = False
        super().__init__(group, sync, settings, device)
        self.stream = self.device.stream("round")
        self.generator = self.device.generator()
        self.through = self.device.event("the round's graph is through")
        self._forked = self.device.event("the round has begun")
        self._joined = self.device.event("the round has been joined")

    @abc.abstractmethod
    def warm_up(self, static: StaticRound) -> bool:
        """Run what will be captured a few times, and say whether it draws random numbers; the host waits."""

    @abc.abstractmethod
    def issue_round(self, static: StaticRound, due: bool) -> None:
        """Issue a round, from its stream on and back to it: learning, and all the rest if there is `stepping`."""

    def capture(self, given: Given) -> None:
        """Capture the round for batches of this shape, with and without a synchronisation task."""
        self.fork()
        stream, learners = self.stream, len(self.group)
        stream.wait(self.issued)
        with self.device.on(stream):
            static = StaticRound(
                given.with_leaves([_repeated(leaf, learners, self.device.torch_device) for leaf in given.leaves]),
                self.results.empty(1)[0],
            )
        stream.record(self._forked)
        draws = self.warm_up(static)
        self.gate = None
        graphs = {}
        for due in self._kinds_of_rounds() if self.stepping is not None else (False,):
            try:
                with self.device.capture(stream, self.generator) as graph:
                    self.issue_round(static, due)
            except BaseException:
                self.generator = self.device.generator()  # the other one takes part in a capture that has not ended
                raise
            graphs[due] = graph
        self._rounds[given.shape] = _CapturedRound(static, graphs, draws)

    def issue_learning(self, slot: int, fed: Fed, due: bool) -> None:
        """Replay the round's graph, or issue it on the learners' streams."""
        captured = self._captured_for(fed)
        if (captured is not None) != self._last_replayed and self.gate is None:
            # The other streams have the learners now. All they did, the synchronisation stream has waited for.
            self.move()
        self._last_replayed = captured is not None
        if captured is None:
            self.issue_side_by_side(fed, self.results.rows_of_learners(slot), due, self.learn_one)
            return
        stream = self.stream
        if self.gate is not None:
            stream.wait(self.gate)
        if fed.copied is not None:
            stream.wait(fed.copied)
        with self.device.on(stream):
            captured.static.take(fed)
            if captured.draws:
                self.generator.manual_seed(self.round_seed)
            captured.graphs[due and self.stepping is not None].replay()
            self.results.rows(slot).copy_(captured.static.rows)
        stream.record(self.through)
        self.sync_stream.wait(self.through)

    def streams(self) -> list[Stream]:
        """The streams that the synchronisation stream waits for."""
        return [*super().streams(), self.stream]

    def followed(self) -> None:
        """The next graph steps without waiting for anybody else."""
        self.move()

    def _kinds_of_rounds(self) -> list[bool]:
        """Whether there are rounds with a synchronisation task, and without."""
        if self.sync.every > 1 and not self.sync.follows(self.num_learners):
            return [False, True]
        return [self._due(self.round_index)]

    def _captured_for(self, fed: Fed) -> _CapturedRound | None:
        if fed.stacked is not None:
            return self._rounds.get(fed.stacked.shape)
        shapes = {None if given is None else given.shape for given in fed.given}
        return self._rounds.get(shapes.pop()) if len(shapes) == 1 else None

    def _bind(self) -> None:
        for captured in self._rounds.values():
            for graph in captured.graphs.values():
                graph.reset()
        self._rounds.clear()
        super()._bind()


class WholeRound(RoundGraphs):
    """Replays one CUDA graph a round: the learning tasks as parallel branches, with steps and averaging.

    One launch a round costs the host least, and nothing but the graph's own edges orders the learners. In exchange they
    keep step. The synchronisation task is a branch of its own beside the learning tasks, as it is in engine `graph`.

    References:
        Budea, TensorBow, 2019, chapter 4.
    """

    name = "whole_round"

    def warm_up(self, static: StaticRound) -> bool:
        """Run every learner's task on its own stream, as it is going to be captured."""
        fed, draws = static.fed(), False
        for learner, given in zip(self.learners, fed.given, strict=True):
            assert given is not None
            try:
                draws |= learner.try_out(given, self._forked, strictly=True)
            finally:
                self.stream.wait(learner.through)  # the first round writes other batches there
        return draws

    def issue_round(self, static: StaticRound, due: bool) -> None:
        """Fork to the learners and the synchronisation stream, and join them."""
        self.stream.record(self._forked)
        self.gate = self._forked
        if self.stepping is not None:
            self.sync_stream.wait(self._forked)
        self.issue_side_by_side(static.fed(), list(static.rows), due, _run)
        self.gate = None
        self.sync_stream.record(self._joined)
        self.stream.wait(self._joined)


def _run(learner: StreamLearner, given: Given) -> Made:
    return learner.run(given)


def _repeated(leaf: Tensor, learners: int, device: torch.device) -> Tensor:
    return torch.empty(learners, *leaf.shape, dtype=leaf.dtype, device=device).copy_(leaf.expand(learners, *leaf.shape))


@contextlib.contextmanager
def unchanged(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Around work that is none of the training's, on the current stream: what it does to these is undone."""
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        yield
    finally:
        for name, tensor in tensors.items():
            tensor.copy_(before[name])
