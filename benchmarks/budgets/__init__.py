"""Budgets: what averaging is worth where everybody sees the same number of samples.

Accuracy at the end of a fixed budget of samples, over which the learning rate decays to zero along a cosine: it does
not depend on the speed of the machine, nor on where a curve happens to cross a target. Every contestant tries the same
learning rates, with two seeds, and takes the one with the highest accuracy on validation samples; finals are trained
with eight other seeds and measured on test samples. Contestants are paired by seed: the same initial weights, and the
same order of samples. A moving average of the central model's weights is read off the same trainings, at the learning
rate that is best for it.
"""

import functools
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

from benchmarks import harness, write_page
from benchmarks.budgets.training import (
    CONTESTANTS,
    HORIZON,
    LAST,
    MOMENTUM,
    RATES,
    TASKS,
    WARM_UP,
    Cell,
    Plan,
    carry_out,
)
from benchmarks.harness import setting
from benchmarks.harness.environment import find_commit

LEVEL = 0.05  # of the tests, after Holm's correction over the rows of a table
CONFIDENCE = 0.95
CELLS = Path("build/budgets")  # what has been trained, by commit: a second call goes on

Row = dict[str, Any]

DOCUMENT = "averaging.md"

TIMED = ("one_16", "one_32", "one_64", "one_128", "sma_2", "sma_4", "sma_8")  # whose throughput has been measured


@dataclass(frozen=True)
class Config(harness.Documented):
    tasks: tuple[str, ...] = setting(tuple(TASKS), "what is trained", choices=tuple(TASKS), quick=("digits",))
    contestants: tuple[str, ...] = setting(
        tuple(CONTESTANTS), "who takes part", choices=tuple(CONTESTANTS), quick=("one_16", "sma_4")
    )
    samples: int = setting(0, "budget instead of the tasks' own; 0: theirs", quick=256)
    rates: tuple[float, ...] = setting(RATES, "learning rates", quick=(0.02, 0.04))
    trials: int = setting(2, "seeds of the sweep", quick=1)
    seeds: int = setting(8, "seeds of the finals", least=2, quick=2)
    engine: str = setting("graph", "of bow; the arithmetic is the same", choices=("graph", "eager"), quick="eager")
    workers: int = setting(2, "processes of one thread each", quick=1)
    minutes: float = setting(600.0, "after which nothing new begins")

    @property
    def all_cells(self) -> list[Cell]:
        """What is to be trained, the most important first."""
        found = []
        for rank in sorted({CONTESTANTS[name].rank for name in self.contestants}):
            for task in self.tasks:
                budgets = (self.samples,) if self.samples else TASKS[task].budgets[::-1]
                found += [
                    Cell(task, budget, name)
                    for budget in (budgets if rank == 1 else budgets[:1])
                    for name in self.contestants
                    if CONTESTANTS[name].rank == rank <= TASKS[task].ranks
                ]
        return found


def run(config: Config, command: str) -> int:
    """Train every cell that is not trained yet; tasks of which nothing was trained keep what they gave before."""
    harness.prepare_output(config.out)
    began = time.perf_counter()
    found = measure(config)
    made = harness.result("budgets", command, config, time.perf_counter() - began, found)
    path = config.out / "budgets.json"
    values = harness.with_other_parts(made, [task for task in found if found[task]["tables"]], path)
    harness.write_json(path, values)
    write_page("budgets", sys.modules[__name__], config, values)
    return 0


def measure(config: Config) -> dict[str, Any]:
    """By task: the tables of its budgets, and what was not trained in the time there was."""
    file = _file(config)
    found = _read(file)
    missing = [cell for cell in config.all_cells if cell not in found]
    engine: Any = config.engine
    plan = Plan(config.rates, config.trials, config.seeds, engine, time.time() + 60 * config.minutes)
    jobs = [functools.partial(carry_out, cell, plan) for cell in missing]
    for cell, made in zip(missing, harness.parallel(jobs, config.workers if jobs else 1), strict=True):
        if made is not None:
            found[cell] = made
            number = f"{missing.index(cell) + 1} of {len(missing)}"
            harness.say(f"{number}: {' '.join(map(str, cell))} {made['seconds']:.0f} s")
            if file is not None:
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps([cell, made]) + "\n")
    made = {}
    for task in config.tasks:
        cells = [cell for cell in config.all_cells if cell.task == task]
        by_budget: dict[int, dict[str, Any]] = defaultdict(dict)
        for cell in cells:
            if cell in found:
                by_budget[cell.budget][cell.contestant] = found[cell]
        made[task] = {
            "left_out": [[cell.budget, cell.contestant] for cell in cells if cell not in found],
            "trainings": sum(found[cell]["trainings"] for cell in cells if cell in found),
            "tables": [
                {"budget": budget, "rows": _rows(own, config.rates)}
                for budget, own in by_budget.items()
                if any(CONTESTANTS[name].is_single for name in own)
            ],
        }
    return made


