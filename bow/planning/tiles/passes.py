"""The forward and the backward pass of one device's tiles."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bow.planning.problem.box import Box, sizes, whole
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.tiles.communication import PointToPoint, SpanRecorder, add_up, rows_of_all
from bow.planning.tiles.device_state import DeviceBuffers, DeviceWeights
from bow.planning.tiles.operators.calls import SummedCall, call_of
from bow.planning.tiles.process_group import ProcessGroup
from bow.planning.tiles.program import Fetch, LocalProgram, TensorPart, TileProgram, TileTask
from bow.planning.tiles.regions import Sums, put_together, region
from bow.seeds import derive_seed


@dataclass(frozen=True)
class TileContext:
    """One device of a group, ready to run steps."""

    graph: OperatorGraph  # the operators
    dtypes: Mapping[int, torch.dtype]  # of all tensors, by number
    program: TileProgram  # what all devices do in a step
    local: LocalProgram
    group: ProcessGroup  # the devices
    weights: DeviceWeights  # what this one has of the weights
    buffers: DeviceBuffers  # what this one keeps besides
    recorder: SpanRecorder  # notes when it does what
    seed: int  # of random draws

    def empty(self, part: TensorPart) -> Tensor:
        """Room for a part that another device sends."""
        return torch.empty(sizes(part.box), dtype=self.dtypes[part.tensor], device=self.group.device)


@dataclass
class SavedTile:
    """What a tile's backward pass needs."""

    task: TileTask  # the tile
    leaves: list[Tensor | None]  # by input: what it was given; None: nothing
    weights: list[Tensor]  # by weight: what it read
    outputs: tuple[Tensor, ...] = ()  # what it made, with its autograd graph
    moments: Tensor | None = None  # what it found for the sums, with its autograd graph; None: there are none
    found: Tensor | None = None  # what all tiles of the sum found, as a leaf
    of_found: Tensor | None = None  # its gradient, as far as it comes from this tile

    @property
    def operands(self) -> list[Tensor | None]:
        """Inputs and weights in the order of the operator's arguments."""
        return [self.leaves[index] if kind == "input" else self.weights[index] for kind, index in self.task.order]


class ForwardPass:
    """Runs the tiles of one device, operator by operator, and sends what others need of them."""

    def __init__(self, context: TileContext, batch: Mapping[int, Tensor], step: int) -> None:
        self.saved: dict[int, list[SavedTile]] = {}  # by operator: what its backward pass needs
        self.loss: Tensor | None = None  # on the device that computes it, else None
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
            self._release(operator)

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
            if saved.found is None:
                return call.alone(saved.task.tile, saved.operands, self._context.buffers.of(saved.task))
            return call.finish(saved.task.tile, saved.operands, saved.found)
        return call(saved.task.tile, saved.operands, derive_seed(self._context.seed, self._step, saved.task.operator))

    def _sum_moments(self, call: SummedCall, operator: int, tiles: Sequence[SavedTile]) -> None:
        """Give every tile what all tiles of its sum have found."""
        context = self._context
        with context.recorder.span("forward", context.graph.operators[operator].name):
            for saved in tiles:
                saved.moments = call.moments(saved.task.tile, saved.operands)
        own = [(saved.task, saved.moments.detach()) for saved in tiles if saved.moments is not None]
        rows = rows_of_all(own, context.program.sums[operator], context.group, context.recorder)
        updated: set[Box] = set()
        for saved in tiles:
            assert saved.task.sums is not None
            saved.found = rows[saved.task.sums].detach().requires_grad_(torch.is_grad_enabled())
            if saved.task.sums not in updated:
                updated.add(saved.task.sums)
                buffers = context.buffers.of(saved.task)
                with torch.no_grad():
                    if buffers is not None:
                        call.update(saved.task.tile, saved.found, buffers)

    def _with_inputs(self, task: TileTask) -> SavedTile:
        """A tile with all that it reads."""
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
            return self.messages.arrived(part)
        box, tensor = self._tile_outputs[part.tensor, part.tile]
        return region(tensor, part.box, box)

    def _store(self, saved: SavedTile) -> None:
        """Keep what a tile made for those that read it."""
        numbers = self._context.graph.operators[saved.task.operator].outputs
        for number, box, output in zip(numbers, saved.task.outputs, saved.outputs, strict=True):
            self._tile_outputs[number, saved.task.number] = box, output.detach()
            if number == self._context.graph.loss:
                self.loss = output.detach()

    def _exchange(self, operator: int) -> None:
        """Send what an operator has made to those that read it elsewhere."""
        local = self._context.local
        sends = []
        for part in local.sends[operator]:
            box, tensor = self._tile_outputs[part.tensor, part.tile]
            sends.append((part, part.target, region(tensor, part.box, box)))
        receives = [(part, part.source, self._context.empty(part)) for part in local.receives[operator]]
        if sends or receives:
            self.messages.exchange(sends, receives)
            self._context.group.yield_core()

    def _release(self, operator: int) -> None:
        """Forget what nobody reads any more; what a backward pass needs of it, autograd keeps."""
        for piece in self._context.local.last_pieces.get(operator, ()):
            self._tile_outputs.pop(piece, None)
        for part in self._context.local.last_parts.get(operator, ()):
            self.messages.forget(part)


