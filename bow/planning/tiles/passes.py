"""Forward and backward pass of one device's tiles."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bow.planning.problem.box import Box, sizes, whole
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.tiles.communication import PointToPoint, ProcessGroup, SpanRecorder, all_reduce_sums, gather_rows
from bow.planning.tiles.device_state import DeviceBuffers, DeviceWeights
from bow.planning.tiles.operators.calls import SummedCall, call_of
from bow.planning.tiles.program import Fetch, LocalProgram, TensorPart, TileProgram, TileTask
from bow.planning.tiles.regions import Sums, put_together, region
from bow.seeds import derive_seed


@dataclass(frozen=True)
class TileContext:
    """Everything that one device needs to run steps."""

    graph: OperatorGraph
    dtypes: Mapping[int, torch.dtype]  # of all tensors, by number
    program: TileProgram  # of all devices
    local: LocalProgram  # of this device
    group: ProcessGroup
    weights: DeviceWeights
    buffers: DeviceBuffers
    recorder: SpanRecorder
    seed: int

    def empty(self, part: TensorPart) -> Tensor:
        return torch.empty(sizes(part.box), dtype=self.dtypes[part.tensor], device=self.group.device)


@dataclass
class SavedTile:
    """State saved for a tile's backward pass."""

    task: TileTask
    leaves: list[Tensor | None]  # the boxes of the inputs, as autograd leaves; None: nothing is read
    weights: list[Tensor]  # the boxes of the weights
    outputs: tuple[Tensor, ...] = ()  # with their autograd graph
    moments: Tensor | None = None  # this tile's contribution to the sum, with its autograd graph; None: no sum
    all_moments: Tensor | None = None  # the contributions of all tiles of the sum, as an autograd leaf
    grad_all_moments: Tensor | None = None  # gradient of `all_moments` from this tile

    @property
    def operands(self) -> list[Tensor | None]:
        """Inputs and weights in the order of the operator's arguments."""
        return [self.leaves[index] if kind == "input" else self.weights[index] for kind, index in self.task.order]