def _file(config: Config) -> Path | None:
    """Where cells are kept: under the commit, unless files differ from it."""
    folder = Path(__file__).parent
    commit = find_commit(folder, folder.parents[1] / "bow")
    if commit is None or "modified" in commit or config.quick:
        return None
    CELLS.mkdir(parents=True, exist_ok=True)
    return CELLS / f"{commit}.jsonl"


def _read(file: Path | None) -> dict[Cell, dict[str, Any]]:
    if file is None or not file.exists():
        return {}
    pairs = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {Cell(*cell): made for cell, made in pairs}


def _rows(cells: Mapping[str, Row], rates: Sequence[float]) -> list[Row]:
    return [
        {
            "contestant": name,
            "ema": bool(ema),
            "is_single": CONTESTANTS[name].is_single,
            "rate": made["rates"][ema],
            "is_edge": made["rates"][ema] in (min(rates), max(rates)),
            "swept": [[each[0], each[1 + ema]] for each in made["sweep"]],
            "validation": round(statistics.fmean(made["validation"][ema]), 5),
            "test": made["test"][ema],
        }
        for name, made in cells.items()
        for ema in range(len(made["rates"]))
    ]


def compared(rows: Sequence[Row]) -> Row:
    """Every row against the best ordinary training of one learner, and some pairs of rows that differ in one thing.

    The best is chosen by validation samples, so that the test samples do not favour it.
    """
    best = max((row for row in rows if row["is_single"]), key=lambda row: row["validation"])
    against = [{**row, "over_best": paired(row["test"], best["test"]) if row is not best else None} for row in rows]
    correct([row["over_best"] for row in against if row["over_best"]])
    by = {(row["contestant"], row["ema"]): row["test"] for row in rows}
    pairs = [
        {"first": _key(*first), "second": _key(*second), **paired(by[first], by[second])}
        for first, second in _pairs()
        if first in by and second in by
    ]
    correct(pairs)
    return {"best": _key(best["contestant"], best["ema"]), "rows": against, "pairs": pairs}


def _pairs() -> list[tuple[tuple[str, bool], tuple[str, bool]]]:
    """EMA against none, other averaging against `SMA()`'s defaults, k learners of batch b against one of batch k*b."""
    emas = [((name, True), (name, False)) for name in CONTESTANTS]
    plain = [
        ((name, False), ("sma_4", False)) for name, c in CONTESTANTS.items() if c.learners == 4 and name != "sma_4"
    ]
    sizes = [
        ((name, False), (f"one_{c.learners * c.batch_size}", False))
        for name, c in CONTESTANTS.items()
        if c.learners > 1
    ]
    return [*emas, *plain, *(pair for pair in sizes if pair[0][0].startswith("sma"))]


def _key(contestant: str, ema: bool) -> str:
    return f"{contestant}+ema" if ema else contestant


def paired(values: Sequence[float], others: Sequence[float]) -> Row:
    """The mean difference by seed in percentage points, its t interval, and one-sided t tests of both directions.

    Seeds with which one of them diverged, which is accuracy 0, are left out where two others remain.
    """
    from scipy.stats import t

    pairs = list(zip(values, others, strict=True))
    whole = [pair for pair in pairs if min(pair) > 0]
    differences = [100 * (value - other) for value, other in (whole if len(whole) > 1 else pairs)]
    n, mean = len(differences), statistics.fmean(differences)
    error = max(statistics.stdev(differences) / n**0.5, 1e-9)
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
    better = float(t.sf(mean / error, n - 1))
    return {
        "mean": round(mean, 3),
        "low": round(mean - half, 3),
        "high": round(mean + half, 3),
        "n": n,
        "p_better": float(f"{better:.3g}"),
        "p_worse": float(f"{1 - better:.3g}"),
    }


