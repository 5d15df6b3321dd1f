"""What devices and channels still have to do when a backward pass is over, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bow.planning.search.place_tables import PlaceTables
from bow.planning.simulator.tile_tables import FAR, Array


@dataclass(frozen=True)
class RemainingLoads:
    """Tasks that wait for backward passes of the first operators: further backward passes, reductions, updates.

    A place does one thing at a time: behind a backward pass it needs at least the sum of all that waits for it there.

    Attributes:
        tasks: [task, place], how long it takes.
        waiting: by operator: [tile, task], whether it waits for the tile's backward pass, or is it.
        loads: by operator: [tiles as bits, place], the sum of all that wait for one of these, or are it.
        ends: by place: so long the step goes on at least behind such tasks.
    """

    tasks: Array
    waiting: tuple[NDArray[np.bool_], ...]
    loads: tuple[Array, ...]
    ends: Array

    @classmethod
    def nothing(cls, tables: PlaceTables, num_devices: int) -> RemainingLoads:
        """No operator has its split yet."""
        ends = np.full(tables.num_places, FAR, np.int64)
        ends[:num_devices] = 0  # the last task of a device may be the step's last
        return cls(np.zeros((0, tables.num_places), np.int64), (), (), ends)

    def tails(self, tables: PlaceTables, operator: int, makers: Mapping[int, tuple[int, int]]) -> Array:
        """By split and tile of the next operator: so long the step goes on at least behind its backward pass."""
        own = np.einsum("stk,skp->stp", tables.leads[operator], tables.weights[operator])
        further = np.zeros_like(own)
        for edge, (maker, option) in makers.items():
            further = np.maximum(further, self.loads[maker][tables.sources[operator][edge][option]])
        ends = np.minimum(self.ends, np.where(self.ends > 0, tables.ends[operator][:, None], 0))[:, None]
        tails: Array = np.where(own + further > 0, own + further + ends, 0).max(axis=2)
        return tails

    def extended(self, tables: PlaceTables, operator: int, split: int, makers: Mapping[int, tuple[int, int]]) -> RemainingLoads:
        """With one of the splits of the next operator."""
        passes, weights = tables.passes[operator][split], tables.weights[operator][split]
        tasks = np.concatenate([self.tasks, passes, weights])
        waiting = np.zeros((len(passes), len(tasks)), np.bool_)
        for edge, (maker, option) in makers.items():
            of_maker = self.waiting[maker]
            sources = tables.sources[operator][edge][option, split]
            reads = sources[:, None] >> np.arange(len(of_maker)) & 1
            waiting[:, : of_maker.shape[1]] |= reads @ of_maker > 0
        first = len(self.tasks)
        waiting[:, first : first + len(passes)] |= np.eye(len(passes), dtype=np.bool_)
        waiting[:, first + len(passes) :] = tables.leads[operator][split]
        subsets = np.arange(1 << len(passes))[:, None] >> np.arange(len(passes)) & 1
        loads = (subsets @ waiting > 0).astype(np.int64) @ tasks
        ends = np.minimum(self.ends, np.where(self.ends > 0, tables.ends[operator][split], 0))
        return RemainingLoads(tasks, (*self.waiting, waiting), (*self.loads, loads), ends)