class ForwardPass:
    """Computes the tiles of one device, operator by operator, and sends the parts that other devices read."""

    def __init__(self, context: TileContext, batch: Mapping[int, Tensor], step: int) -> None:
        self.saved: dict[int, list[SavedTile]] = {}  # by operator, for the backward pass
        self.loss: Tensor | None = None  # None on devices that do not compute it
        self._context = context
        self._batch = batch
        self._step = step
        self._tile_outputs: dict[tuple[int, int], tuple[Box, Tensor]] = {}
        self.messages = PointToPoint(context.group, context.local.tags, context.recorder)

    def run(self) -> None:
        for operator, tasks in enumerate(self._context.local.tasks):
            if tasks:
                self._compute(operator, tasks)
                self._context.group.yield_core()
            self._exchange(operator)
            # Free tensors after their last reader; autograd keeps those that the backward pass needs.
            for piece in self._context.local.last_pieces.get(operator, ()):
                self._tile_outputs.pop(piece, None)
            for part in self._context.local.last_parts.get(operator, ()):
                self.messages.discard(part)

    def _compute(self, operator: int, tasks: Sequence[TileTask]) -> None:
        context, name = self._context, self._context.graph.operators[operator].name
        call = call_of(context.graph.operators[operator].kind)
        has_backward = operator in context.program.backward
        tiles = [self._with_inputs(task) for task in tasks]
        with torch.set_grad_enabled(has_backward):
            if isinstance(call, SummedCall):
                sums = context.program.sums[operator]
                several = [saved for saved in tiles if saved.task.sums is not None and len(sums[saved.task.sums]) > 1]
                if several:
                    self._sum_moments(call, operator, several)
            for saved in tiles:
                with context.recorder.span("forward", name):
                    saved.outputs = self._outputs(saved)
        for saved in tiles:
            self._store(saved)
        if has_backward:
            self.saved[operator] = tiles

    def _outputs(self, saved: SavedTile) -> tuple[Tensor, ...]:
        call = call_of(saved.task.tile.kind)
        if isinstance(call, SummedCall):
            if saved.all_moments is None:
                return call.single_tile(saved.task.tile, saved.operands, self._context.buffers.of(saved.task))
            return call.finish(saved.task.tile, saved.operands, saved.all_moments)
        return call(saved.task.tile, saved.operands, derive_seed(self._context.seed, self._step, saved.task.operator))

    def _sum_moments(self, call: SummedCall, operator: int, tiles: Sequence[SavedTile]) -> None:
        """Exchange the moments of all tiles of each sum, and update the running statistics."""
        context = self._context
        with context.recorder.span("forward", context.graph.operators[operator].name):
            for saved in tiles:
                saved.moments = call.moments(saved.task.tile, saved.operands)
        own = [(saved.task, saved.moments.detach()) for saved in tiles if saved.moments is not None]
        rows = gather_rows(own, context.program.sums[operator], context.group, context.recorder)
        updated: set[Box] = set()
        for saved in tiles:
            assert saved.task.sums is not None
            saved.all_moments = rows[saved.task.sums].detach().requires_grad_(torch.is_grad_enabled())
            if saved.task.sums not in updated:
                updated.add(saved.task.sums)
                buffers = context.buffers.of(saved.task)
                with torch.no_grad():
                    if buffers is not None:
                        call.update(saved.task.tile, saved.all_moments, buffers)

    def _with_inputs(self, task: TileTask) -> SavedTile:
        leaves: list[Tensor | None] = []
        for fetch in task.inputs:
            if fetch is None:
                leaves.append(None)
            else:
                flows = task.operator in self._context.program.backward and fetch.tensor in self._context.program.flows
                leaves.append(self._fetched(fetch).detach().requires_grad_(flows))
        return SavedTile(task, leaves, [self._context.weights.read(name, box) for name, box in task.weights])

    def _fetched(self, fetch: Fetch) -> Tensor:
        if not fetch.parts:
            tensor = self._batch[fetch.tensor]
            return region(tensor, fetch.box, whole(tensor.shape))
        return put_together(fetch.box, [(part.box, self._value(part)) for part in fetch.parts])

    def _value(self, part: TensorPart) -> Tensor:
        if part.source != part.target:
            return self.messages.wait_for_part(part)
        box, tensor = self._tile_outputs[part.tensor, part.tile]
        return region(tensor, part.box, box)

    def _store(self, saved: SavedTile) -> None:
        numbers = self._context.graph.operators[saved.task.operator].outputs
        for number, box, output in zip(numbers, saved.task.outputs, saved.outputs, strict=True):
            self._tile_outputs[number, saved.task.number] = box, output.detach()
            if number == self._context.graph.loss:
                self.loss = output.detach()

    def _exchange(self, operator: int) -> None:
        """Send an operator's outputs to the devices that read them, and post the matching receives."""
        local = self._context.local
        sends = []
        for part in local.sends[operator]:
            box, tensor = self._tile_outputs[part.tensor, part.tile]
            sends.append((part, part.target, region(tensor, part.box, box)))
        receives = [(part, part.source, self._context.empty(part)) for part in local.receives[operator]]
        if sends or receives:
            self.messages.exchange(sends, receives)
            self._context.group.yield_core()


