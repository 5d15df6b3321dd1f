"""`python -m benchmarks costs` for people."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Table
from bow.models import NETWORKS

# Liu et al.: accuracy of hill climbing, by network and interval
TABLE_V: Mapping[str, Mapping[str, float]] = {
    "resnet50": {"2": 0.9813, "4": 0.9545, "8": 0.8342, "16": 0.3112},
    "dcgan": {"2": 0.9716, "4": 0.9443, "8": 0.5154, "16": 0.1014},
    "inception": {"2": 0.9791, "4": 0.9422, "8": 0.7321, "16": 0.2121},
}

# Liu et al.: accuracy in percent and R2, by number of samples and family
TABLE_IV: Mapping[str, Mapping[str, tuple[int, float]]] = {
    "1": {
        "gradient boosting": (61, 0.961),
        "k-neighbours": (56, 0.818),
        "Theil-Sen": (37, 0.779),
        "ordinary least squares": (27, 0.981),
        "passive aggressive": (18, 0.196),
    },
    "4": {
        "gradient boosting": (57, 0.957),
        "k-neighbours": (67, 0.592),
        "Theil-Sen": (17, 0.539),
        "ordinary least squares": (21, 0.951),
        "passive aggressive": (14, 0.175),
    },
    "8": {
        "gradient boosting": (51, 0.972),
        "k-neighbours": (56, 0.589),
        "Theil-Sen": (26, 0.965),
        "ordinary least squares": (31, 0.977),
        "passive aggressive": (18, 0.177),
    },
    "16": {
        "gradient boosting": (34, 0.959),
        "k-neighbours": (26, 0.585),
        "Theil-Sen": (13, 0.852),
        "ordinary least squares": (14, 0.892),
        "passive aggressive": (11, 0.159),
    },
}


_PAPERS = """\
Chosen once, not by network: rates, crowding and grains by sort of operator, and for Table II alone what a run of one
operator by itself adds that does not scale. A smooth curve cannot do what Table II has for `Conv2D`: lose much from
45 threads to 68, and still be fastest with 66 of 68. Two threads to a cache go by even numbers, so an odd best is met
to one."""

_CLIMBING = """\
All cases that were not measured, on average over operators. The machine knows nothing of intervals. The time of an
operator that scales falls like 1/n, and a straight line from 1 thread to 17 lies far above that: nearly five times as
high where they differ most. So the collapse comes from the first step of each climb, and from curvature: without
noise it is the same. Where a part of an operator does not scale, as in Table II, there is less curvature, and less to
lose. Small operators scale least, so DCGAN, where they are the most, loses least; in the paper, which has operators
of MKL-DNN only, it loses most. With interval 2 noise counts: once the gain of two more threads is smaller than it, a
climb ends early. The paper's machine must have been quiet."""

_CLOSELY = """\
On the first machine. `between`: accuracy of cases between two that were measured; `behind`: of those behind the last,
where the paper says nothing and bow goes on with the last time. Then, without noise, by how much the best case that
was found takes longer than the best there is (the paper: less than 2% with interval 4), and how many cases were
measured, of 68: on average over operators, and at most."""

_REGRESSION = """\
In brackets: Liu et al., Table IV. Each model is told N runs of an operator and predicts other runs; climbs measured
what they measured and predict the rest; the roofline is told nothing but the data sheet. Most regressions minimise
errors in seconds: for the many operators that take microseconds they may be off by many times, which R2 does not see
and accuracy sees alone. That is the paper's pattern as well, and stronger here, where small operators are not left
out. Neighbours are near in seconds, so to them all short operators are alike. A tree, and a forest of them, splits
times as well by orders of magnitude as by milliseconds and answers with times that it has seen, so it is off by
little; boosting adds up errors in seconds again. The paper tried trees and forests as well, and its table leaves them
out. It blames inaccurate counters, and events that are computed from an operator's work are exact."""

