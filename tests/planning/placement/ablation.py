"""What each part of learned placement brings, on the small steps whose optimum is known.

    python -m tests.planning.placement.ablation --out benchmarks/results

Every variant leaves one part of the settings out, or takes the paper's; all look at equally many placements.
"""

from __future__ import annotations

import argparse
import functools
import operator
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import harness
from bow.planning.placement.training import LearningSettings, SampledPlacements, TrainingState, train_policy
from tests.planning.placement.small_graphs import LEARNING, NEAR, SIZES, all_steps
from tests.planning.placement.small_steps import random_step

PAPER = replace(LEARNING, exploring=0.0, entropy=0.0, elites=0, settling=0.0)
"""REINFORCE with a moving-average baseline, and nothing else."""

SHIPPED = LearningSettings()
"""What bow learns by; `LEARNING` was chosen for steps as small as those here."""

VARIANTS: Mapping[str, LearningSettings] = {
    "as it is": LEARNING,
    "as shipped": SHIPPED,
    "as shipped, nothing of bow's": replace(SHIPPED, exploring=0.0, entropy=0.0, elites=0, settling=0.0),
    "without settling": replace(LEARNING, settling=0.0),
    "without elites": replace(LEARNING, elites=0),
    "without entropy": replace(LEARNING, entropy=0.0),
    "without samples that explore": replace(LEARNING, exploring=0.0),
    "without a baseline that moves": replace(LEARNING, baseline_decay=1.0),
    "20 samples an update": replace(LEARNING, samples=20),
    "elites alone": replace(PAPER, elites=LEARNING.elites),
    "entropy alone": replace(PAPER, entropy=LEARNING.entropy),
    "the paper's": PAPER,
}

FEWER = 1000
"""Half as many placements as in the comparison: with 20 graphs and 5 seeds about 12 minutes on two cores."""

FIRST = 10
"""Updates of which the mean is what drawn placements took at first, and as many at the end."""


@dataclass(frozen=True)
class Settings:
    """What is written beside the results."""

    graphs: int  # of all numbers of devices and kinds of limit in turn
    seeds: int
    samples: int = FEWER
    near: float = NEAR


def learnt(devices: int, is_limited: bool, graph: int, *, seeds: int, samples: int) -> list[dict[str, Any]]:
    """All variants on a step: times over the optimum's of the best, the greedy and what was drawn at first and last."""
    step = random_step(graph, devices, is_limited=is_limited)
    optimum = step.optimum_ns()
    rows = []
    for name, settings in VARIANTS.items():
        for seed in range(seeds):
            means: list[float] = []

            def watch(
                _: TrainingState,
                batch: SampledPlacements,
                settings: LearningSettings = settings,
                means: Any = means,
            ) -> None:
                own = batch.times[: settings.samples - settings.explorers]
                fits = [seconds for seconds in own if seconds is not None]
                if fits:
                    means.append(1e9 * statistics.fmean(fits) / optimum)

            updates = samples // settings.samples
            found = train_policy(
                step.operations, step.evaluate, updates=updates, settings=settings, sizes=SIZES, seed=seed, watch=watch
            )
            (greedy_s,) = step.evaluate([found.greedy])
            rows.append(
                {
                    "variant": name,
                    "seed": seed,
                    "best": round(1e9 * found.best.time_s / optimum, 4),
                    "greedy": None if greedy_s is None else round(1e9 * greedy_s / optimum, 4),
                    "first": round(statistics.fmean(means[:FIRST]), 4),
                    "last": round(statistics.fmean(means[-FIRST:]), 4),
                }
            )
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By variant: how often the best and the greedy are near, and how drawn placements change."""
    found = []
    for name in VARIANTS:
        own = [row for row in rows if row["variant"] == name]
        greedy = [row["greedy"] for row in own if row["greedy"] is not None]
        found.append(
            {
                "variant": name,
                "trainings": len(own),
                "best_near": _near(row["best"] for row in own),
                "greedy_near": _near(greedy),
                "best": round(statistics.geometric_mean(row["best"] for row in own), 4),
                "greedy": round(statistics.geometric_mean(greedy), 4) if greedy else None,
                "first": round(statistics.geometric_mean(row["first"] for row in own), 4),
                "last": round(statistics.geometric_mean(row["last"] for row in own), 4),
                "learns": sum(row["last"] < row["first"] for row in own),
            }
        )
    return found


def _near(ratios: Iterable[float]) -> int:
    return sum(ratio <= NEAR for ratio in ratios)


def main() -> None:
    """Print the table; keep the numbers, and change the document, if a folder is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=20, help="steps, of all numbers of devices and kinds of limit")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each variant on each")
    parser.add_argument("--samples", type=int, default=FEWER, help="placements that each training looks at")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument(
        "--out", type=Path, help="folder for placement_ablation.json; docs/placement.md is changed, too"
    )
    arguments = parser.parse_args()
    config = Settings(arguments.graphs, arguments.seeds, arguments.samples)
    began = time.perf_counter()
    jobs = [
        functools.partial(learnt, *step, seeds=config.seeds, samples=config.samples)
        for step in sorted(all_steps(-(-config.graphs // 6)), key=operator.itemgetter(2))[: config.graphs]
    ]
    rows: list[dict[str, Any]] = []
    for number, found in enumerate(harness.parallel(jobs, arguments.workers)):
        rows += [{"graph": number, **row} for row in found]
        harness.say(f"graph {number}: done")
    command = " ".join(["python -m tests.planning.placement.ablation", *sys.argv[1:]])
    findings = {"variants": summary(rows), "rows": rows}
    values = harness.result("placement_ablation", command, config, time.perf_counter() - began, findings)
    page = harness.render("placement_ablation", values)
    print(page)
    if arguments.out is not None:
        harness.write_json(arguments.out / "placement_ablation.json", values)
        harness.replace_tables(Path("docs/placement.md"), page)


if __name__ == "__main__":
    main()
