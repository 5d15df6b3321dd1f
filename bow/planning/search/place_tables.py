"""How long splits keep devices and channels busy, for all splits at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.split import Split
from bow.planning.problem.step_model import StepModel
from bow.planning.simulator.edges import Edge, TransferTimes, overlaps
from bow.planning.simulator.tile_tables import FAR, NEVER, Array, TileTables
from bow.planning.simulator.updating import GroupTimes, group_times


class PlaceTables:
    """What places, which are devices and then channels, have to do at least, in nanoseconds.

    Attributes:
        loads: by operator: [split, place], forward and backward passes, updates, reductions.
        edge_loads: by operator and edge: [split of the maker, split of the reader, place], transfers and gradients.
        passes: by operator: [split, tile, place], the backward pass.
        weights: by operator: [split, task, place], its reductions and updates.
        leads: by operator: [split, tile, task], whether a reduction or update waits for a tile's backward pass.
        ends: by operator: [split], what follows at least behind a reduction.
        sources: by operator and edge: [split of the maker, split of the reader, tile], the maker's tiles whose backward
            pass waits for the tile's, as bits of a number.

    Args:
        model: of the step.
        options: by operator: the splits that it may have.
        tables: of these.
        check: called again and again meanwhile; what it raises ends it.
    """

    def __init__(
        self,
        model: StepModel,
        options: Sequence[Sequence[Split]],
        tables: TileTables,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._options, self._tables, self._check = model, options, tables, check
        self.num_places = model.topology.num_devices + model.topology.num_channels
        self._transfers = TransferTimes(model.topology)
        operators = range(len(options))
        self.passes = [self._pass_table(operator) for operator in operators]
        groups = [self._group_tables(operator) for operator in operators]
        self.weights, self.leads, self.ends = map(list, zip(*groups, strict=True))
        self.loads = [self._load_table(operator) for operator in operators]
        self.sources = [[_bits(back > NEVER // 2) for back in of] for of in tables.back]
        self._seen: set[tuple[int, int]] = set()
        self.edge_loads = [[self._edge_table(edge) for edge in edges] for edges in tables.edges]

    def _pass_table(self, operator: int) -> Array:
        devices = self._tables.devices[operator]
        places = np.arange(self.num_places)
        return np.where(devices[:, :, None] == places, self._tables.backward[operator][:, :, None], 0)

    def _load_table(self, operator: int) -> Array:
        there = self._tables.devices[operator][:, :, None] == np.arange(self.num_places)
        forward = np.where(there, self._tables.forward[operator][:, :, None], 0)
        loads: Array = (forward + self.passes[operator]).sum(axis=1) + self.weights[operator].sum(axis=1)
        return loads

    def _group_tables(self, operator: int) -> tuple[Array, NDArray[np.bool_], Array]:
        """Reductions and updates of weights that this operator alone reads."""
        self._check()
        groups = [group for group in self._model.weight_groups if group.readers == (operator,)]
        found = [
            [task for group in groups for task in self._tasks(group_times(self._model, group, operator, split))]
            for split in self._options[operator]
        ]
        devices = self._tables.devices[operator]
        width = max(map(len, found))
        weights = np.zeros((len(found), width, self.num_places), np.int64)
        leads = np.zeros((*devices.shape, width), np.bool_)
        ends = np.full(len(found), FAR, np.int64)
        for option, tasks in enumerate(found):
            for number, task in enumerate(tasks):
                weights[option, number, list(task.places)] = task.duration_ns
                leads[option, :, number] = np.isin(devices[option], list(task.behind))
                ends[option] = min(ends[option], task.end_ns)
        return weights, leads, ends

    def _tasks(self, times: GroupTimes) -> Iterator[_WeightTask]:
        for members, time in times.reductions_ns.items():
            end = min(times.updates_ns[member] for member in members)
            yield _WeightTask(self._model.collective_places(members), members, time, end)
        for device, time in times.updates_ns.items():
            waits = {member for members in times.reductions_ns if device in members for member in members}
            yield _WeightTask((device,), (device, *waits), time, FAR)

    def _edge_table(self, edge: Edge) -> Array:
        """Readers of a tensor may share its transfers: those of the first one alone are counted."""
        shape = len(self._options[edge.maker]), len(self._options[edge.reader]), self.num_places
        table = np.zeros(shape, np.int64)
        if (edge.maker, edge.output) not in self._seen:
            self._seen.add((edge.maker, edge.output))
            for one in self._tables.alike(edge.maker):
                self._check()
                for other in self._tables.alike(edge.reader):
                    table[np.ix_(one, other)] = self._between(edge, one, other)
        return table

    def _between(self, edge: Edge, one: Sequence[int], other: Sequence[int]) -> Array:
        """The loads between splits of the same degrees on either side: [split, split, place].

        Tiles of a device may share a transfer: of all from a tile to a device, only the longest is counted.
        """
        made = self._model.tilings.of(edge.maker, self._options[edge.maker][one[0]].degrees).outputs[edge.output]
        read = self._model.tilings.of(edge.reader, self._options[edge.reader][other[0]].degrees).inputs[edge.input]
        flows = self._model.flows(self._model.graph.operators[edge.maker].outputs[edge.output])
        num_bytes = edge.itemsize * overlaps(made, read)
        home = self._tables.devices[edge.maker][one, : len(made)][:, None, :, None]
        away = self._tables.devices[edge.reader][other, : len(read)][None, :, None, :]
        there = self._transfers.of(num_bytes, home, away)
        back = self._transfers.of(num_bytes if flows else np.zeros_like(num_bytes), away, home)
        loads = np.zeros((len(one), len(other), self.num_places), np.int64)
        for source, target in itertools.permutations(range(self._model.topology.num_devices), 2):
            for times, route in ((there, (source, target)), (back, (target, source))):
                longest = np.where(away == target, times, 0).max(axis=3)
                busy = np.where(home[..., 0] == source, longest, 0).sum(axis=2)
                for place in self._model.transfer_places(*route):
                    loads[..., place] += busy
        return loads


@dataclass(frozen=True)
class _WeightTask:
    """A reduction or an update.

    Attributes:
        places: that it occupies.
        behind: the devices whose backward passes it waits for.
        duration_ns: how long.
        end_ns: what follows at least.
    """

    places: tuple[int, ...]
    behind: tuple[int, ...]
    duration_ns: int
    end_ns: int


def _bits(reads: NDArray[np.bool_]) -> Array:
    """Of [..., tile of the maker, tile of the reader]: by tile of the reader, the maker's as bits."""
    bits: Array = np.tensordot(reads, 1 << np.arange(reads.shape[-2]), axes=(-2, 0)).astype(np.int64)
    return bits
