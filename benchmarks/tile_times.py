"""Combine tile times measured by several devices or in several turns."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from bow.planning.simulator.costs import TileTime, TileTimes


def mean_times(of_devices: Sequence[TileTimes]) -> TileTimes:
    """Return the mean of concurrent measurements on several devices of one kind."""
    return _averaged(of_devices, statistics.fmean)


def median_times(of_turns: Sequence[TileTimes]) -> TileTimes:
    """Return medians of repeated measurements, scaled so that they add up to the median of the sums.

    Occasional interruptions hit a different tile each time: they affect every turn's sum, but no tile's median.
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