class BackwardPass:
    """Runs autograd on the tiles of one device, operator by operator in reverse order."""

    # Gradients of parts from other devices are accumulated locally and returned once all local readers have
    # contributed.

    def __init__(self, context: TileContext, saved: dict[int, list[SavedTile]]) -> None:
        self._context = context
        self._saved = saved
        self.messages = PointToPoint(context.group, context.local.tags, context.recorder)
        self._pieces = Sums(self._zeros)  # gradients of this device's tiles, by (tensor, tile)
        self._parts = Sums(self._zeros)  # gradients of parts from other devices
        self._returning: dict[tuple[int, int], list[TensorPart]] = {}

    def run(self) -> None:
        for operator in sorted(self._context.program.backward, reverse=True):
            tiles = self._saved.pop(operator, [])
            if tiles:
                self._compute(operator, tiles)
                self._context.group.yield_core()
            self._exchange(operator)
            self._context.weights.begin_sums(operator)

    def _compute(self, operator: int, tiles: Sequence[SavedTile]) -> None:
        recorder, name = self._context.recorder, self._context.graph.operators[operator].name
        arrived = [self._gradients_of_outputs(saved) for saved in tiles]
        for saved, gradients in zip(tiles, arrived, strict=True):
            with recorder.span("backward", name):
                pairs = [
                    (output, gradient)
                    for output, gradient in zip(saved.outputs, gradients, strict=True)
                    if gradient is not None and output.requires_grad
                ]
                self._differentiate(saved, pairs)
        several = [saved for saved in tiles if saved.moments is not None]
        if several:
            self._backward_through_sums(operator, several)

    def _gradients_of_outputs(self, saved: SavedTile) -> list[Tensor | None]:
        """Return the gradient of each output of a tile; None: no gradient flows through it."""
        context, found = self._context, list[Tensor | None]()
        for number, box in zip(context.graph.operators[saved.task.operator].outputs, saved.task.outputs, strict=True):
            if number == context.graph.loss:
                found.append(torch.ones(sizes(box), dtype=context.dtypes[number], device=context.group.device))
                continue
            if number not in context.program.flows:
                found.append(None)
                continue
            key = number, saved.task.number
            for part in self._returning.pop(key, ()):
                self._pieces.add(key, box, part.box, self.messages.wait_for_part(part))
                self.messages.discard(part)
            found.append(self._pieces.take(key, box))
        return found

    def _backward_through_sums(self, operator: int, tiles: Sequence[SavedTile]) -> None:
        """All-reduce the gradients of each sum, and backpropagate through each tile's moments."""
        context, sums = self._context, self._context.program.sums[operator]
        totals: dict[Box, Tensor] = {}
        for saved in tiles:
            assert saved.task.sums is not None
            assert saved.all_moments is not None
            gradient = torch.zeros_like(saved.all_moments) if saved.grad_all_moments is None else saved.grad_all_moments
            totals[saved.task.sums] = totals.get(saved.task.sums, 0) + gradient
        all_reduce_sums(totals, sums, context.group, context.recorder)
        for saved in tiles:
            assert saved.task.sums is not None
            assert saved.moments is not None
            if saved.moments.requires_grad:
                own = totals[saved.task.sums][sums[saved.task.sums].index(saved.task)]
                with context.recorder.span("backward", context.graph.operators[operator].name):
                    self._differentiate(saved, [(saved.moments, own)])

    def _differentiate(self, saved: SavedTile, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Backpropagate through a tile and accumulate the gradients of its inputs and weights."""
        inputs = [
            (fetch, leaf)
            for fetch, leaf in zip(saved.task.inputs, saved.leaves, strict=True)
            if fetch is not None and leaf is not None and leaf.requires_grad
        ]
        # An operator that reads a weight twice has one leaf, whose gradient is that of both.
        pairs_of_weights = zip(saved.task.weights, saved.weights, strict=True)
        weights = {weight: leaf for weight, leaf in pairs_of_weights if leaf.requires_grad}
        found = [] if saved.all_moments is None else [saved.all_moments]
        leaves = [*(leaf for _, leaf in inputs), *weights.values(), *found]
        if not pairs or not leaves:
            return
        outputs, directions = zip(*pairs, strict=True)
        gradients = iter(torch.autograd.grad(outputs, leaves, directions, allow_unused=True))
        for (fetch, _), gradient in zip(inputs, gradients, strict=False):
            if gradient is not None:
                self._add(fetch, gradient)
        for (name, box), gradient in zip(weights, gradients, strict=False):
            if gradient is not None:
                self._context.weights.add_gradient(name, box, gradient)
        saved.grad_all_moments = next(gradients, None)

    def _add(self, fetch: Fetch, gradient: Tensor) -> None:
        """Accumulate the gradient of a fetched box into its parts."""
        for part in fetch.parts:
            own = region(gradient, part.box, fetch.box)
            if part.source != part.target:
                self._parts.add(part, part.box, part.box, own)
            else:
                key = part.tensor, part.tile
                maker, place = self._context.graph.makers[part.tensor]
                box = self._context.program.tasks[maker][part.tile].outputs[place]
                self._pieces.add(key, box, part.box, own)

    def _exchange(self, operator: int) -> None:
        """Send the gradients that are complete after an operator's backward pass, and post the matching receives."""
        local, group = self._context.local, self._context.group
        sends = [(part, part.source, self._parts.take(part, part.box)) for part in local.gradient_sends[operator]]
        receives = []
        for part in local.gradient_receives[operator]:
            receives.append((part, part.target, self._context.empty(part)))
            self._returning.setdefault((part.tensor, part.tile), []).append(part)
        if sends or receives:
            self.messages.exchange(sends, receives)
            group.yield_core()

    def _zeros(self, key: Hashable, shape: tuple[int, ...]) -> Tensor:
        number = key.tensor if isinstance(key, TensorPart) else key[0]  # type: ignore[index]
        return torch.zeros(shape, dtype=self._context.dtypes[number], device=self._context.group.device)
