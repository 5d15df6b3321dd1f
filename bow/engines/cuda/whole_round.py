"""The whole round as one CUDA graph."""

import abc
import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bow.data import Batches, Indexed, Stacked
from bow.devices import CapturedGraph, Event, Stream
from bow.engines.batches import FlatBatch
from bow.engines.cuda.context import StreamContext
from bow.engines.cuda.learner import StreamLearner
from bow.engines.cuda.runner import DeviceRunner, issue_in_parallel
from bow.engines.cuda.step import RowsStep
from bow.engines.cuda.transfers import DeviceBatches

UNROLLED = 4  # rounds in one graph if samples are stored on the device; two such graphs may be in flight


@dataclass
class StaticRound:
    """Memory that a round's graphs read and write."""

    batch: FlatBatch  # of all learners
    rows: Tensor  # results, by learner

    def by_learner(self) -> DeviceBatches:
        return DeviceBatches(self.batch, len(self.rows))

    def take(self, batches: DeviceBatches) -> None:
        if batches.stacked is not None:
            for static, leaf in zip(self.batch.leaves, batches.stacked.leaves, strict=True):
                static.copy_(leaf)
            return
        for learner, batch in enumerate(batches.by_learner):
            assert batch is not None
            for static, leaf in zip(self.batch.leaves, batch.leaves, strict=True):
                static[learner].copy_(leaf)


@dataclass
class UnrolledRounds:
    """Several rounds as one graph."""

    static: list[StaticRound]
    leaves: list[Tensor]  # of the batches, all rounds stacked
    graph: CapturedGraph


@dataclass
class CapturedRound:
    """A round as graphs, for batches of one shape."""

    static: StaticRound
    graphs: dict[bool, CapturedGraph]  # by whether it has a synchronisation task
    draws: bool
    unrolled: UnrolledRounds | None = None