def correct(tests: Sequence[Row]) -> None:
    """Put in each a verdict, by Holm's correction: each direction at `LEVEL` over all of the tests."""
    for test in tests:
        test["verdict"] = ""
    for side in ("better", "worse"):
        ordered = sorted(tests, key=lambda test: test[f"p_{side}"])
        for index, test in enumerate(ordered):
            if test[f"p_{side}"] > LEVEL / (len(ordered) - index):
                break
            test["verdict"] = side


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows besides: comparisons, and times to the same accuracy."""
    parts = {task: values[task] for task in TASKS if task in values["made"]}
    tables = [
        {"task": task, **table, **compared(table["rows"])} for task, part in parts.items() for table in part["tables"]
    ]
    longest = [max(own, key=lambda table: int(table["budget"])) for own in _by_task(tables).values()]
    others = [name for name, each in CONTESTANTS.items() if each.learners == 4 and name != "sma_4"]
    return {
        "fixed": f"SGD with momentum {MOMENTUM:g}, cosine to 0 over the budget; warm-up over {WARM_UP:.0%} of the "
        f"rounds; EMA of the central model's weights with a horizon of {HORIZON:.0%} of the rounds; averaging in the "
        f"last part: behind {LAST:.0%} of the rounds",
        "tasks": {
            task: {**part, **values["made"][task], "title": TASKS[task].title, "about": TASKS[task].about}
            for task, part in parts.items()
        },
        "tables": tables,
        "longest": longest,
        "varied": [table for table in longest if {row["contestant"] for row in table["rows"]} & set(others)],
        "names": {name: each.title for name, each in CONTESTANTS.items()},
        "times": times(tables),
        "timed": TIMED,
        "others": others,
        "spread_of": _spread,
    }


def _spread(test: Sequence[float]) -> str:
    whole = [value for value in test if value > 0]
    diverged = f" ✗{len(test) - len(whole)}" if len(test) > len(whole) else ""
    whole = whole if len(whole) > 1 else list(test)
    return f"{100 * statistics.fmean(whole):.2f} ± {100 * statistics.stdev(whole):.2f}{diverged}"


def times(tables: Sequence[Row]) -> list[Row]:
    """By task: time to what the best learner reaches with the longer budget, over that of the fastest single learner.

    A contestant that is d points worse, where accuracy grows by g points per doubling of the samples (of the best
    learner, between the two budgets), needs 2 ** (d / g) times the samples. Throughput is that of `benchmarks.engines`:
    the fastest setting of that many learners with that batch size (with batch 128, that of 64).
    """
    engines = json.loads((harness.RESULTS / "engines.json").read_text(encoding="utf-8"))
    return [
        _times(engines, model, shorter, longer)
        for task, own in _by_task(tables).items()
        for shorter, longer in pairwise(own)
        if (model := TASKS[task].throughput)
    ]


def _by_task(tables: Sequence[Row]) -> dict[str, list[Row]]:
    """In the order of the tasks, the shorter budget first."""
    found: dict[str, list[Row]] = {task: [] for task in TASKS}
    for table in sorted(tables, key=lambda table: int(table["budget"])):
        found[table["task"]].append(table)
    return {task: own for task, own in found.items() if own}


def _times(engines: Row, model: str, shorter: Row, longer: Row) -> Row:
    gain = 100 * (_best_mean(longer) - _best_mean(shorter)) / log2(longer["budget"] / shorter["budget"])
    tests = {row["contestant"]: row["test"] for row in longer["rows"] if not row["ema"]}
    found = {name: throughput(engines, model, name) for name in TIMED if name in tests}
    speeds = {name: speed for name, speed in found.items() if speed is not None}

    def time_over(name: str, other: str) -> Row:
        difference, ratio = paired(tests[name], tests[other]), speeds[other] / speeds[name]
        of = {"mean": difference["mean"], "low": difference["high"], "high": difference["low"]}
        return {part: ratio * 2 ** (-points / gain) if gain > 0 else float("inf") for part, points in of.items()}

    singles = [name for name in speeds if CONTESTANTS[name].learners == 1]
    fastest = min(singles, key=lambda name: time_over(name, singles[0])["mean"])
    return {
        "task": longer["task"],
        "budget": longer["budget"],
        "gain": gain,
        "fastest": fastest,
        "speeds": {name: speed / speeds[fastest] for name, speed in speeds.items()},
        "times": {name: time_over(name, fastest) for name in speeds},
    }


def _best_mean(table: Row) -> float:
    row = next(row for row in table["rows"] if _key(row["contestant"], row["ema"]) == table["best"])
    return statistics.fmean(row["test"])


def throughput(engines: Row, model: str, contestant: str) -> float | None:
    """Samples per second of the fastest setting of so many learners of a batch size; None if none was measured."""
    learners, batch = CONTESTANTS[contestant].learners, min(CONTESTANTS[contestant].batch_size, 64)
    (group,) = (each for each in engines["groups"] if (each["model"], each["batch_size"]) == (model, batch))
    found = [
        float(each["samples_per_s"]["median"])
        for each in group["contestants"]
        if each.get("samples_per_s") and (each["learners"] or 1) == learners
    ]
    return max(found, default=None)
