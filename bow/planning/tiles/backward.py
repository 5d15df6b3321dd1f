"""The backward pass of one device's tiles."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from bow.planning.problem.box import Box
from bow.planning.tiles.forward import Saved
from bow.planning.tiles.mailbox import Mailbox
from bow.planning.tiles.member import Member
from bow.planning.tiles.program import Fetch, Part
from bow.planning.tiles.regions import Sums, region, sizes
from bow.planning.tiles.summing import add_up, place_in_sum


class BackwardPass:
    """Runs autograd on the tiles of one device, operator by operator, the last one first.

    Gradients take the way of the values back: what a tile has read of another device's tile, it returns the gradient
    of, once nobody else here adds to it.

    Args:
        member: the device.
        saved: what the forward pass has left, by operator; it is used up.
    """

    def __init__(self, member: Member, saved: dict[int, list[Saved]]) -> None:
        self._member = member
        self._saved = saved
        self._mailbox = Mailbox(member.team, member.share.tags, member.recorder)
        self._pieces = Sums(self._zeros)  # by tensor and tile of this device
        self._parts = Sums(self._zeros)  # by part of another device's tile
        self._returning: dict[tuple[int, int], list[Part]] = {}

    def run(self) -> None:
        """Go through all operators."""
        for operator in sorted(self._member.program.backward, reverse=True):
            given = self._saved.pop(operator, [])
            if given:
                self._compute(operator, given)
                self._member.team.give_way()
            self._exchange(operator)
            self._member.weights.begin_sums(operator)

    def close(self) -> None:
        """Wait until all that was sent has left."""
        self._mailbox.close()

    def _compute(self, operator: int, given: Sequence[Saved]) -> None:
        recorder, name = self._member.recorder, self._member.graph.operators[operator].name
        arrived = [self._gradients_of_outputs(saved) for saved in given]
        for saved, gradients in zip(given, arrived, strict=True):
            with recorder.span("backward", name):
                pairs = [
                    (output, gradient)
                    for output, gradient in zip(saved.outputs, gradients, strict=True)
                    if gradient is not None and output.requires_grad
                ]
                self._differentiate(saved, pairs)
        several = [saved for saved in given if saved.moments is not None]
        if several:
            self._back_through_sums(operator, several)

    def _gradients_of_outputs(self, saved: Saved) -> list[Tensor | None]:
        """By output of a tile; None: no gradient flows through it."""
        member, found = self._member, list[Tensor | None]()
        for number, box in zip(member.graph.operators[saved.task.operator].outputs, saved.task.outputs, strict=True):
            if number == member.graph.loss:
                found.append(torch.ones(sizes(box), dtype=member.dtypes[number], device=member.team.device))
                continue
            if number not in member.program.flows:
                found.append(None)
                continue
            key = number, saved.task.number
            for part in self._returning.pop(key, ()):
                self._pieces.add(key, box, part.box, self._mailbox.arrived(part))
                self._mailbox.forget(part)
            found.append(self._pieces.take(key, box))
        return found

    def _back_through_sums(self, operator: int, given: Sequence[Saved]) -> None:
        """Add up the gradients of what all tiles of a sum have got, and go through what each tile found."""
        member, tasks = self._member, self._member.program.tasks[operator]
        totals: dict[Box, Tensor] = {}
        for saved in given:
            assert saved.task.sums is not None
            assert saved.found is not None
            gradient = torch.zeros_like(saved.found) if saved.of_found is None else saved.of_found
            totals[saved.task.sums] = totals.get(saved.task.sums, 0) + gradient
        add_up(totals, tasks, member.team, member.recorder)
        for saved in given:
            assert saved.task.sums is not None
            assert saved.moments is not None
            if saved.moments.requires_grad:
                own = totals[saved.task.sums][place_in_sum(saved.task, tasks)]
                with member.recorder.span("backward", member.graph.operators[operator].name):
                    self._differentiate(saved, [(saved.moments, own)])

    def _differentiate(self, saved: Saved, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
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
                self._member.weights.add_gradient(name, box, gradient)
        saved.of_found = next(gradients, None)

    def _add(self, fetch: Fetch, gradient: Tensor) -> None:
        """Add a gradient of what was fetched to that of each part."""
        for part in fetch.parts:
            own = region(gradient, part.box, fetch.box)
            if part.source != part.target:
                self._parts.add(part, part.box, part.box, own)
            else:
                key = part.tensor, part.tile
                self._pieces.add(key, self._box_of(key), part.box, own)

    def _exchange(self, operator: int) -> None:
        """Return the gradients that are there once an operator's backward pass has run."""
        share, team = self._member.share, self._member.team
        sends = [(part, part.source, self._parts.take(part, part.box)) for part in share.gradient_sends[operator]]
        receives = []
        for part in share.gradient_receives[operator]:
            empty = torch.empty(sizes(part.box), dtype=self._member.dtypes[part.tensor], device=team.device)
            receives.append((part, part.target, empty))
            self._returning.setdefault((part.tensor, part.tile), []).append(part)
        if sends or receives:
            self._mailbox.exchange(sends, receives)
            team.give_way()

    def _box_of(self, key: tuple[int, int]) -> Box:
        maker, place = self._member.places[key[0]]
        return self._member.program.tasks[maker][key[1]].outputs[place]

    def _zeros(self, key: Hashable, shape: tuple[int, ...]) -> Tensor:
        number = key.tensor if isinstance(key, Part) else key[0]  # type: ignore[index]
        return torch.zeros(shape, dtype=self._member.dtypes[number], device=self._member.team.device)