class BackwardPass:
    """Runs autograd on the tiles of one device, operator by operator, the last one first."""

    # Gradients take the way of the values back: what a tile has read of another device's tile, it returns the gradient
    # of, once nobody else here adds to it.

    def __init__(self, context: TileContext, saved: dict[int, list[SavedTile]]) -> None:
        self._context = context
        self._saved = saved
        self.messages = PointToPoint(context.group, context.local.tags, context.recorder)
        self._pieces = Sums(self._zeros)  # by tensor and tile of this device
        self._parts = Sums(self._zeros)  # by part of another device's tile
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
            self._back_through_sums(operator, several)

    def _gradients_of_outputs(self, saved: SavedTile) -> list[Tensor | None]:
        """By output of a tile; None: no gradient flows through it."""
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
                self._pieces.add(key, box, part.box, self.messages.arrived(part))
                self.messages.forget(part)
            found.append(self._pieces.take(key, box))
        return found

    def _back_through_sums(self, operator: int, tiles: Sequence[SavedTile]) -> None:
        """Add up the gradients of what all tiles of a sum have got, and go through what each tile found."""
        context, sums = self._context, self._context.program.sums[operator]
        totals: dict[Box, Tensor] = {}
        for saved in tiles:
            assert saved.task.sums is not None
            assert saved.found is not None
            gradient = torch.zeros_like(saved.found) if saved.of_found is None else saved.of_found
            totals[saved.task.sums] = totals.get(saved.task.sums, 0) + gradient
        add_up(totals, sums, context.group, context.recorder)
        for saved in tiles:
            assert saved.task.sums is not None
            assert saved.moments is not None
            if saved.moments.requires_grad:
                own = totals[saved.task.sums][sums[saved.task.sums].index(saved.task)]
                with context.recorder.span("backward", context.graph.operators[operator].name):
                    self._differentiate(saved, [(saved.moments, own)])

    def _differentiate(self, saved: SavedTile, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Add the gradients of what a tile has read to where it comes from."""
        inputs = [
            (fetch, leaf)
            for fetch, leaf in zip(saved.task.inputs, saved.leaves, strict=True)
            if fetch is not None and leaf is not None and leaf.requires_grad
        ]
        weights = [
            (weight, leaf) for weight, leaf in zip(saved.task.weights, saved.weights, strict=True) if leaf.requires_grad
        ]
        found = [] if saved.found is None else [saved.found]
        leaves = [*(leaf for _, leaf in inputs), *(leaf for _, leaf in weights), *found]
        if not pairs or not leaves:
            return
        outputs, directions = zip(*pairs, strict=True)
        gradients = iter(torch.autograd.grad(outputs, leaves, directions, allow_unused=True))
        for (fetch, _), gradient in zip(inputs, gradients, strict=False):
            if gradient is not None:
                self._add(fetch, gradient)
        for ((name, box), _), gradient in zip(weights, gradients, strict=False):
            if gradient is not None:
                self._context.weights.add_gradient(name, box, gradient)
        saved.of_found = next(gradients, None)

    def _add(self, fetch: Fetch, gradient: Tensor) -> None:
        """Add a gradient of what was fetched to that of each part."""
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
        """Return the gradients that are there once an operator's backward pass has run."""
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