class RoundGraphs(DeviceRunner):
    """Base of runners that replay one graph per round; rounds with rare shapes run on the learners' streams."""

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        context.is_whole = True
        self.stream = self.device.stream("round")
        self.generator = self.device.generator()
        self.finished_event = self.device.event("the round's graph has finished")
        self._rounds: dict[Hashable, CapturedRound] = {}
        self._last_replayed = False
        self._forked = self.device.event("the round has begun")
        self._joined = self.device.event("the round has been joined")

    @abc.abstractmethod
    def warm_up(self, static: StaticRound) -> bool:
        """Run the work to be captured a few times; return whether it draws random numbers. The host waits."""

    @abc.abstractmethod
    def issue_round(self, static: StaticRound, due: bool) -> None:
        """Issue a round, from its stream on and back to it: learning, and the rest if there is `stepping`."""

    def capture(self, batch: FlatBatch) -> None:
        context = self.context
        context.fork()
        stream, learners = self.stream, len(context.group)
        stream.wait(context.order.issued)
        with self.device.on(stream):
            static = StaticRound(
                batch.with_leaves([_repeated(leaf, learners, self.device.torch_device) for leaf in batch.leaves]),
                context.results.empty(1)[0],
            )
        stream.record(self._forked)
        draws = self.warm_up(static)
        context.order.start_event = None
        kinds = self._kinds_of_rounds() if context.stepping is not None else [False]
        captured = CapturedRound(static, {due: self._graph([static], due) for due in kinds}, draws)
        if context.stepping is not None and len(kinds) == 1 and not draws and isinstance(batch.batch, Indexed):
            captured.unrolled = self._unrolled(static, kinds[0])
        self._rounds[batch.signature] = captured

    def _unrolled(self, static: StaticRound, due: bool) -> UnrolledRounds:
        with self.device.on(self.stream):
            leaves = [torch.stack([leaf] * UNROLLED) for leaf in static.batch.leaves]
            rows = self.context.results.empty(UNROLLED)
        rounds = [
            StaticRound(static.batch.with_leaves([leaf.data[index] for leaf in leaves]), rows.data[index])
            for index in range(UNROLLED)
        ]
        return UnrolledRounds(rounds, leaves, self._graph(rounds, due))

    def _graph(self, rounds: Sequence[StaticRound], due: bool) -> CapturedGraph:
        matrix, follows = self.context.group.matrix, self.context.sync.follows(self.context.group.num_all)
        try:
            with self.device.capture(self.stream, self.generator) as graph:
                for static in rounds:
                    self.issue_round(static, due)
                    if len(rounds) > 1 and follows:
                        matrix.z.copy_(matrix.weights[0])
        except BaseException:
            self.generator = self.device.generator()  # the old one belongs to the unfinished capture
            raise
        return graph

    def issue(self, slot: int, batches: DeviceBatches, due: bool) -> None:
        context, order = self.context, self.context.order
        captured = self._captured_for(batches)
        if (captured is not None) != self._last_replayed and order.start_event is None:
            # The learners change streams; the synchronisation stream has waited for all work on the old ones.
            order.learners_moved()
        self._last_replayed = captured is not None
        if captured is None:
            rows = context.results.rows_of_learners[slot]
            issue_in_parallel(context, batches, rows, due)
            return
        with self._on_stream(batches.copied):
            captured.static.take(batches)
            if captured.draws:
                self.generator.manual_seed(context.round_seed)
            captured.graphs[due and context.stepping is not None].replay()
            context.results.rows[slot].copy_(captured.static.rows)

    def unrolls(self, batches: Sequence[Batches]) -> bool:
        """Return whether one graph holds these rounds, which are not observed in between."""
        values = [each.value if isinstance(each, Stacked) else None for each in batches]
        shapes = {each.indices.shape if isinstance(each, Indexed) else None for each in values}
        if len(values) != UNROLLED or len(shapes) > 1 or None in shapes:
            return False
        captured = self._rounds.get(FlatBatch.of(values[0], stacked=True).signature)
        return captured is not None and captured.unrolled is not None

    def issue_unrolled(self, slot: int, batches: Sequence[DeviceBatches]) -> None:
        first = batches[0].stacked
        assert first is not None
        unrolled = self._rounds[first.signature].unrolled
        assert unrolled is not None
        if not self._last_replayed and self.context.order.start_event is None:
            self.context.order.learners_moved()
        self._last_replayed = True
        with self._on_stream(None):
            for index, leaf in enumerate(unrolled.leaves):
                torch.stack([each.stacked.leaves[index] for each in batches if each.stacked is not None], out=leaf)
            unrolled.graph.replay()
            for index, static in enumerate(unrolled.static):
                self.context.results.rows[slot + index].copy_(static.rows)

    @contextlib.contextmanager
    def _on_stream(self, copied: Event | None) -> Iterator[None]:
        """Run on the graphs' stream, after everything it waits for and before everything that waits for it."""
        order = self.context.order
        for event in (order.start_event, copied):
            if event is not None:
                self.stream.wait(event)
        with self.device.on(self.stream):
            yield
        self.stream.record(self.finished_event)
        order.sync_stream.wait(self.finished_event)

    @property
    def steps_last(self) -> bool:
        return isinstance(self.context.stepping, RowsStep) and not self._last_replayed

    def streams(self) -> list[Stream]:
        return [*super().streams(), self.stream]

    def followed(self) -> None:
        """Also order the next graph, which steps without waiting for any other stream."""
        super().followed()
        self.context.order.learners_moved()

    def bind(self) -> None:
        for captured in self._rounds.values():
            for graph in captured.graphs.values():
                graph.reset()
            if captured.unrolled is not None:
                captured.unrolled.graph.reset()
        self._rounds.clear()
        super().bind()

    def _kinds_of_rounds(self) -> list[bool]:
        context = self.context
        if context.sync.every > 1 and not context.sync.follows(context.group.num_all):
            return [False, True]
        return [context.averaging.due(context.round_index)]

    def _captured_for(self, batches: DeviceBatches) -> CapturedRound | None:
        if batches.stacked is not None:
            return self._rounds.get(batches.stacked.signature)
        shapes = {None if batch is None else batch.signature for batch in batches.by_learner}
        return self._rounds.get(shapes.pop()) if len(shapes) == 1 else None


class WholeRound(RoundGraphs):
    """Replay one CUDA graph per round: the learning tasks as parallel branches, with steps and averaging."""

    # One launch per round costs the host least, and only the graph's edges order the learners, which therefore keep
    # step. The synchronisation task is a branch parallel to the learning tasks, as in Budea, TensorBow, 2019, chapter
    # 4.

    name = "graph+round"

    def warm_up(self, static: StaticRound) -> bool:
        draws = False
        for learner, batch in zip(self.context.learners, static.by_learner().by_learner, strict=True):
            assert batch is not None
            try:
                draws |= learner.try_out(batch, self._forked, strictly=True)
            finally:
                self.stream.wait(learner.finished_event)  # the first round writes other batches there
        return draws

    def issue_round(self, static: StaticRound, due: bool) -> None:
        """Fork to the learners and the synchronisation stream, and join them."""
        context, order = self.context, self.context.order
        self.stream.record(self._forked)
        order.start_event = self._forked
        if context.stepping is not None:
            order.sync_stream.wait(self._forked)
        issue_in_parallel(context, static.by_learner(), list(static.rows), due, StreamLearner.run)
        order.start_event = None
        order.sync_stream.record(self._joined)
        self.stream.wait(self._joined)


def _repeated(leaf: Tensor, learners: int, device: torch.device) -> Tensor:
    return torch.empty(learners, *leaf.shape, dtype=leaf.dtype, device=device).copy_(leaf.expand(learners, *leaf.shape))


@contextlib.contextmanager
def unchanged(tensors: Mapping[Any, Tensor]) -> Iterator[None]:
    """Restore these tensors after work outside of the training, on the current stream."""
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        yield
    finally:
        for name, tensor in tensors.items():
            tensor.copy_(before[name])
