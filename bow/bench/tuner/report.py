"""`bow bench tuner` for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from bow.bench.environment import Environment
from bow.bench.results import Table
from bow.bench.tuner.comparison import Comparison
from bow.bench.tuner.pairs import PAIRS

TARGET_RATIO = 0.95
TARGET_SHARE = 0.05

CACHES = {
    True: "with nothing compiled beforehand but bow's native runtime",
    False: "with what was compiled on this machine before",
}


def reached(comparison: Comparison) -> bool:
    """Whether choice and cost are within the targets."""
    ratio = comparison.ratio
    return (ratio is None or ratio.median >= TARGET_RATIO) and comparison.share <= TARGET_SHARE


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Everything that was measured, as plain values."""
    ratio = comparison.ratio
    pair = PAIRS[comparison.pair]
    return {
        "pair": comparison.pair,
        "model": pair.workload.title,
        "batch_size": pair.batch_size,
        "choice": str(comparison.choice),
        "best": str(comparison.best),
        "ratio": None if ratio is None else ratio.as_dict(digits=3),
        "choice_samples_per_s": comparison.speed(comparison.choice).as_dict(digits=1),
        "best_samples_per_s": comparison.speed(comparison.best).as_dict(digits=1),
        "calibration_s": round(comparison.calibration_s, 2),
        "run_s": round(comparison.run_s, 1),
        "share": round(comparison.share, 4),
        "log": comparison.summary,
        "decision_table": [_rounded(row) for row in comparison.table],
        "exhaustive": [
            {"setting": str(setting), "samples_per_s": comparison.speed(setting).as_dict(digits=1)}
            for setting in comparison.rates
        ],
        "failures": {str(setting): why for setting, why in comparison.failures.items()},
    }


def table(comparisons: Sequence[Comparison]) -> Table:
    """A row for every pair."""
    rows = [
        (
            PAIRS[each.pair].workload.title,
            str(PAIRS[each.pair].batch_size),
            str(each.choice),
            str(each.best),
            _ratio_text(each),
            f"{each.calibration_s:.1f} s",
            f"{each.share:.1%}",
            str(len([row for row in each.table if row["repeats"]])),
            str(len(each.rates)),
        )
        for each in comparisons
    ]
    headings = [
        *("model", "batch size", "the tuner's choice", "best of all", "choice over best"),
        *("calibration", "of the run", "tried", "of"),
    ]
    return Table(headings, rows, left=["model", "the tuner's choice", "best of all"])


def line(comparison: Comparison) -> str:
    """One pair in a line."""
    return (
        f"{comparison.pair}: {comparison.choice}; best of {len(comparison.rates)}: {comparison.best}; choice over best "
        f"{_ratio_text(comparison)}; {comparison.calibration_s:.1f} s, {comparison.share:.1%} of the run"
    )


def markdown(comparisons: Sequence[Comparison], values: Mapping[str, Any], environment: Environment) -> str:
    """The page `tuner.md`."""
    settings = values["settings"]
    kept = sum(map(reached, comparisons))
    return (
        "# The tuner against an exhaustive trial\n\n"
        f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s. {environment}.\n\n"
        f"Everything that can be chosen is measured, {settings['passes']} times round. In a process of its own, the "
        "tuner chooses engine, threads and number of learners for a training that would take "
        f"{settings['run_s']:g} s with the best of them, {CACHES[settings['cold']]}; calibration is everything from "
        f"the beginning to the choice. Then its choice and the best race again in turn, {settings['repeats']} times "
        f"{settings['stint_s']:g} s each: the ratio is the median (lowest to highest) of those. The data are noise, in "
        "memory; SGD with momentum, SMA in every round.\n\n"
        f"Within the targets (at least {TARGET_RATIO:.0%} of the best, at most {TARGET_SHARE:.0%} of the run): "
        f"{kept} of {len(comparisons)} pairs.\n\n"
        f"{table(comparisons).markdown()}\n"
        + "".join(f"## {each.pair}\n\n{each.summary}\n\n{_exhaustive(each).markdown()}\n" for each in comparisons)
    )


def _exhaustive(comparison: Comparison) -> Table:
    """All settings of a pair, the fastest first."""
    tried = {(row["engine"], row["learners"], row["threads"]): row for row in comparison.table}
    rows = []
    for setting in sorted(comparison.rates, key=lambda each: -comparison.speed(each).median):
        speed = comparison.speed(setting)
        row = tried.get((setting.engine, setting.learners, setting.threads))
        status = "" if row is None else f"{row['status']}: {row['why']}"
        rows.append((str(setting), f"{speed.median:,.0f}", f"{speed.low:,.0f} to {speed.high:,.0f}", status))
    rows += [(str(setting), "", "", f"does not run: {why}") for setting, why in comparison.failures.items()]
    return Table(
        ["setting", "samples/s", "from-to", "in the calibration"], rows, left=["setting", "in the calibration"]
    )


def _ratio_text(comparison: Comparison) -> str:
    ratio = comparison.ratio
    return "the same" if ratio is None else f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