_MISCOUNTED = """\
Every event times a factor whose logarithm has a standard deviation of {part:g}, in training and test; the times are
the same. Models that go by times first, as trees do, hardly notice: inaccurate counters alone do not explain the
paper's numbers."""

_HERE = """\
`best with`: for how many operators so many threads are best; milliseconds: of all operators, each once. With interval
1 a climb measures every case, so what it has not seen is the second time that everything was measured: accuracy and
R2 are those of its curve against that, which is how well times repeat. The spread is that of one operator's time
between the quartiles, with one thread: median (lowest to highest) over operators."""

_MODELS_HERE = """\
Predicted in all cases, by models that know the other networks' operators, and of these one run with one thread. The
roofline's peak and bandwidth are what all but the fastest tenth of those operators reach."""


@dataclass(frozen=True)
class Section:
    """A table of the page."""

    title: str  # above it
    table: Table  # the numbers
    remark: str  # what they are, and why they are so; below it


def sections(values: Mapping[str, Any]) -> Iterator[Section]:
    """What was found, part by part."""
    unseen = NETWORKS[values["unseen"]].title
    if "papers" in values:
        yield Section("The machine made up, against the papers", _papers(values["papers"]), _PAPERS)
    if found := values.get("climbing"):
        yield Section("Hill climbing: accuracy by interval", _climbing(found), _CLIMBING)
        yield Section("Hill climbing, more closely", _closely(found), _CLOSELY)
    if found := values.get("regression"):
        counts = f"{found['tested_on']} operators of {unseen}, predicted in {values['settings']['cases']} of 68 cases"
        learned = f"{found['trained_on']} of the {found['of']} operators of the other networks"
        yield Section(f"{counts}, by models that know {learned}", _regression(found), _REGRESSION)
        yield Section("What inaccurate counters do", _miscounted(found), _MISCOUNTED.format(part=found["miscount"]))
    if found := values.get("here"):
        yield Section("This machine: climbs with interval 1", _here(found), _HERE)
        yield Section(
            f"This machine: operators of {unseen}", _models_here(found), f"{_MODELS_HERE}\n\n{values['events']}"
        )


def markdown(values: Mapping[str, Any], environment: str) -> str:
    """The page `costs.md`."""
    body = "\n".join(f"## {each.title}\n\n{each.table.markdown()}\n{each.remark}\n" for each in sections(values))
    took = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in values["seconds_by_part"].items())
    noise = 100 * values["settings"]["noise"]
    return f"""# What operators cost: predictions against times that were not seen

`{values["command"]}`, {values["date"][:10]}, {values["seconds"]:.0f} s ({took}). {environment}.

Accuracy is `1 - mean(|predicted - actual| / actual)`, as in Liu et al., 2019, section III-B: who always predicts 0 has
0%, and there is no lower limit. The machine made up is `Saturation`, a formula for the 68 cores of a Xeon
Phi 7250, whose times vary by {noise:.2g}% (standard deviation of the logarithm). Operators are those of captured
training steps; equal ones count once.

{body}"""


def _papers(rows: list[dict[str, Any]]) -> Table:
    cells = [
        [
            row["source"],
            row["what"],
            f"{'more than ' if row['at_least'] else ''}{row['paper']:g}{_unit(row['unit'])}",
            f"{row['model']:.3g}{_unit(row['unit'])}",
            f"{row['miss']:+.1f} points" if row["unit"] == "%" else f"{row['miss']:+.0%}" if row["miss"] else "0",
        ]
        for row in rows
    ]
    return Table(("where", "what", "paper", "model", "missed by"), cells, left=("where", "what"))


