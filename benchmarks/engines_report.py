"""What is told of the measurements of `python -m benchmarks engines`."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bounds import ARITHMETIC, CALLS, MEMORY, Bound, share_text
from benchmarks.environment import Environment
from benchmarks.group import Group
from benchmarks.line_up import GRAPH, GRAPH_COMPILED, Lane
from benchmarks.measure import Spread
from benchmarks.operator_cost import CALLERS
from benchmarks.results import Table

WHO = (
    "`pytorch` is plain PyTorch; `compiled` has forward and backward compiled by `torch.compile`; `compiled_step` is "
    "the whole step, SGD included, written as one function for the purpose and compiled, with only the guards on "
    "tensors. `eager`, `fused`, `streams` "
    "and `graph` are engines of bow; `graph+compiled` is `graph` with `compile=True`. Threads are one where nothing "
    "else is said."
)

FINAL = (
    "The two were chosen by their medians in the race of everybody, and then raced again alone, as many turns: samples "
    "per second and ratios are those of this second race, so that luck in the first one does not count. All other "
    "tables are of the first race.\n"
)


def contest_table(groups: Sequence[Group]) -> Table:
    """The best of bow against the best of PyTorch: a row for every model and batch size."""
    rows = []
    for group in groups:
        sides = [text for lane in group.finalists for text in (_short(lane), _speed(lane))]
        rows.append([group.title, str(group.batch_size), *sides, _factor(group.contest)])
    columns = ["model", "batch", "best of PyTorch", "samples/s", "best of bow", "samples/s", "ratio"]
    return Table(columns, rows, left=["model", "best of PyTorch", "best of bow"])


def gains_table(groups: Sequence[Group]) -> Table:
    """Two learners over one: a row for every model and batch size."""
    names = (GRAPH, GRAPH_COMPILED)
    rows = [[group.title, str(group.batch_size), *(_factor(group.gain(name)) for name in names)] for group in groups]
    return Table(["model", "batch", *names], rows, left=["model"])


def bounds_table(bounds: Sequence[Bound]) -> Table:
    """What bounds a step: a row for every model and batch size."""
    rows = []
    for bound in bounds:
        values = bound.as_dict()
        numbers = [f"{values[name]:,}" for name in ("operators", "mflop", "mbyte", "step_us", "operator_us")]
        shares = [share_text(bound.shares[name]) for name in (ARITHMETIC, MEMORY, CALLS)]
        head = [bound.group.title, str(bound.group.batch_size), bound.lane.short]
        rows.append([*head, *numbers, f"{values['gflop_per_s']:,}", *shares, bound.name or "none of them"])
    columns = ["model", "batch", "on", "operators", "MFLOP", "MB", "us a step", "us an operator", "GFLOP/s"]
    return Table([*columns, ARITHMETIC, MEMORY, CALLS, "bound"], rows, left=["model", "on", "bound"])


def table(groups: Sequence[Group]) -> Table:
    """A row for every model, batch size, implementation and number of learners, with the better number of threads."""
    rows = [_row(group, lane) for group in groups for lane in _lanes_with_better_threads(group)]
    columns = ["model", "batch", "implementation", "learners", "threads", "samples/s", "ratio to plain PyTorch"]
    return Table(columns, rows, left=["model", "implementation"])


def summary(group: Group) -> str:
    """A line about a group."""
    pytorch, bow = group.finalists
    parts = [] if pytorch is None else [f"{pytorch.short} {_speed(pytorch)} samples/s"]
    if bow is not None:
        fast = f"{_speed(bow)} samples/s" if group.contest is None else f"{_factor(group.contest)} as fast"
        parts.append(f"bow {fast} ({bow.short})")
    what = ", ".join(parts) or "nobody ran"
    return f"{group.title}, batch {group.batch_size}: {what}; took {group.seconds:.0f} s"


def markdown(
    groups: Sequence[Group], bounds: Sequence[Bound], values: Mapping[str, Any], environment: Environment
) -> str:
    """The page `engines.md`, from the same values as `engines.json`."""
    return "\n".join(
        [
            "# Engines: samples per second\n",
            f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s. {environment}.\n",
            _method(values),
            "## Best against best\n",
            FINAL,
            contest_table(groups).markdown(),
            _mean(values),
            "## Two learners over one\n",
            "Engine `graph` with two learners over the same engine with one learner, on one thread each.\n",
            gains_table(groups).markdown(),
            "## What bounds each model\n",
            *_bounds(bounds, values),
            "## Everybody\n",
            f"Ratios are {values['ratio']}; the better number of threads is shown, `engines.json` has all.\n",
            table(groups).markdown(),
            "".join(f"* {note}\n" for group in groups for note in group.notes),
        ]
    )


def _method(values: Mapping[str, Any]) -> str:
    settings = values["settings"]
    return (
        f"Fixed: {values['fixed']}. {settings['repeats']} turns of {settings['stint_s']:g} s, taken in turns within "
        "one process after warming up; ratios are taken repeat by repeat: median (lowest-highest). What is best is "
        f"decided by the median. {WHO}\n"
    )


def _mean(values: Mapping[str, Any]) -> str:
    mean = values["geometric_mean"]
    return "" if mean is None else f"Geometric mean of the medians: {mean:.2f}.\n"


def _bounds(bounds: Sequence[Bound], values: Mapping[str, Any]) -> list[str]:
    if not bounds:
        return ["Engine `graph` did not run on one thread per learner, so nothing was estimated.\n"]
    costs = [
        f"{CALLERS[name]} {cost['median']:.2f} us ({cost['low']:.2f}-{cost['high']:.2f})"
        for name, cost in values["operator_us"].items()
    ]
    return [
        "".join(f"* {sentence}\n" for sentence in values["sentences"].values()),
        f"{values['rule']} One operator costs, by who calls it: {'; '.join(costs)}. A core reaches "
        f"{values['core']['gflop_per_s']} GFLOP/s.\n",
        bounds_table(bounds).markdown(),
    ]


def _lanes_with_better_threads(group: Group) -> list[Lane]:
    keys = dict.fromkeys((lane.implementation, lane.learners) for lane in group.lanes)
    return [lane for name, learners in keys if (lane := group.best([name], learners)) is not None]


def _row(group: Group, lane: Lane) -> list[str]:
    learners = "" if lane.learners is None else str(lane.learners)
    head = [group.title, str(group.batch_size), lane.implementation, learners, str(lane.threads)]
    return [*head, _speed(lane), _factor(group.ratio(lane))]


def _short(lane: Lane | None) -> str:
    return "" if lane is None else lane.short


def _speed(lane: Lane | None) -> str:
    return "" if lane is None else f"{lane.speed.median:,.0f}"


def _factor(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
