"""Partitions by METIS, which knows loads and edges, and nothing about links."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

from bow.errors import MissingDependencyError
from bow.planning.placement.evaluation import SimulatedEvaluator
from bow.planning.placement.groups import Devices
from bow.planning.placement.loads import group_times_ns, loads, speeds, traffic

MOST = 10_000
"""The largest load and the largest weight of an edge: METIS adds them up in whole numbers of 32 bits."""


def metis(evaluator: SimulatedEvaluator, seed: int = 0, devices: Sequence[int] | None = None) -> Devices:
    """Cut the groups into a part for each accelerator, with loads by their speeds and the least that crosses.

    References:
        Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, 1995.
    """
    chosen = list(evaluator.accelerators if devices is None else devices)
    if len(chosen) == 1:
        return evaluator.legal((chosen[0],) * len(evaluator.groups))
    times = group_times_ns(evaluator)
    ways: list[dict[int, int]] = [{} for _ in range(len(evaluator.groups))]
    for (a, b), weight in traffic(evaluator, MOST).items():
        ways[a][b] = ways[b][a] = weight
    pymetis = _library()
    found = pymetis.part_graph(
        len(chosen),
        pymetis.CSRAdjacency(
            [*itertools.accumulate(map(len, ways), initial=0)], [other for way in ways for other in way]
        ),
        vweights=loads(times, chosen, MOST),
        eweights=[weight for way in ways for weight in way.values()],
        tpwgts=speeds([times[device] for device in chosen]),
        options=pymetis.Options(seed=random.Random(seed).randrange(2**31)),
    )
    return evaluator.legal(tuple(chosen[part] for part in found.vertex_part))


def _library() -> Any:
    try:
        import pymetis
    except ImportError as error:
        raise MissingDependencyError(
            "method=metis needs the package pymetis; pip install 'bow-trainer[partition]'"
        ) from error
    return pymetis
