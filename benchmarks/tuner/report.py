"""`python -m benchmarks tuner` for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.environment import Environment
from benchmarks.measure import Spread
from benchmarks.results import Table
from benchmarks.tuner.comparison import FINALISTS, TARGET_RATIO, TARGET_SHARE, Comparison
from benchmarks.tuner.exhaustive import CLOSE, PARTS
from benchmarks.tuner.pairs import PAIRS
from bow.tuner import EngineSetting

CACHES = {
    True: "with nothing compiled beforehand but bow's native runtime",
    False: "with what was compiled on this machine before",
}


def reached(comparison: Comparison) -> bool:
    """Whether choice and cost are within the targets."""
    return comparison.verdict == "reached"


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Everything that was measured, as plain values."""
    pair = PAIRS[comparison.pair]
    tried = comparison.tried
    intervals = {name: getattr(comparison, name) for name in ("ratio", "margin", "one_learner")}
    return {
        "pair": comparison.pair,
        "model": pair.workload.title,
        "batch_size": pair.batch_size,
        "choice": None if comparison.choice is None else str(comparison.choice),
        "best": str(comparison.best),
        "next_best": None if comparison.next_best is None else str(comparison.next_best),
        "verdict": comparison.verdict,
        "speed_verdict": comparison.speed_verdict,
        "reason": comparison.reason,
        **{name: None if found is None else found.as_dict() for name, found in intervals.items()},
        "calibration_s": round(comparison.calibrated.seconds, 2),
        "run_s": round(comparison.run_s, 1),
        "share": round(comparison.share, 4),
        "log": comparison.calibrated.summary,
        "decision_table": [_rounded(row) for row in comparison.calibrated.rows],
        "turns": [_entry(setting, comparison.turns[setting]) for setting in comparison.ranking],
        "dropped": {str(setting): why for setting, why in comparison.dropped.items()},
        "exhaustive": [_entry(setting, tried.rates[setting]) for setting in tried.by_speed],
        "failures": {str(setting): why for setting, why in tried.failures.items()},
        "left_out": {str(setting): why for setting, why in tried.left_out.items()},
    }


def table(comparisons: Sequence[Comparison]) -> Table:
    """A row for every pair."""
    rows = [
        (
            PAIRS[each.pair].workload.title,
            str(PAIRS[each.pair].batch_size),
            "none" if each.choice is None else str(each.choice),
            str(each.best),
            _ratio_text(each),
            f"{each.calibrated.seconds:.1f} s",
            f"{each.share:.1%}",
            str(len([row for row in each.calibrated.rows if row["repeats"]])),
            str(len(each.tried.rates)),
            _verdict_text(each),
        )
        for each in comparisons
    ]
    headings = [
        *("model", "batch size", "the tuner's choice", "the best", "choice over best"),
        *("calibration", "of the run", "tried", "of", "verdict"),
    ]
    return Table(headings, rows, left=["model", "the tuner's choice", "the best", "verdict"])


def line(comparison: Comparison) -> str:
    """One pair in a line."""
    return (
        f"{comparison.pair}: {comparison.choice or 'no choice'}; best of {len(comparison.tried.rates)}: "
        f"{comparison.best}; choice over best {_ratio_text(comparison)}; {comparison.calibrated.seconds:.1f} s, "
        f"{comparison.share:.1%} of the run: {_verdict_text(comparison)}"
    )


def markdown(comparisons: Sequence[Comparison], values: Mapping[str, Any], environment: Environment) -> str:
    """The page `tuner.md`."""
    counts = {
        verdict: sum(each.verdict == verdict for each in comparisons) for verdict in ("reached", "undecided", "missed")
    }
    return (
        "# The tuner against an exhaustive trial\n\n"
        f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s. {environment}.\n\n"
        f"{_method(values['settings'])}\n\n"
        f"Within the targets (at least {TARGET_RATIO:.0%} of the best, at most {TARGET_SHARE:.0%} of the run): "
        f"{counts['reached']} of {len(comparisons)} pairs; undecided: {counts['undecided']}; "
        f"missed: {counts['missed']}.\n\n"
        f"{table(comparisons).markdown()}\n" + "".join(map(_section, comparisons))
    )


