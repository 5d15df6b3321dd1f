"""The tables of the experiments of Tang et al."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.manycore.machines import AS_IN_TENSORFLOW, TEAMS_STAY
from benchmarks.manycore.options import CHANGE_MS
from benchmarks.manycore.paper import BEST_EXECUTORS, BEST_SPEEDUP, TABLE_2
from benchmarks.manycore.section import Section
from benchmarks.results import Table
from bow.models import NETWORKS

Found = Mapping[str, Mapping[str, Any]]  # By network, by size

_FIGURE_6 = """\
Speed-up over one executor with 64 threads, critical path first; in bold the best. Parallel: the time of all operators
over that of the critical path, 8 threads each. Paper: the range of the best speed-ups over the three sizes, and how
many operators it says are parallel."""

_MACHINES = f"""\
The best speed-up on three machines: {TEAMS_STAY}; the same where each executor is held to an equal share of the
memory's bandwidth; {AS_IN_TENSORFLOW}, where there are any."""

_TABLE_2 = """\
Time of a step with critical path first over that with a queue, medium size. Three numbers: the paper's, whose queue is
naive; here, where the queue is first come, first served, and costs nothing; and where it gives out any ready operator
(median of the draws)."""

_QUEUES = """\
Time of a step with critical path first over that with one queue. An executor that polls the queue keeps it from all
others for so many nanoseconds; giving out an operator costs that for every executor. The central scheduler polls
alone."""

_DIAGONAL = """\
Correlation of the time at which a cell begins with layer + step (median, and lowest, of the draws), and by how many
steps the layer below is ahead then: 1 on a diagonal."""

_OPTIONS = f"""\
Time of a step over that of the best symmetric executors. Sizes: executors of three sizes, and all threads' time over
theirs. Number: the best for forward and backward pass, and milliseconds saved; the paper has {CHANGE_MS[0]:g} to
{CHANGE_MS[1]:g} ms for a change. Preferred: operators stay, where element-wise ones take 0.9 or 0.8 of their time with
their input in the cache, over the same without staying. Small: operators that a team makes no faster run at once,
where handing over takes 0, 1 or 5 microseconds; the same with a light executor."""

_SENSITIVITY = """\
Best speed-up (with how many executors), and critical path first over first come, first served there; each parameter
multiplied, one at a time."""


def graphi_sections(found: Found) -> Iterator[Section]:
    """The tables, of what there is."""
    yield Section("figure 6", "Speed-up by number of executors (Tang et al., Figure 6)", _figure_6(found), _FIGURE_6)
    yield Section("figure 6 machines", "The same on other machines", _machines(found), _MACHINES)
    detailed = {network: _detailed(sizes) for network, sizes in found.items() if _detailed(sizes)}
    yield Section("table 2", "Critical path first over queues (Table 2)", _table_2(detailed), _TABLE_2)
    yield Section("queues", "Queues that cost something", _queues(detailed), _QUEUES)
    if "diagonal" in detailed.get("lstm", {}):
        yield Section("diagonal", "Cells of the LSTM along diagonals", _diagonal(detailed["lstm"]), _DIAGONAL)
    yield Section("options", "Options (section 6)", _options(detailed), _OPTIONS)
    yield Section("graphi sensitivity", "Sensitivity of these results", _sensitivity(detailed), _SENSITIVITY)


