"""The tables of the experiments of Liu et al."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.manycore.machines import BY_ITSELF, IN_A_STEP, LIU_MACHINES
from benchmarks.manycore.paper import FIGURE_3, TABLE_I, TABLE_VI
from benchmarks.manycore.section import Section
from benchmarks.manycore.strategies import SHARED
from benchmarks.results import Table
from bow.models import NETWORKS

Found = Mapping[str, Mapping[str, Any]]  # By network

_FIGURE_3 = f"""\
Speed-ups: strategies 1, and 1 and 2, over the recommendation (68 threads, one operator after another); strategy 3 over
those two; strategy 4 over 3; all over the recommendation; the best uniform pair, over the recommendation; all over
that pair. Machine {IN_A_STEP!r}: no constant milliseconds; {BY_ITSELF!r}: those that Table II has."""

_NARROW = """\
bow's addition to strategy 3: the operator that takes longest starts on fewer cores rather than wait for cores, if it is
over no later. Over strategies 1 and 2, over the recommendation, and over the best uniform pair."""

_FIGURE_4 = """\
Operators that run at the same time: mean over events (operators start or end; what happens at the same moment is one
event), and over time; the most."""

_TABLE_I = "Uniform inter-op x intra-op parallelism, over 1 x 68."

_TABLE_VI = f"""\
The types of operators that take longest with the recommendation, and with strategies 1 and 2; machine {IN_A_STEP!r}.
Paper: Table VI, where it names the same operator."""

_SHARING = f"""\
Strategy 4 over strategy 3, by how many times as long an operator takes while it shares a core. Two operators that have
all cores each take {SHARED:.2f} times as long (Table III)."""

_CHANGES = """\
Over the recommendation, by what it costs that a number of threads changes: of a core, where an operator has another
number of threads than what its first core was the first of before; of a type, where it has another number than the last
operator of its type."""

_SENSITIVITY = f"""\
Each parameter multiplied, one at a time; machine {IN_A_STEP!r}. Strategies 1 and 2 over the recommendation; 3 over
those; 3 with bow's addition over those; 4 over 3; the best of four uniform pairs over the recommendation."""


def liu_sections(found: Found) -> Iterator[Section]:
    """The tables, of what there is."""
    yield Section("figure 3", "Strategies one by one (Liu et al., Figure 3)", _figure_3(found), _FIGURE_3)
    yield Section("narrow", "Strategy 3 on fewer cores", _narrow(found), _NARROW)
    yield Section("table 1", "Uniform parallelism (Table I)", _table_1(found), _TABLE_I)
    yield Section("figure 4", "Operators that run at the same time (Figure 4)", _figure_4(found), _FIGURE_4)
    yield Section("table 6", "The longest operators (Table VI)", _table_6(found), _TABLE_VI)
    yield Section("sharing", "What sharing a core costs", _by_value(found, "sharing", ""), _SHARING)
    yield Section("changes", "What changing teams costs", _by_value(found, "changes", " ns"), _CHANGES)
    yield Section("liu sensitivity", "Sensitivity of these results", _sensitivity(found), _SENSITIVITY)


def steps_of(own: Mapping[str, Any], third: str = "1-3", fourth: str = "1-4") -> dict[str, float]:
    """What each strategy brings on one machine, on top of those before."""
    by_plan = {name: plan["speedup"] for name, plan in own["plans"].items()}
    return {
        "1": by_plan["1"],
        "1-2": by_plan["1-2"],
        "3": by_plan[third] / by_plan["1-2"],
        "4": by_plan[fourth] / by_plan[third],
        "all": by_plan[fourth],
        "pair": own["best_pair"]["speedup"],
        "over pair": by_plan[fourth] / own["best_pair"]["speedup"],
    }


def _figure_3(found: Found) -> Table:
    rows = []
    for network, own in found.items():
        paper = FIGURE_3[network]
        title = NETWORKS[network].title
        for machine in LIU_MACHINES:
            numbers = [f"{value:.2f}" for value in steps_of(own[machine]).values()]
            inter, intra = own[machine]["best_pair"]["inter"], own[machine]["best_pair"]["intra"]
            rows.append([title, machine, f"{own[machine]['recommended_ms']:.1f}", *numbers, f"{inter} x {intra}"])
        told = (paper.first_two, paper.third, paper.fourth, paper.all)
        texts = ["" if value is None else f"{value:.2f}" for value in told]
        rows.append(
            [title, "paper", "", "", *texts, "", f"{paper.over_manual:.2f}", f"{paper.pair[0]} x {paper.pair[1]}"]
        )
    headings = ("1", "1 and 2", "3", "4", "all", "best pair", "all over it", "inter x intra")
    return Table(("network", "machine", "recommended ms", *headings), rows, left=("network", "machine"))