def _climbing(found: Mapping[str, Any]) -> Table:
    """A row for each network and machine; the paper's below the first."""
    intervals = list(next(iter(next(iter(found.values()))["machines"].values())))
    rows = []
    for network, values in found.items():
        title = f"{NETWORKS[network].title} ({values['operators']} operators)"
        for machine, by_interval in values["machines"].items():
            rows.append([title, machine, *(_percent(by_interval[each]["accuracy"]) for each in intervals)])
        paper = TABLE_V.get(network, {})
        rows.append([title, "Liu et al., Table V", *(_percent(paper.get(x)) for x in intervals)])
    return Table(("network", "machine", *(f"interval {x}" for x in intervals)), rows, left=("network", "machine"))


def _closely(found: Mapping[str, Any]) -> Table:
    headings = (
        "network",
        "interval",
        "between",
        "behind",
        "R2",
        "longer by",
        "at most",
        "cases measured",
        "most measured",
    )
    rows = []
    for network, values in found.items():
        for interval, of in next(iter(values["machines"].values())).items():
            rows.append(
                [
                    NETWORKS[network].title,
                    interval,
                    _percent(of["accuracy_between"]),
                    _percent(of["accuracy_behind"]),
                    _number(of["r_squared"]),
                    f"{of['loss_mean']:.1%}",
                    f"{of['loss_most']:.1%}",
                    f"{of['measured_mean']:.1f}",
                    str(of["measured_most"]),
                ]
            )
    return Table(headings, rows, left=("network",))


def _regression(found: Mapping[str, Any]) -> Table:
    """A row for each model, with the paper's numbers in brackets."""
    counts = list(found["families"])
    rows = []
    for family in found["families"][counts[0]]:
        cells = []
        for count in counts:
            of, paper = found["families"][count][family], TABLE_IV.get(count, {}).get(family)
            cells += [_percent(of["accuracy"]) + (f" ({paper[0]}%)" if paper else "")]
            cells += [_number(of["r_squared"]) + (f" ({paper[1]:.3f})" if paper else "")]
        rows.append([family, *cells])
    for name, of in found["others"].items():
        rows.append([name, _percent(of["accuracy"]), _number(of["r_squared"]), *[""] * (2 * len(counts) - 2)])
    headings = [heading for count in counts for heading in (f"N = {count}", f"R2, N = {count}")]
    return Table(("model", *headings), rows, left=("model",))


def _miscounted(found: Mapping[str, Any]) -> Table:
    (count, families), *_ = found["miscounted"].items()
    exact = found["families"][count]
    rows = [[family, *map(_percent, (exact[family]["accuracy"], of["accuracy"]))] for family, of in families.items()]
    return Table((f"N = {count}", "events exact", "events miscounted"), rows, left=(f"N = {count}",))


def _here(found: Mapping[str, Any]) -> Table:
    numbers = [str(n) for n in range(1, found["cores"] + 1)]
    rows = [
        [
            NETWORKS[network].title,
            str(of["operators"]),
            *(str(of["best"][n]) for n in numbers),
            *(f"{of['ms_by_threads'][n]:.2f}" for n in numbers),
            f"{of['ms_with_best']:.2f}",
            f"{of['spread']['median']:.0%} ({of['spread']['low']:.0%} to {of['spread']['high']:.0%})",
            _percent(of["again"]["accuracy"]),
            _number(of["again"]["r_squared"]),
        ]
        for network, of in found["networks"].items()
    ]
    best = [f"best with {n}" for n in numbers]
    headings = ("network", "operators", *best, *(f"ms with {n}" for n in numbers), "ms with best of each")
    return Table((*headings, "spread of a time", "accuracy", "R2"), rows, left=("network",))


def _models_here(found: Mapping[str, Any]) -> Table:
    models = {**found["regression"], "roofline": found["roofline"]}
    rows = [[name, _percent(of["accuracy"]), _number(of["r_squared"])] for name, of in models.items()]
    return Table(("model", "accuracy", "R2"), rows, left=("model",))


def _unit(unit: str) -> str:
    return {"%": "%", "x": " times", "threads": "", "ms": " ms"}[unit]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}" if abs(value) < 2 else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
