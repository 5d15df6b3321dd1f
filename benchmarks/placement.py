"""Learned device placement, compared with the baselines of the paper.

`part=simulated`: RNNLM, NMT and Inception-v3 in the paper's sizes (section 4.1), and the large RNNLM and NMT that
exceed one GPU (section 4.3), on a processor and 2 or 4 K80 GPUs: time of a step by method, all searches with the same
budget, next to the paper's Table 2. Also: the load of each device, towers (4.4, 4.5), pictures. Once with links as in
the data sheets, and once with copies so slow that one LSTM layer per GPU is as much slower than one GPU as in Table 2.

`part=real`: a small RNNLM on two one-core devices of this machine, placed by several methods with measured costs, and
by a policy that learns from real steps; then its steps are timed.
"""

import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import carry_out, harness, placement_real
from benchmarks.harness import setting
from benchmarks.placement_cells import DATA_SHEET, SLOW, Cell, place_cell
from benchmarks.placement_comparison import METHODS
from benchmarks.placement_networks import PLACED
from bow.planning.placement.groups import SearchBudget

PARTS = ("simulated", "real")
STEMS = ("placement", "placement_real")  # of the parts
DOCUMENT = "placement.md"

SIZES = ("paper", "large")

LINKS = (DATA_SHEET, SLOW)

# With this factor the RNNLM with a layer on each of two GPUs takes 2.4 times as long as on one, as in Table 2
COPIES = 280.0

BEHIND = 1.05  # largest ratio of the learned placement's time to that of the best baseline
BASELINES = ("cpu", "gpu", "scotch", "mincut", "metis", "expert")  # methods that do not evaluate placements


@dataclass(frozen=True)
class Config(harness.Documented):
    part: str = setting(PARTS[0], "simulated, or real (on this machine)", choices=PARTS)
    networks: tuple[str, ...] = setting(tuple(PLACED), "networks to place", choices=tuple(PLACED))
    sizes: tuple[str, ...] = setting(
        SIZES, "sizes: the paper's, and those larger than a GPU", choices=(*SIZES, "tiny"), quick=("tiny",)
    )
    gpus: tuple[int, ...] = setting((2, 4), "numbers of GPUs", quick=(2,))
    links: tuple[str, ...] = setting(
        LINKS, "links as in data sheets, or slow; large networks use the first", choices=LINKS, quick=LINKS[:1]
    )
    copies: float = setting(COPIES, "factor on the time of copies over slow links, relative to the data sheets")
    methods: tuple[str, ...] = setting(tuple(METHODS), "placement methods", choices=tuple(METHODS))
    budget_s: float = setting(100.0, "time of each search in seconds", quick=2.0)
    placements: int = setting(
        0, "maximum number of placements of each search; 0: limited by time only", quick=48, least=0
    )
    workers: int = setting(2, "number of processes; 1: only this one", quick=1)
    turns: int = setting(30, "real: number of measurements of every placement", quick=2)
    updates: int = setting(
        40, "real: updates of the policy that learns from real steps, each with 4 placements of 10 steps", quick=2
    )
    seed: int = setting(0, "random seed", least=0)

    @property
    def budget(self) -> SearchBudget:
        return SearchBudget(self.budget_s, self.placements or None)

    def cells(self) -> Iterator[Cell]:
        """Return all cells; slow links are combined with the paper's sizes only."""
        for name in self.networks:
            for size in (each for each in PLACED[name].sizes if each in self.sizes):
                for links in self.links if size == "paper" else self.links[:1]:
                    copies = self.copies if links == SLOW else 1.0
                    for gpus in self.gpus:
                        yield Cell(name, size, gpus, links, copies, self.methods, self.budget, self.seed)


def run(config: Config, command: str) -> int:
    """Measure and write, under a name for each part."""
    return carry_out(STEMS[PARTS.index(config.part)], sys.modules[__name__], config, command)


def measure(config: Config) -> dict[str, Any]:
    if config.part == "real":
        return placement_real.measure(config.budget, config.turns, config.updates, config.seed)
    return simulated(config)


def missed(values: Mapping[str, Any]) -> bool:
    return any(misses(case) for case in values.get("cases", ()))


def simulated(config: Config) -> dict[str, Any]:
    images, cells = config.docs / "images", list(config.cells())
    cases = []
    for cell in cells[:1]:  # in seconds, before hours are spent
        methods = tuple(each for each in BASELINES if each in cell.methods)
        rows = place_cell(replace(cell, size="tiny", methods=methods)).case["rows"]
        for why in {row["why_not"]: None for row in rows if row["why_not"]}:
            harness.say(f"{', '.join(row['method'] for row in rows if row['why_not'] == why)} are left out: {why}")
    for found in harness.parallel([functools.partial(place_cell, cell) for cell in cells], config.workers):
        cases.append(case := found.case)
        for name, picture in found.pictures.items():
            images.mkdir(parents=True, exist_ok=True)
            harness.write_text(images / name, picture)
        harness.say(f"{case['title']}, {case['size']}, {case['gpus']} GPUs, {case['links']}: done")
    return {"cases": cases}


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    if "cases" not in values:
        return {}
    told = harness.paper("placement")

    def told_times(case: Mapping[str, Any]) -> Mapping[str, Any]:
        if case["size"] == "large":
            return {"learned": told["large"][case["network"]]}
        found: Mapping[str, Any] = told["table_2"].get(case["network"], {}).get(case["gpus"], {})
        return found if case["size"] == "paper" else {}

    names = (
        case["title"] if case["size"] == "paper" else f"{case['title']}, {case['size']}" for case in values["cases"]
    )
    return {
        "last_of_name": dict(zip(names, values["cases"], strict=True)),
        "told_groups": told["groups"],
        "told_times": told_times,
        "row_of": row_of,
        "best_baseline": best_baseline,
        "misses": misses,
    }


def row_of(case: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """Return the row of a method; empty if it was not run."""
    return next((row for row in case["rows"] if row["method"] == method), {})


def best_baseline(case: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the fastest method that does not evaluate placements, and its seconds; None if none fits."""
    known = [(row["method"], row["seconds"]) for row in case["rows"] if row["method"] in BASELINES and row["seconds"]]
    return min(known, key=lambda each: each[1], default=None)


def misses(case: Mapping[str, Any]) -> bool:
    """Whether the learned placement is slower than the best baseline: by 5 %, or for NMT at all."""
    learned, best = row_of(case, "learned"), best_baseline(case)
    if not learned or best is None:
        return False
    seconds = learned["seconds"]
    return seconds is None or (seconds >= best[1] if case["network"] == "nmt" else seconds > BEHIND * best[1])