def _narrow(found: Found) -> Table:
    rows = []
    for network, own in found.items():
        for machine in LIU_MACHINES:
            narrow = own[machine]["plans"]["1-3, narrow"]["speedup"]
            strict = steps_of(own[machine])
            rows.append(
                [
                    NETWORKS[network].title,
                    machine,
                    f"{strict['3']:.2f}",
                    f"{narrow / strict['1-2']:.2f}",
                    f"{FIGURE_3[network].third:.2f}",
                    f"{narrow:.2f}",
                    f"{narrow / strict['pair']:.2f}",
                ]
            )
    headings = ("3", "3 on fewer cores", "paper's 3", "over the recommendation", "over the best pair")
    return Table(("network", "machine", *headings), rows, left=("network", "machine"))


def _table_1(found: Found) -> Table:
    pairs = list(next(iter(found.values()))[IN_A_STEP]["best_pair"]["table_1"])
    rows = []
    for network, own in found.items():
        for machine in LIU_MACHINES:
            measured = own[machine]["best_pair"]["table_1"]
            rows.append([NETWORKS[network].title, machine, *(f"{measured[pair]:.2f}" for pair in pairs)])
        if network in TABLE_I:
            rows.append([NETWORKS[network].title, "paper", *(f"{TABLE_I[network][pair]:.2f}" for pair in pairs)])
    return Table(("network", "machine", *pairs), rows, left=("network", "machine"))


def _figure_4(found: Found) -> Table:
    rows = []
    for network, own in found.items():
        paper = FIGURE_3[network]
        for machine in LIU_MACHINES:
            for name in ("1-3", "1-4", "1-3, narrow", "1-4, narrow"):
                plan = own[machine]["plans"][name]
                told = {"1-3": f"{paper.together:.2f}", "1-4": f"{paper.together_with_fourth:.2f}"}.get(name, "")
                numbers = [f"{plan['together']:.2f}", f"{plan['together_by_time']:.2f}", str(plan["most_together"])]
                rows.append([NETWORKS[network].title, machine, name, *numbers, told])
    headings = ("over events", "over time", "most", "paper, over events")
    return Table(("network", "machine", "strategies", *headings), rows, left=("network", "machine", "strategies"))


def _table_6(found: Found) -> Table:
    rows = []
    for network, own in found.items():
        for row in own[IN_A_STEP]["longest"]:
            name, before, after, speedup = TABLE_VI.get(network, {}).get(row["kind"], ("", 0, 0, 0))
            rows.append(
                [
                    NETWORKS[network].title,
                    short(row["kind"]),
                    str(row["count"]),
                    str(row["threads"]),
                    f"{row['before_ms']:.2f}",
                    f"{row['after_ms']:.2f}",
                    f"{row['speedup']:.2f}",
                    f"{name}: {before:g} to {after:g} ms, {speedup:.2f}" if name else "",
                ]
            )
    headings = ("network", "operator", "count", "threads", "ms before", "ms after", "speed-up", "paper")
    return Table(headings, rows, left=("network", "operator", "paper"))


def short(kind: str) -> str:
    """The name of an operator without what all have."""
    return kind.removeprefix("aten.").replace(".default", "")


def _by_value(found: Found, part: str, unit: str) -> Table:
    """A row for each network, machine and plan; a column for each value of a parameter."""
    values = list(next(iter(next(iter(found.values()))[IN_A_STEP][part].values())))
    rows = [
        [NETWORKS[network].title, machine, name, *(f"{by_value[value]:.3f}" for value in values)]
        for network, own in found.items()
        for machine in LIU_MACHINES
        for name, by_value in own[machine][part].items()
    ]
    headings = [f"{value}{unit}" for value in values]
    return Table(("network", "machine", "strategies", *headings), rows, left=("network", "machine", "strategies"))


def _sensitivity(found: Found) -> Table:
    first = next(iter(found.values()))["sensitivity"]
    names = list(first[0])[2:]
    rows = []
    for number, row in enumerate(first):
        cells = [own["sensitivity"][number] for own in found.values()]
        texts = [", ".join(f"{each[name]:.2f}" for name in names) for each in cells]
        rows.append([row["parameter"], f"{row['factor']:g}", *texts])
    titles = [NETWORKS[network].title for network in found]
    return Table(("parameter", "times", *titles), rows, left=("parameter",))
