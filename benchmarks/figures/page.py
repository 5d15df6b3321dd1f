"""The page `figures.md`, made anew from all JSON files that are there."""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import Environment
from benchmarks.figures.catalogue import FIGURES
from benchmarks.figures.characteristics import MODELS, count_parameters, model_mb
from benchmarks.figures.comparison import characteristics_table, comparison, spread_text
from benchmarks.figures.convergence import METRIC
from benchmarks.figures.entries import SYNC_TITLES, Row, title
from benchmarks.figures.paper import CHARACTERISTICS, HARDWARE, SETUPS
from benchmarks.figures.settings import NAMES, TABLE
from benchmarks.measure import Spread
from benchmarks.results import Table

INTRODUCTION = f"""\
# The figures of the TensorBow evaluation

Made by benchmark `figures`; each part says by which command, when, and on what. The paper is Budea: TensorBow, \
supporting small-batch training in TensorFlow, 2019, chapter 5. Its hardware: {HARDWARE}.

**Absolute numbers do not compare**: hardware, framework and, in the small form, models and data differ. What can be \
compared are ratios, such as throughput with 2 learners over 1. TensorFlow's place is taken by plain PyTorch, which \
reads the same tensors in memory and updates with the same fused SGD; for throughput it takes turns with bow in one \
process. A value of a box is a run: a training made anew, with new learners, threads and memory and a seed of its own, \
warmed up and then timed. The runs of a figure share one process. On a CPU, whatever has fewer learners than there are \
cores, plain PyTorch included, may run with one thread or with as many as there are cores: a short race beforehand, \
whose rates are not reported, says which is faster. In figures 5.9 and 5.13 every run of bow is a whole training by \
`bow.train`, which is asked for that many devices. Boxes are quartiles, whiskers reach to 1.5 times the interquartile \
range. Numbers are medians, in parentheses the lowest and the highest.

{{models}}

{METRIC}. In figures 5.1 to 5.5 the learning rate is the same for everybody; more learners would bear, and need, a \
higher one (benchmark `sweep`). Those trainings run one after another, seed by seed: what else the machine does shows \
in their seconds, not in their epochs.
"""


RATES_ARE_OURS = (
    "The paper's text gives no learning rate and does not say whether images are augmented: the rates here are ours, "
    "and no image is augmented."
)


def stem(name: str) -> str:
    """The name of a figure's files, without what they end in."""
    return "table_5.1" if name == TABLE else f"figure_{name}"


def markdown(folder: Path) -> str:
    """The page, from what lies in the folder."""
    introduction = INTRODUCTION.format(models=_models())
    return "\n".join([introduction, *(_part(name, folder) for name in NAMES)])


def results_table(values: Mapping[str, Any]) -> Table:
    """What was measured, a row for each entry."""
    rows = values["rows"]
    return _trainings_table(rows) if "target" in values else _rates_table(rows)


def _part(name: str, folder: Path) -> str:
    heading = "Table 5.1" if name == TABLE else f"Figure {name}"
    path = folder / f"{stem(name)}.json"
    differences = [DIFFERENCES[name]()] if name in DIFFERENCES else []
    lines = [f"## {heading}: {FIGURES[name].title}", f"Paper: {SETUPS[name]}.", *differences]
    if not path.is_file():
        return "\n\n".join([*lines, f"Not measured yet: `python -m benchmarks figures figure={name}`."]) + "\n"
    values = json.loads(path.read_text(encoding="utf-8"))
    tables = [characteristics_table(values)] if name == TABLE else [comparison(name, values), results_table(values)]
    picture = "" if name == TABLE else f"![{FIGURES[name].title}]({stem(name)}.png)"
    texts = [*lines, _setup(values), picture, *(table.markdown().rstrip() for table in tables), *_refusals(values)]
    return "\n\n".join(text for text in texts if text) + "\n"


def _models() -> str:
    """How our models of the same names differ from the paper's."""
    sizes = "; ".join(f"{name}: {_sizes(name)}" for name in ("LeNet", "ResNet-32", "Logistic regression"))
    return (
        "**Not all is the paper's, even in the full form**, whose data sets, epochs and targets are. Sizes of the "
        f"models' parameters: {sizes}. {RATES_ARE_OURS}"
    )