def _detailed(sizes: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was found in the size that was looked at in detail."""
    return next((own for own in sizes.values() if "queues" in own), {})


def best_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The executors with the highest speed-up."""
    return max(rows, key=lambda row: row["speedup"])


def _figure_6(found: Found) -> Table:
    counts = sorted(
        {row["executors"] for sizes in found.values() for own in sizes.values() for row in own["executors"]}
    )
    rows = []
    for network, sizes in found.items():
        for size, own in sizes.items():
            best = best_row(own["executors"])
            by_count = {row["executors"]: f"{row['speedup']:.2f}" for row in own["executors"]}
            by_count[best["executors"]] = f"**{best['speedup']:.2f}**"
            cells = [by_count.get(count, "") for count in counts]
            paper = f"{BEST_SPEEDUP[network]} with {BEST_EXECUTORS[network]}"
            sized = [str(own["operators"]), f"{own['sequential_ms']:.1f}", f"{own['parallelism_with_8']:.1f}"]
            rows.append([NETWORKS[network].title, size, *sized, *cells, paper])
    headings = [f"{count} x {_threads(count)}" for count in counts]
    columns = ("network", "size", "operators", "sequential ms", "parallel", *headings, "paper")
    return Table(columns, rows, left=("network", "size", "paper"))


def _threads(count: int) -> int:
    return {3: 10, 6: 10}.get(count, 64 // count)


def _machines(found: Found) -> Table:
    rows = []
    for network, sizes in found.items():
        for size, own in sizes.items():
            texts = [_best(own["executors"]), _best(own["shares"])]
            texts.append(_best(own["tensorflow"]) if "tensorflow" in own else "")
            rows.append([NETWORKS[network].title, size, *texts, str(BEST_SPEEDUP[network])])
    headings = ("network", "size", TEAMS_STAY, "shares of bandwidth", AS_IN_TENSORFLOW, "paper")
    return Table(headings, rows, left=("network", "size"))


def _best(rows: list[dict[str, Any]]) -> str:
    best = best_row(rows)
    return f"{best['speedup']:.2f} with {best['executors']}"


def _table_2(detailed: Mapping[str, Mapping[str, Any]]) -> Table:
    first = next(iter(detailed.values()))["queues"]
    rows = []
    for number, shape in enumerate(first):
        cells = []
        for network, own in detailed.items():
            row = own["queues"][number]
            here = f"{next(iter(row['queue'].values())):.3f}, {row['random']['median']:.3f}"
            cells.append(f"{TABLE_2[network][row['executors']]:.2f}; {here}")
        rows.append([f"{shape['executors']} x {shape['threads']}", *cells])
    return Table(("executors", *(NETWORKS[network].title for network in detailed)), rows)


def _queues(detailed: Mapping[str, Mapping[str, Any]]) -> Table:
    first = next(iter(detailed.values()))["queues"]
    rows = [
        [NETWORKS[network].title, f"{cost} ns", *(f"{row['queue'][cost]:.3f}" for row in own["queues"])]
        for network, own in detailed.items()
        for cost in own["queues"][0]["queue"]
    ]
    rows += [
        [NETWORKS[network].title, "paper", *(f"{TABLE_2[network][row['executors']]:.2f}" for row in own["queues"])]
        for network, own in detailed.items()
    ]
    rows.sort(key=lambda row: list(map(lambda name: NETWORKS[name].title, detailed)).index(row[0]))
    shapes = [f"{row['executors']} x {row['threads']}" for row in first]
    return Table(("network", "keeps the queue for", *shapes), rows, left=("network",))


def _diagonal(own: Mapping[str, Any]) -> Table:
    rows = [
        [
            f"{row['executors']} x {row['threads']}",
            row["scheduler"],
            f"{row['correlation']:.4f}",
            f"{row['lowest']:.4f}",
            f"{row['ahead']:.2f}",
            str(row["most_ahead"]),
        ]
        for row in own["diagonal"]
    ]
    return Table(
        ("executors", "scheduler", "correlation", "lowest", "steps ahead", "at most"), rows, left=("scheduler",)
    )


def _options(detailed: Mapping[str, Mapping[str, Any]]) -> Table:
    titles = {network: NETWORKS[network].title for network in detailed}
    options = {network: own["options"] for network, own in detailed.items()}
    first = next(iter(options.values()))
    rows = [["best symmetric executors", *(f"{own['executors']} x {own['threads']}" for own in options.values())]]
    for number, sizes in enumerate(first["sizes"]):
        teams = ", ".join(map(str, sizes["teams"]))
        cells = [own["sizes"][number] for own in options.values()]
        rows.append([f"sizes {teams}", *(f"{cell['time']:.3f}; {cell['thread_time']:.3f}" for cell in cells)])
    changing = [own["changing"] for own in options.values()]
    rows.append(
        [
            "number: forward, backward",
            *(f"{cell['forward']}, {cell['backward']}: {cell['time']:.3f}" for cell in changing),
        ]
    )
    rows.append(["number: saved", *(f"{cell['saved_ms']:.2f} ms" for cell in changing)])
    for number, preferred in enumerate(first["preferred"]):
        cells = [own["preferred"][number] for own in options.values()]
        rows.append([f"preferred, {preferred['kept']:g} in the cache", *(f"{cell['time']:.4f}" for cell in cells)])
    for number, small in enumerate(first["small"]):
        cells = [own["small"][number] for own in options.values()]
        name = f"small, {small['handover_ns'] / 1000:g} us to hand over; light"
        rows.append([name, *(f"{cell['time']:.4f}; {cell['time_with_light']:.4f}" for cell in cells)])
    counts = [own["small"][0] for own in options.values()]
    rows.append(["small operators", *(f"{cell['small']} of {cell['operators']}" for cell in counts)])
    return Table(("option", *titles.values()), rows, left=("option",))


def _sensitivity(detailed: Mapping[str, Mapping[str, Any]]) -> Table:
    first = next(iter(detailed.values()))["sensitivity"]
    rows = []
    for number, row in enumerate(first):
        cells = [own["sensitivity"][number] for own in detailed.values()]
        texts = [f"{each['speedup']:.2f} ({each['executors']}), {each['over_first_come']:.3f}" for each in cells]
        rows.append([row["parameter"], f"{row['factor']:g}", *texts])
    titles = [NETWORKS[network].title for network in detailed]
    return Table(("parameter", "times", *titles), rows, left=("parameter",))
