"""The forward pass of one device's tiles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bow.planning.problem.box import Box, whole
from bow.planning.tiles.calls import SummedCall, call_of
from bow.planning.tiles.mailbox import Mailbox
from bow.planning.tiles.member import Member
from bow.planning.tiles.program import Fetch, Part, TileTask
from bow.planning.tiles.regions import put_together, region, sizes
from bow.planning.tiles.summing import is_alone, rows_of_all
from bow.seeds import derive_seed


@dataclass
class Saved:
    """What a tile's backward pass needs.

    Attributes:
        task: the tile.
        leaves: by input: what it was given; None: nothing.
        weights: by weight: what it read.
        outputs: what it made, with its autograd graph.
        moments: what it found for the sums, with its autograd graph; None: there are none.
        found: what all tiles of the sum found, as a leaf.
        of_found: its gradient, as far as it comes from this tile.
    """

    task: TileTask
    leaves: list[Tensor | None]
    weights: list[Tensor]
    outputs: tuple[Tensor, ...] = ()
    moments: Tensor | None = None
    found: Tensor | None = None
    of_found: Tensor | None = None

    @property
    def operands(self) -> list[Tensor | None]:
        """Inputs and weights in the order of the operator's arguments."""
        return [self.leaves[index] if kind == "input" else self.weights[index] for kind, index in self.task.order]


class ForwardPass:
    """Runs the tiles of one device, operator by operator, and sends what others need of them.

    Args:
        member: the device.
        batch: the tensors that come with the batch, by number.
        step: which step it is: random draws follow it.

    Attributes:
        saved: by operator: what its backward pass needs.
        loss: on the device that computes it, else None.
    """

    def __init__(self, member: Member, batch: Mapping[int, Tensor], step: int) -> None:
        self.saved: dict[int, list[Saved]] = {}
        self.loss: Tensor | None = None
        self._member = member
        self._batch = batch
        self._step = step
        self._made: dict[tuple[int, int], tuple[Box, Tensor]] = {}
        self._mailbox = Mailbox(member.team, member.share.tags, member.recorder)

    def run(self) -> None:
        """Go through all operators."""
        for operator, tasks in enumerate(self._member.share.tasks):
            if tasks:
                self._compute(operator, tasks)
                self._member.team.give_way()
            self._exchange(operator)
            self._release(operator)

    def close(self) -> None:
        """Wait until all that was sent has left."""
        self._mailbox.close()

    def _compute(self, operator: int, tasks: Sequence[TileTask]) -> None:
        member, name = self._member, self._member.graph.operators[operator].name
        call = call_of(member.graph.operators[operator].kind)
        has_backward = operator in member.program.backward
        given = [self._given(task) for task in tasks]
        with torch.set_grad_enabled(has_backward):
            if isinstance(call, SummedCall):
                several = [saved for saved in given if not is_alone(saved.task, member.program.tasks[operator])]
                if several:
                    self._sum_moments(call, operator, several)
            for saved in given:
                with member.recorder.span("forward", name):
                    saved.outputs = self._outputs(saved)
        for saved in given:
            self._keep(saved)
        if has_backward:
            self.saved[operator] = given

    def _outputs(self, saved: Saved) -> tuple[Tensor, ...]:
        call = call_of(saved.task.tile.kind)
        if isinstance(call, SummedCall):
            if saved.found is None:
                return call.alone(saved.task.tile, saved.operands, self._member.buffers.of(saved.task))
            return call.finish(saved.task.tile, saved.operands, saved.found)
        return call(saved.task.tile, saved.operands, derive_seed(self._member.seed, self._step, saved.task.operator))

    def _sum_moments(self, call: SummedCall, operator: int, given: Sequence[Saved]) -> None:
        """Give every tile what all tiles of its sum have found."""
        member = self._member
        with member.recorder.span("forward", member.graph.operators[operator].name):
            for saved in given:
                saved.moments = call.moments(saved.task.tile, saved.operands)
        own = [(saved.task, saved.moments.detach()) for saved in given if saved.moments is not None]
        rows = rows_of_all(own, member.program.tasks[operator], member.team, member.recorder)
        updated: set[Box] = set()
        for saved in given:
            assert saved.task.sums is not None
            saved.found = rows[saved.task.sums].detach().requires_grad_(torch.is_grad_enabled())
            if saved.task.sums not in updated:
                updated.add(saved.task.sums)
                kept = member.buffers.of(saved.task)
                with torch.no_grad():
                    if kept is not None:
                        call.update(saved.task.tile, saved.found, kept)

    def _given(self, task: TileTask) -> Saved:
        """A tile with all that it reads."""
        leaves: list[Tensor | None] = []
        for fetch in task.inputs:
            if fetch is None:
                leaves.append(None)
            else:
                flows = task.operator in self._member.program.backward and fetch.tensor in self._member.program.flows
                leaves.append(self._fetched(fetch).detach().requires_grad_(flows))
        return Saved(task, leaves, [self._member.weights.read(name, box) for name, box in task.weights])

    def _fetched(self, fetch: Fetch) -> Tensor:
        if not fetch.parts:
            tensor = self._batch[fetch.tensor]
            return region(tensor, fetch.box, whole(tensor.shape))
        return put_together(fetch.box, [(part.box, self._value(part)) for part in fetch.parts])

    def _value(self, part: Part) -> Tensor:
        if part.source != part.target:
            return self._mailbox.arrived(part)
        box, tensor = self._made[part.tensor, part.tile]
        return region(tensor, part.box, box)

    def _keep(self, saved: Saved) -> None:
        """Keep what a tile made for those that read it."""
        numbers = self._member.graph.operators[saved.task.operator].outputs
        for number, box, output in zip(numbers, saved.task.outputs, saved.outputs, strict=True):
            self._made[number, saved.task.number] = box, output.detach()
            if number == self._member.graph.loss:
                self.loss = output.detach()

    def _exchange(self, operator: int) -> None:
        """Send what an operator has made to those that read it elsewhere."""
        share = self._member.share
        sends = []
        for part in share.sends[operator]:
            box, tensor = self._made[part.tensor, part.tile]
            sends.append((part, part.target, region(tensor, part.box, box)))
        receives = [(part, part.source, self._empty(part)) for part in share.receives[operator]]
        if sends or receives:
            self._mailbox.exchange(sends, receives)
            self._member.team.give_way()

    def _empty(self, part: Part) -> Tensor:
        dtype = self._member.dtypes[part.tensor]
        return torch.empty(sizes(part.box), dtype=dtype, device=self._member.team.device)

    def _release(self, operator: int) -> None:
        """Forget what nobody reads any more; what a backward pass needs of it, autograd keeps."""
        for piece in self._member.share.last_pieces.get(operator, ()):
            self._made.pop(piece, None)
        for part in self._member.share.last_parts.get(operator, ()):
            self._mailbox.forget(part)