@functools.cache
def _sizes(name: str) -> str:
    """The size of a model in the paper, and of ours."""
    paper = next(entry.model_mb for entry in CHARACTERISTICS if entry.model == name)
    workload = next(workload for model, workload, *_ in MODELS if model == name)
    parameters = count_parameters(workload.build())
    return f"{paper:g} MB in the paper, {model_mb(parameters):.3g} MB here ({parameters:,} parameters)"


def _other_lenet() -> str:
    return f"Not the paper's LeNet, but a smaller one for its images, 28x28: {_sizes('LeNet')}."


# What else of a figure is not the paper's, whatever the form
DIFFERENCES: dict[str, Callable[[], str]] = {
    **{name: lambda: RATES_ARE_OURS for name in ("5.1", "5.2")},
    **{name: lambda: f"{_other_lenet()} {RATES_ARE_OURS}" for name in ("5.3", "5.4", "5.5")},
    **{name: _other_lenet for name in ("5.8", "5.11")},
}


def _setup(values: Mapping[str, Any]) -> str:
    environment = Environment(**{**values["environment"], "gpus": tuple(values["environment"]["gpus"])})
    where = f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s, on {values['device']}"
    what = [values.get("model", ""), values.get("data", "")]
    trained = " on ".join(word for word in what if word)
    target = f", to {values['target']:.0%} test accuracy" if "target" in values else ""
    here = f"Here, form {values['form']}: {trained}{target}; {values['amount']}. " if trained else ""
    return f"{here}Fixed: {values['fixed']}.\n\n{where}. {environment}."


def _rates_table(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        speed = "refused" if "refused" in row else spread_text(Spread.of(row["samples_per_s"]), "{:,.0f}")
        threads = "" if row["threads"] is None else str(row["threads"])
        sync = SYNC_TITLES.get(row["sync"], "")
        count = "" if "refused" in row else str(len(row["samples_per_s"]))
        places = str(row["batch_size"]), str(row["devices"]), sync, row["engine"] or ""
        lines.append((title(row), *places, threads, speed, count))
    columns = ["", "batch size", "devices", "synchronisation", "engine", "threads", "samples/s", "n"]
    return Table(columns, lines, left=["", "synchronisation", "engine"])


def _trainings_table(rows: Sequence[Row]) -> Table:
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((title(row), row["batch_size"]), []).append(row)
    lines = [
        (
            who,
            f"{batch_size:,}",
            str(own[0]["threads"]),
            f"{sum(row['epochs'] is not None for row in own)} of {len(own)}",
            _to_target([row["epochs"] for row in own], "{:.3g}"),
            _to_target([row["time_s"] for row in own], "{:.2f}"),
            _speed(own),
            _best(own),
        )
        for (who, batch_size), own in groups.items()
    ]
    columns = ["", "batch size", "threads", "reached by", "epochs", "seconds", "samples/s", "best accuracy"]
    return Table(columns, lines, left=[""])


def _to_target(values: Sequence[float | None], form: str) -> str:
    """Over all trainings; one that never got there took forever."""
    spread = Spread.of([math.inf if value is None else value for value in values])
    return "never" if math.isinf(spread.low) else spread_text(spread, form).replace("inf", "never")


def _speed(rows: Sequence[Row]) -> str:
    speeds = [row["samples_per_s"] for row in rows if row["samples_per_s"] is not None]
    return spread_text(Spread.of(speeds), "{:,.0f}") if speeds else ""


def _best(rows: Sequence[Row]) -> str:
    """Of the accuracies of single epochs, the median over trainings of the highest."""
    best = [100 * max(row["accuracies"]) for row in rows if row["accuracies"]]
    diverged = sum(row["diverged"] for row in rows)
    text = f"{Spread.of(best).median:.1f}%" if best else ""
    return f"{text} ({diverged} diverged)" if diverged else text


def _refusals(values: Mapping[str, Any]) -> list[str]:
    """Which entries bow refused, and with what sentence."""
    by_sentence: dict[str, list[str]] = {}
    for row in values["rows"]:
        if "refused" in row:
            sync = SYNC_TITLES[row["sync"]]
            by_sentence.setdefault(row["refused"], []).append(f"{title(row)} on {row['devices']} devices ({sync})")
    return [f"bow refused {'; '.join(entries)}: \u201c{sentence}\u201d" for sentence, entries in by_sentence.items()]
