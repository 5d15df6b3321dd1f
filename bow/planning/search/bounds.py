"""How long a step takes at least, when only the first operators' splits are known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bow.errors import SettingError
from bow.planning.problem.split import Split
from bow.planning.problem.step_model import StepModel
from bow.planning.search.behind import RemainingLoads
from bow.planning.search.place_tables import PlaceTables
from bow.planning.search.rests import RemainingTimes
from bow.planning.simulator.edges import edges_of
from bow.planning.simulator.tile_tables import FAR, NEVER, Array, TileTables

MOST_BYTES = 2**32
"""So much memory the times between tiles may take."""


@dataclass(frozen=True)
class Prefix:
    """The first operators with their splits, and what follows from these.

    Attributes:
        options: by operator: which of its splits it has.
        made: by operator, by tile: before this time nothing of what it makes leaves.
        tails: by operator, by tile: so long the step goes on at least after the tile's backward pass.
        loads: by place, which are devices and then channels: what it has to do.
        behind: what waits for backward passes.
        bound_ns: no step with these splits takes less.
    """

    options: tuple[int, ...]
    made: tuple[Array, ...]
    tails: tuple[Array, ...]
    loads: Array
    behind: RemainingLoads
    bound_ns: int


@dataclass(frozen=True)
class Extensions:
    """All splits of the operator behind a prefix.

    Attributes:
        before: the prefix.
        bounds_ns: by split: no step with it takes less.
        made: by split and tile, as in `Prefix`.
        tails: by split and tile.
        loads: by split and place.
    """

    before: Prefix
    bounds_ns: Array
    made: Array
    tails: Array
    loads: Array


class StepBounds:
    """Lower bounds of simulated times, by the first operators' splits.

    No step takes less than its longest chain of tasks that wait for each other. Of a chain's part in operators whose
    splits are known all is known: computing, transfers, sums, reductions and updates, and how much of that one place
    has to do one after the other (`RemainingLoads`). The rest is bounded as if each operator could have the split that is best
    for the chain (`RemainingTimes`).

    And no step takes less than what a device has to compute, nor than an equal share of what all have to.

    Args:
        model: of the step.
        options: by operator: the splits that it may have.
        check: called again and again while the tables are made, which may take long; what it raises ends it.

    Raises:
        SettingError: there are so many splits that the times between them would not fit into memory.

    References:
        Jia, Zaharia, Aiken, 2018, section 8.4, which prunes by A*.
    """

    def __init__(
        self, model: StepModel, options: Sequence[Sequence[Split]], check: Callable[[], None] = lambda: None
    ) -> None:
        _check_size(model, options)
        self._num_devices = model.topology.num_devices
        self._tables = TileTables(model, options, check)
        self._rests = RemainingTimes(self._tables, model.has_backward, check)
        self._places = PlaceTables(model, options, self._tables, check)
        least = [int(loads[:, : self._num_devices].sum(axis=1).min()) for loads in self._places.loads]
        self._least_behind = [sum(least[operator + 1 :]) for operator in range(len(least))]

    def nothing(self) -> Prefix:
        """No operator has its split yet."""
        loads = np.zeros(self._places.num_places, np.int64)
        return Prefix((), (), (), loads, RemainingLoads.nothing(self._places, self._num_devices), 0)

    def extensions(self, prefix: Prefix) -> Extensions:
        """Add each split of the next operator to a prefix that has not all yet."""
        tables, operator = self._tables, len(prefix.options)
        forward, backward, sums = tables.forward[operator], tables.backward[operator], tables.sums[operator]
        ready, behind = np.zeros_like(forward), np.full_like(forward, NEVER)
        loads = prefix.loads + self._places.loads[operator]
        makers = self._makers(prefix, operator)
        for edge, (maker, option) in makers.items():
            there, back = tables.there[operator][edge][option], tables.back[operator][edge][option]
            ready = np.maximum(ready, (there + prefix.made[maker][:, None]).max(axis=1))
            returned = tables.backward[maker][option] + prefix.tails[maker]
            behind = np.maximum(behind, (back + returned[:, None]).max(axis=1))
            loads += self._places.edge_loads[operator][edge][option]
        over = ready + forward
        made = over if sums is None else (over[:, :, None] + sums).max(axis=1)
        behind = behind if sums is None else (behind[:, None, :] + sums).max(axis=2)
        waiting = prefix.behind.tails(self._places, operator, makers)
        tails = np.maximum.reduce([tables.updates[operator], behind, waiting])
        back_at = np.maximum(over + backward, made + self._rests.around[operator])
        chains = np.maximum(back_at + tails, made + self._rests.onward[operator]).max(axis=1)
        is_tile = tables.devices[operator] >= 0
        first, last = (np.where(is_tile, times, FAR).min(axis=1) for times in (made, tails))
        wholes = first + np.maximum(self._rests.across[operator] + last, self._rests.beyond[operator])
        computing = loads[:, : self._num_devices].sum(axis=1) + self._least_behind[operator]
        shares = -(-computing // self._num_devices)
        bounds = np.maximum.reduce([chains, wholes, loads.max(axis=1), shares, np.full_like(shares, prefix.bound_ns)])
        return Extensions(prefix, bounds, made, tails, loads)

    def extended(self, extensions: Extensions, option: int) -> Prefix:
        """The prefix that is longer by one of the splits."""
        before = extensions.before
        operator = len(before.options)
        return Prefix(
            (*before.options, option),
            (*before.made, extensions.made[option]),
            (*before.tails, extensions.tails[option]),
            extensions.loads[option],
            before.behind.extended(self._places, operator, option, self._makers(before, operator)),
            int(extensions.bounds_ns[option]),
        )

    def _makers(self, prefix: Prefix, operator: int) -> dict[int, tuple[int, int]]:
        """By edge of the next operator: who makes what it reads, and with which split."""
        edges = self._tables.edges[operator]
        return {number: (edge.maker, prefix.options[edge.maker]) for number, edge in enumerate(edges)}


def _check_size(model: StepModel, options: Sequence[Sequence[Split]]) -> None:
    sizes = [len(splits) * max(split.num_tiles for split in splits) for splits in options]
    num_bytes = 2 * 8 * sum(sizes[edge.maker] * sizes[edge.reader] for edge in edges_of(model.graph))
    if num_bytes > MOST_BYTES:
        raise SettingError(
            f"a proof over {max(map(len, options))} splits of an operator would need {num_bytes / 2**30:.1f} GiB of "
            "tables; take fewer devices, or only even splits"
        )