def _method(settings: Mapping[str, Any]) -> str:
    return (
        "1. The exhaustive trial. Every engine (eager, graph, graph compiled, streams, fused) with "
        f"1, 2, 3, 4, 6 and 8 learners, as far as {settings['most']}, and with {settings['threads']} threads and "
        "one. The list is made without the tuner. It lacks what would be the same setting twice: learners of engine "
        "graph share the threads, so that there is one thread each with as many learners as cores or more. Engine "
        "fused compiles every number of learners for itself; once that has taken more than "
        f"{settings['compile_s']:g} s for a pair, what is left of it is left out, and listed as such. Each setting is "
        f"measured for {settings['first_s']:g} s, in {PARTS} parts, warm. Those whose faster part has at least "
        f"{CLOSE:.0%} of the highest are measured {settings['passes'] - 1} times more, {settings['stint_s']:g} s each. "
        "Compiled code of earlier runs is used here, where there is any.\n"
        "2. The tuner. In a process of its own it chooses engine, threads and number of learners for a training that "
        f"would take {settings['run_s']:g} s with the fastest of 1., {CACHES[settings['cold']]}. Calibration is all "
        "that tuning took by the clock: the first look at the speed, imports, captures, compilation, trials; its share "
        f"is that of {settings['run_s']:g} s. Three things happen before: PyTorch is imported, engine eager "
        "has been made once, as every training needs them, and torch has checked which vector instructions its "
        "compiler can use, which it does once on a machine.\n"
        f"3. The turns. The choice and the {FINALISTS} fastest of 1. run in turn, {settings['turns']} times "
        f"{settings['stint_s']:g} s each, every other turn in reverse order. The best is the one with the highest "
        "median here: the fastest of many in 1. was lucky as well. The ratio is the median over the turns of the "
        "choice's throughput over the best's in the same turn; in brackets is the interval that holds the true median "
        "with a probability of 95% or a little more, from the order of the ratios alone (with fewer than 6 turns: from "
        "the lowest to the highest). Where the choice is the best, its margin over the next best is given instead. "
        "That the best is still the highest of several medians makes the ratio rather too low than too high.\n\n"
        f"A choice is fast enough if the median is at least {TARGET_RATIO:g}; it is too slow if the interval lies "
        "wholly below that; otherwise it is undecided. A tuner that falls back to its rule of thumb, or a choice "
        "that fails, has missed. The data are noise, in memory, enough of it for all numbers of learners; SGD with "
        "momentum, SMA in every round."
    )


def _section(comparison: Comparison) -> str:
    one = comparison.one_learner
    learners = "" if one is None else f"The best setting of one learner over the best of several, in turn: {one}.\n\n"
    left_out = comparison.tried.left_out
    number = f"{len(comparison.tried.rates)} settings ran"
    number += f", {len(comparison.tried.failures)} did not" if comparison.tried.failures else ""
    number += f", {len(left_out)} were left out" if left_out else ""
    return (
        f"## {comparison.pair}\n\n{_sentence(comparison)} {number}.\n\n{learners}{comparison.calibrated.summary}\n\n"
        f"In turn:\n\n{_turns(comparison).markdown()}\n"
        f"In the exhaustive trial:\n\n{_exhaustive(comparison).markdown()}\n"
    )


def _sentence(comparison: Comparison) -> str:
    """What the turns showed."""
    if comparison.reason:
        return f"Missed: {comparison.reason}."
    found = comparison.ratio
    if found is not None:
        return f"The choice over the best: {found}, {found.n} turns, confidence {found.confidence:.1%}."
    margin = comparison.margin
    if margin is None:
        return "The choice is the best."
    over = f"over the next best, {comparison.next_best}"
    return f"The choice is the best; {over}: {margin}, {margin.n} turns, confidence {margin.confidence:.1%}."


def _turns(comparison: Comparison) -> Table:
    """Those that took turns, the fastest first."""
    rows = []
    for setting in comparison.ranking:
        marks = {"the choice": comparison.choice, "the best": comparison.best}
        mark = ", ".join(name for name, which in marks.items() if which == setting)
        rows.append((str(setting), *_speed(comparison.turns[setting]), mark))
    rows += [(str(setting), "", "", f"failed: {why}") for setting, why in comparison.dropped.items()]
    return Table(["setting", "samples/s", "from-to", ""], rows, left=["setting", ""])


def _exhaustive(comparison: Comparison) -> Table:
    """All settings of a pair, the fastest first."""
    calibration = {(row["engine"], row["learners"], row["threads"]): row for row in comparison.calibrated.rows}

    def note(setting: EngineSetting) -> str:
        row = calibration.get((setting.engine, setting.learners, setting.threads))
        return "" if row is None else f"{row['status']}: {row['why']}"

    tried = comparison.tried
    rows = [
        (str(setting), *_speed(tried.rates[setting]), str(len(tried.rates[setting])), note(setting))
        for setting in tried.by_speed
    ]
    rows += [(str(setting), "", "", "", f"does not run: {why}") for setting, why in tried.failures.items()]
    rows += [(str(setting), "", "", "", f"left out: {why}") for setting, why in tried.left_out.items()]
    columns = ["setting", "samples/s", "from-to", "n", "in the calibration"]
    return Table(columns, rows, left=["setting", "in the calibration"])


def _speed(rates: Sequence[float]) -> tuple[str, str]:
    speed = Spread.of(rates)
    return f"{speed.median:,.0f}", f"{speed.low:,.0f} to {speed.high:,.0f}"


def _ratio_text(comparison: Comparison) -> str:
    found, margin = comparison.ratio, comparison.margin
    if found is not None:
        return str(found)
    if comparison.choice != comparison.best:
        return "none"
    return "the same" if margin is None else f"the same; over the next {margin}"


def _verdict_text(comparison: Comparison) -> str:
    if comparison.reason:
        return f"{comparison.verdict}: {comparison.reason}"
    if comparison.share <= TARGET_SHARE:
        return comparison.verdict
    return f"missed: cost{' and speed' if comparison.speed_verdict == 'missed' else ''}"


def _entry(setting: EngineSetting, rates: Sequence[float]) -> dict[str, Any]:
    speed = Spread.of(rates).as_dict(digits=1)
    return {"setting": str(setting), "samples_per_s": speed, "rates": [round(rate, 1) for rate in rates]}


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
