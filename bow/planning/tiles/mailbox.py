"""Parts of tensors on their way between devices."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from bow.planning.tiles.program import Part
from bow.planning.tiles.recording import Recorder
from bow.planning.tiles.team import Team, Work, wait_for

Letter: TypeAlias = tuple[Part, int, Tensor]
"""A part, the device at the other end, and the values or the place for them."""


class Mailbox:
    """Sends and receives parts of one direction: values forward, or gradients backward.

    Args:
        team: the devices.
        tags: a number for each part that travels, the same on all devices.
        recorder: notes how long this one waits.
    """

    def __init__(self, team: Team, tags: Mapping[Part, int], recorder: Recorder) -> None:
        self._team = team
        self._tags = tags
        self._recorder = recorder
        self._arriving: dict[Part, tuple[list[Work], Tensor]] = {}
        self._leaving: list[tuple[list[Work], list[Tensor]]] = []

    def exchange(self, sends: Sequence[Letter], receives: Sequence[Letter]) -> None:
        """Begin to send and to receive, in one batch."""
        outgoing = [(tensor.contiguous(), device, self._tags[part]) for part, device, tensor in sends]
        incoming = [(tensor, device, self._tags[part]) for part, device, tensor in receives]
        leaving, arriving = self._team.exchange(outgoing, incoming)
        if outgoing:
            self._leaving.append((leaving, [tensor for tensor, _, _ in outgoing]))
        one_each = len(arriving) == len(receives)
        for place, (part, _, tensor) in enumerate(receives):
            self._arriving[part] = (arriving[place : place + 1] if one_each else arriving), tensor

    def arrived(self, part: Part) -> Tensor:
        """The values of a part, once they are there."""
        works, tensor = self._arriving[part]
        if works:
            with self._recorder.span("transfer", f"tensor {part.tensor}"):
                wait_for(works)
            self._arriving[part] = [], tensor
        return tensor

    def forget(self, part: Part) -> None:
        """The values of a part are not needed any more."""
        self._arriving.pop(part, None)

    def close(self) -> None:
        """Wait until all that was sent has left."""
        for works, _ in self._leaving:
            wait_for(works)
        self._leaving.clear()
        self._arriving.clear()
