"""How long everything takes that two operators' splits decide, for all their splits at once."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.split import Split
from bow.planning.problem.step_model import StepModel
from bow.planning.simulator.edges import Edge, TransferTimes, edges_of, overlaps
from bow.planning.simulator.updating import group_times

Array: TypeAlias = NDArray[np.int64]

NEVER = -(2**50)
"""The time of what does not happen; sums of several stay far below any time."""

FAR = 2**50
"""The time behind what does not happen."""


class TileTables:
    """Times in nanoseconds by split and tile; all operators' tables have room for their splits' most tiles.

    Attributes:
        forward: by operator: [split, tile], the forward pass.
        backward: by operator: [split, tile], the backward pass; 0 where there is none.
        sums: by operator: [split, tile, tile], what a tile waits for before what it made leaves: a sum with that tile;
            None where nothing is summed.
        updates: by operator: [split, tile], what follows at least behind the tile's backward pass for its weights.
        devices: by operator: [split, tile], where it is computed; -1 where there is no tile.
        edges: by operator: the tensors that it reads and others make.
        there: by operator and edge: [split of the maker, split of the reader, tile, tile], the transfer.
        back: the same for the gradient.

    Args:
        model: of the step.
        options: by operator: the splits that it may have.
        check: called again and again meanwhile; what it raises ends it.
    """

    def __init__(
        self, model: StepModel, options: Sequence[Sequence[Split]], check: Callable[[], None] = lambda: None
    ) -> None:
        self._model, self._options, self._check = model, options, check
        self._transfers = TransferTimes(model.topology)
        operators = range(len(options))
        self.devices = [self._device_table(operator) for operator in operators]
        self.forward = [self._tile_table(operator, "forward") for operator in operators]
        self.backward = [self._tile_table(operator, "backward") for operator in operators]
        self.sums = [self._sum_table(operator) for operator in operators]
        self.updates = [np.zeros_like(table) for table in self.forward]
        self._add_updates()
        self.edges: list[list[Edge]] = [[] for _ in operators]
        for edge in edges_of(model.graph):
            self.edges[edge.reader].append(edge)
        self.there = [[self._transfer_table(edge, is_back=False) for edge in edges] for edges in self.edges]
        self.back = [[self._transfer_table(edge, is_back=True) for edge in edges] for edges in self.edges]

    def _device_table(self, operator: int) -> Array:
        splits = self._options[operator]
        table = np.full((len(splits), max(split.num_tiles for split in splits)), -1, np.int64)
        for option, split in enumerate(splits):
            table[option, : split.num_tiles] = split.devices
        return table

    def _tile_table(self, operator: int, which: str) -> Array:
        self._check()
        is_forward = which == "forward"
        table = np.full(self.devices[operator].shape, NEVER if is_forward else 0, np.int64)
        if is_forward or self._model.has_backward[operator]:
            for option, split in enumerate(self._options[operator]):
                tiling = self._model.tilings.of(operator, split.degrees)
                times = self._model.costs.of_tiles(operator, tiling, split.devices)
                table[option, : split.num_tiles] = times[0 if is_forward else 1]
        return table

    def _sum_table(self, operator: int) -> Array | None:
        rule, described = (
            self._model.rules.of(self._model.graph.operators[operator]),
            self._model.graph.operators[operator],
        )
        if not rule.sums(described):
            return None
        options, width = self.devices[operator].shape
        table = np.full((options, width, width), NEVER, np.int64)
        table[:, range(width), range(width)] = 0
        for option, split in enumerate(self._options[operator]):
            tiling = self._model.tilings.of(operator, split.degrees)
            for number, num_bytes in enumerate(tiling.sum_bytes):
                members = [tile for tile, of in enumerate(tiling.sums) if of == number]
                devices = tuple(sorted({split.devices[tile] for tile in members}))
                if len(devices) > 1:
                    table[option][np.ix_(members, members)] = self._model.collective(devices).time_ns(num_bytes)
        return table

    def _add_updates(self) -> None:
        """What several operators read together is updated for at least what one of them reads, and summed for free."""
        for group in self._model.weight_groups:
            is_only = len(group.readers) == 1
            for reader in group.readers:
                self._check()
                for option, split in enumerate(self._options[reader]):
                    times = group_times(self._model, group, reader, split)
                    behind = times.behind if is_only else lambda device, times=times: times.updates_ns.get(device, 0)
                    row = self.updates[reader][option]
                    row[: split.num_tiles] = np.maximum(
                        row[: split.num_tiles], [behind(each) for each in split.devices]
                    )

    def _transfer_table(self, edge: Edge, is_back: bool) -> Array:
        (makers, made), (readers, read) = self.devices[edge.maker].shape, self.devices[edge.reader].shape
        table = np.full((makers, readers, made, read), NEVER, np.int64)
        if is_back and not self._model.flows(self._model.graph.operators[edge.maker].outputs[edge.output]):
            return table
        for one in self.alike(edge.maker):
            self._check()
            for other in self.alike(edge.reader):
                self._fill(table, edge, one, other, is_back)
        return table

    def _fill(self, table: Array, edge: Edge, one: Sequence[int], other: Sequence[int], is_back: bool) -> None:
        """The times between splits of the same degrees on either side."""
        degrees = self._options[edge.maker][one[0]].degrees, self._options[edge.reader][other[0]].degrees
        made = self._model.tilings.of(edge.maker, degrees[0]).outputs[edge.output]
        read = self._model.tilings.of(edge.reader, degrees[1]).inputs[edge.input]
        num_bytes = edge.itemsize * overlaps(made, read)
        home = self.devices[edge.maker][one, : len(made)][:, None, :, None]
        away = self.devices[edge.reader][other, : len(read)][None, :, None, :]
        times = self._transfers.of(num_bytes, *((away, home) if is_back else (home, away)))
        found = np.where(num_bytes > 0, times, NEVER)
        table[np.ix_(one, other, range(len(made)), range(len(read)))] = found

    def alike(self, operator: int) -> list[list[int]]:
        """An operator's splits in groups of the same degrees."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for option, split in enumerate(self._options[operator]):
            groups.setdefault(split.degrees, []).append(option)
        return list(groups.values())
