"""Times of tiles that several devices or turns have measured, as one."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from bow.planning.simulator.costs import TileTime, TileTimes


def mean_times(of_devices: Sequence[TileTimes]) -> TileTimes:
    """What several devices of one kind have measured at the same time, as one: the mean."""
    return _averaged(of_devices, statistics.fmean)


def median_times(of_turns: Sequence[TileTimes]) -> TileTimes:
    """What was measured again and again, as one: medians that add up to the median of the sums.

    What interrupts a machine now and then strikes another tile every time: no tile's median has it, every turn has.
    """
    medians = _averaged(of_turns, statistics.median)
    whole = statistics.median(sum(each.tiles[key].total_ns for key in medians.tiles) for each in of_turns)
    parts = sum(time.total_ns for time in medians.tiles.values())
    factor = whole / max(parts, 1)
    return TileTimes({key: time.scaled(factor) for key, time in medians.tiles.items()}, medians.updates)


def _averaged(several: Sequence[TileTimes], average: Callable[[Iterable[float]], float]) -> TileTimes:
    keys = [key for key in several[0].tiles if all(key in each.tiles for each in several)]
    graphs = [graph for graph in several[0].updates if all(graph in each.updates for each in several)]

    def of_tile(key: str) -> TileTime:
        times = [each.tiles[key] for each in several]
        return TileTime(
            round(average([each.forward_ns for each in times])), round(average([each.backward_ns for each in times]))
        )

    return TileTimes(
        {key: of_tile(key) for key in keys},
        {graph: average([each.updates[graph] for each in several]) for graph in graphs},
    )
