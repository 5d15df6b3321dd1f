"""How long a step goes on at least behind an operator, whatever the splits of those behind it."""

from collections.abc import Callable, Sequence

import numpy as np

from bow.planning.simulator.tile_tables import FAR, NEVER, TileTables


class RemainingTimes:
    """Lower bounds of what is left of a step when tiles of an operator are made.

    In what is left each operator takes the split that is best for the bound, whatever it does to others. Two chains are
    looked at. One follows single tiles: `around(u, t)`, from when tile t of operator u is made through the loss and
    back to the end of its backward pass, is at least

        backward(u, t) + max over readers v of u
                         min over splits of v
                         max over tiles j of v that read of t
                         (transfer(t, j) + forward(v, j) + around(v, j) + gradient(j, t))

    The other goes from the first tile that is made to the last whose backward pass ends: `across(u)` is at least

        max over readers v of u
        min over splits of v
        (min over j max over t (transfer(t, j) + forward(v, j))
         + across(v) + min over j max over t (gradient(j, t) + backward(u, t)))

    which sees what the first overlooks: that the next operator cannot be where every tile would like to have it.

    Attributes:
        around: by operator: [split, tile].
        onward: by operator: [split, tile], from when a tile is made to an update of a later operator.
        across: by operator: [split].
        beyond: by operator: [split], from the first tile that is made to an update of a later operator.

    Args:
        tables: of the splits to choose from.
        has_backward: by operator.
        check: called again and again meanwhile; what it raises ends it.
    """

    def __init__(
        self, tables: TileTables, has_backward: Sequence[bool], check: Callable[[], None] = lambda: None
    ) -> None:
        self._tables, self._has_backward = tables, has_backward
        self.around = [np.full_like(table, NEVER) for table in tables.forward]
        self.onward = [np.full_like(table, NEVER) for table in tables.forward]
        self.across = [np.full(len(table), NEVER, np.int64) for table in tables.forward]
        self.beyond = [np.full(len(table), NEVER, np.int64) for table in tables.forward]
        for reader in reversed(range(len(self.around))):
            check()
            self._turn(reader)
            for number, edge in enumerate(tables.edges[reader]):
                self._follow_tiles(edge.maker, reader, number)
                self._follow_all(edge.maker, reader, number)

    def _turn(self, operator: int) -> None:
        """No way back is shorter than the backward pass itself; where there is none, the step may end."""
        if self._has_backward[operator]:
            backward, is_tile = self._tables.backward[operator], self._tables.devices[operator] >= 0
            self.around[operator] = np.maximum(self.around[operator], np.where(is_tile, backward, NEVER))
            self.across[operator] = np.maximum(self.across[operator], backward.max(axis=1))
            update = np.where(is_tile, self._tables.updates[operator], FAR).min(axis=1)
            self.beyond[operator] = np.maximum(self.beyond[operator], self.across[operator] + update)
            ending = self.around[operator] + self._tables.updates[operator]
            self.onward[operator] = np.maximum(self.onward[operator], ending)
        else:
            self.onward[operator] = np.maximum(self.onward[operator], 0)
            self.beyond[operator] = np.maximum(self.beyond[operator], 0)

    def _follow_tiles(self, maker: int, reader: int, edge: int) -> None:
        tables = self._tables
        coming = tables.there[reader][edge] + tables.forward[reader][None, :, None, :]
        returning = coming + self.around[reader][None, :, None, :] + tables.back[reader][edge]
        around = returning.max(axis=3).min(axis=1) + tables.backward[maker]
        self.around[maker] = np.maximum(self.around[maker], around)
        onward = (coming + self.onward[reader][None, :, None, :]).max(axis=3).min(axis=1)
        self.onward[maker] = np.maximum(self.onward[maker], onward)

    def _follow_all(self, maker: int, reader: int, edge: int) -> None:
        tables = self._tables
        is_tile = tables.devices[reader][None] >= 0
        first = tables.there[reader][edge].max(axis=2) + tables.forward[reader][None]
        coming = np.where(is_tile, first, FAR).min(axis=2)
        last = (tables.back[reader][edge] + tables.backward[maker][:, None, :, None]).max(axis=2)
        returning = np.where(is_tile, last, FAR).min(axis=2)
        across = (coming + self.across[reader] + returning).min(axis=1)
        self.across[maker] = np.maximum(self.across[maker], across)
        self.beyond[maker] = np.maximum(self.beyond[maker], (coming + self.beyond[reader]).min(axis=1))
