"""The tables of the report."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.planner.paper import FIGURE_8, OPTCNN, OPTCNN_OTHERS, PROOF_HOURS, SIMILAR, SPEEDUP_RANGE, TABLE_4
from benchmarks.planner.problems import TITLES
from benchmarks.planner.section import Section
from benchmarks.results import Table

# Parts of the time of a search at which the curve's table shows the best step
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)

SEEDS_AIM = 0.05  # So far at most a search may be behind what is found in ten times its time

NAMES = {"single": "one device", "data": "data parallel", "expert": "expert", "optcnn": "OptCNN", "found": "found"}


def optimum_section(found: Mapping[str, Any]) -> Section:
    """The search against the proof."""
    columns = ("network", "strategies", "search, s", "found, ms", "best known, ms", "at least, ms", "gap", "proof, s")
    titles = {"lenet": "LeNet", "rnnlm": "RNNLM, 2 steps"}
    rows = []
    for name, each in found.items():
        rows.append(
            [
                titles[name],
                f"{each['strategies']:.1e}",
                f"{each['search_s']:.0f}",
                f"{each['search_ms']:.4f}",
                f"{each['best_ms']:.4f}",
                f"{each['bound_ms']:.4f}",
                "proven" if each["is_complete"] else f"{each['gap']:.1%}",
                f"{each['proof_s']:,.0f} (paper: {PROOF_HOURS[name]:g} h)",
            ]
        )
    remark = (
        "Four P100. All strategies in which tiles of an operator have equal sizes and different devices, in any order. "
        "No strategy takes less than `at least`; the gap is what the best known one could be faster by."
    )
    return Section("optimum", "The search against a proof", Table(columns, rows, left=("network",)), remark)


def neighbours_section(found: Mapping[str, Any]) -> Section:
    """Whether a neighbour is better."""
    columns = ("network", "devices", "after the walk, ms", "at the bottom, ms", "neighbours tried", "better")
    rows = [
        [
            TITLES[name],
            devices,
            f"{each['walk_ms']:.3f}",
            f"{each['found_ms']:.3f}",
            f"{each['neighbours']:,}",
            "none" if each["is_local_optimum"] else "one",
        ]
        for name, devices, each in _by_devices(found)
    ]
    sizes = "equal" if any(each.get("even", True) for _, _, each in _by_devices(found)) else "equal or unequal"
    remark = (
        "P100. Behind the walk, as in the last part of a search but without a limit of time, every operator in turn "
        "takes its best split until none has a better one. A neighbour has other degrees (tiles of "
        f"{sizes} sizes) or another list of devices for one operator: with 2 devices any list, with 4 any without "
        "repetition, with 8 evenly spaced ones, dealt to the tiles in any order of the dimensions, and 4 lists of each "
        "length drawn at random. All of these were simulated."
    )
    return Section("neighbours", "All neighbours of what was found", Table(columns, rows, left=("network",)), remark)


def simulators_section(found: Mapping[str, Any]) -> Section:
    """Table 4."""
    columns = (
        *("network", "GPUs", "tasks", "delta looks at", "proposals", "full, 1/s", "delta, 1/s", "incremental, 1/s"),
        *("full, s", "delta, s", "full / delta", "paper: full, s", "delta, s", "full / delta"),
    )
    rows = []
    for name, devices, each in _by_devices(found):
        full, delta, incremental = (each["per_s"][which] for which in ("full", "delta", "incremental"))
        told = TABLE_4[name].get(int(devices))
        proposals, more = each["proposals"], "" if each["ended_by"] == "no gain" else "> "
        rows.append(
            [
                *(TITLES[name], devices, f"{each['tasks']:,}", f"{each['looked_at']['delta']:,}"),
                f"{more}{proposals:,}",
                *(f"{full:,.0f}", f"{delta:,.0f}", f"{incremental:,.0f}"),
                *(f"{more}{proposals / full:,.1f}", f"{more}{proposals / delta:,.1f}", f"{delta / full:.1f}"),
                *(("", "", "") if told is None else (f"{told[0]:g}", f"{told[1]:g}", f"{told[2]:.1f}")),
            ]
        )
    remark = (
        "K80. Tasks of data parallelism, from which the search starts with the paper's proposals; it ends when half of "
        "its proposals brought nothing, or where `>` stands when its time was over. Every algorithm replays the same "
        "proposals; seconds are the search's proposals at this pace. `incremental` edits the task graph as delta does, "
        "and then works out all times; it is what bow searches with."
    )
    return Section("simulators", "Full and delta simulation", Table(columns, rows, left=("network",)), remark)


def curve_section(found: Mapping[str, Any]) -> Section:
    """Figure 12."""
    most = max(each["curve"][-1][0] for each in found.values())
    moments = [share * most for share in SHARES]
    columns = ("simulation", "proposals", *(f"after {moment:.0f} s, ms" for moment in moments))
    rows = [
        [algorithm, f"{each['proposals']:,}", *(f"{_at(each['curve'], moment):.1f}" for moment in moments)]
        for algorithm, each in found.items()
    ]
    remark = "NMT on 16 P100, from data parallelism; the same proposals, so that only the pace differs."
    return Section("curve", "Best step by time of search", Table(columns, rows, left=("simulation",)), remark)


def seeds_section(found: Mapping[str, Any]) -> Section:
    """NMT on 64 devices."""
    short, long = found["short"], found.get("long", {})
    columns = (
        "seed",
        "search, s",
        "strategies",
        "found, ms",
        "ten times longer, ms",
        "behind it",
        "behind the best of those",
        "over data",
        "over expert",
    )
    best = min((each["found_ms"] for each in long.values()), default=None)
    rows = []
    for seed, each in sorted(short.items(), key=lambda item: int(item[0])):
        longer = long.get(seed)
        base = [found["baselines"][name].get("step_ms") for name in ("data", "expert")]
        rows.append(
            [
                *(seed, f"{each['seconds']:.0f}", f"{each['evaluated']:,}", f"{each['found_ms']:.2f}"),
                *(("", "") if longer is None else (f"{longer['found_ms']:.2f}", _behind(each, longer["found_ms"]))),
                "" if best is None else _behind(each, best),
                *("" if ms is None else f"{ms / each['found_ms']:.2f}" for ms in base),
            ]
        )
    times = [each["found_ms"] for each in short.values()]
    remark = f"K80s, two processes. Median {median(times):.2f} ms, worst {max(times):.2f} ms." + _held_against(
        short, long
    )
    return Section("seeds", "NMT on 64 devices", Table(columns, rows), remark)


def _held_against(short: Mapping[str, Any], long: Mapping[str, Any]) -> str:
    """How far searches are behind those that are ten times as long, beside the aim; nothing without any of these."""
    if not long:
        return ""
    own = [each["found_ms"] / long[seed]["found_ms"] - 1 for seed, each in short.items() if seed in long]
    best = min(each["found_ms"] for each in long.values())
    behind = [each["found_ms"] / best - 1 for each in short.values()]
    return (
        f" {len(own)} of {len(short)} seeds were repeated with ten times the time: {_within(own)} behind what the same "
        f"seed then finds, the furthest {max(own):.1%}. The best of the long searches found {best:.2f} ms: "
        f"{_within(behind)} behind that, the furthest of all seeds {max(behind):.1%}."
    )


def _within(behind: Sequence[float]) -> str:
    return f"{sum(each <= SEEDS_AIM for each in behind)} of {len(behind)} are at most {SEEDS_AIM:.0%} (the aim)"


def _behind(each: Mapping[str, Any], best_ms: float) -> str:
    return f"{each['found_ms'] / best_ms - 1:+.1%}"


def speedup_sections(found: Mapping[str, Any]) -> Iterator[Section]:
    """Figure 7, by cluster."""
    for gpu, networks in found.items():
        columns = ("network", "GPUs", "data, ms", "expert, ms", "found, ms", "over data", "over expert", "paper")
        rows = []
        for name, devices, each in _by_devices(networks):
            data, expert, own = (each["strategies"][which] for which in ("data", "expert", "found"))
            told = "similar to data" if name in SIMILAR else f"{SPEEDUP_RANGE[0]} to {SPEEDUP_RANGE[1]}"
            rows.append(
                [
                    *(TITLES[name], devices, _ms(data), _ms(expert), _ms(own)),
                    *(_times(data, own), _times(expert, own), told),
                ]
            )
        remark = "The paper's range is of all networks and numbers of GPUs, over both; Figure 7 has no numbers printed."
        table = Table(columns, rows, left=("network", "paper"))
        yield Section(f"speed-up {gpu}", f"Found strategies on {gpu}", table, remark)


def volume_section(found: Mapping[str, Any]) -> Section | None:
    """Figure 8: NMT on as many K80 as there are."""
    by_devices = found.get("K80", {}).get("nmt", {})
    if not by_devices:
        return None
    devices = max(by_devices, key=int)
    strategies = by_devices[devices]["strategies"]
    own = strategies["found"]
    columns = (
        "strategy",
        "step, ms",
        "sent, GB",
        "task time, ms",
        "step over found",
        "sent over found",
        "tasks over data",
    )
    rows = [
        [
            *(NAMES[name], _ms(each), f"{each['sent_gb']:.2f}", f"{each['task_ms']:,.0f}"),
            *(f"{each['step_ms'] / own['step_ms']:.2f}", f"{each['sent_gb'] / max(own['sent_gb'], 1e-9):.1f}"),
            f"{each['task_ms'] / strategies['data']['task_ms']:.2f}",
        ]
        for name in ("data", "expert", "found")
        if "step_ms" in (each := strategies[name])
    ]
    time, sent = FIGURE_8["time"], FIGURE_8["transfers"]
    remark = (
        f"NMT on {devices} K80. The paper: {time[0]} to {time[1]} times less time than others, {sent[0]:g} to "
        f"{sent[1]} times fewer transfers, {FIGURE_8['tasks'][0]} of data parallelism's task time; the expert's step "
        "is slower than data parallelism's."
    )
    return Section("volume", "Transfers and task time", Table(columns, rows, left=("strategy",)), remark)


def optcnn_section(found: Mapping[str, Any]) -> Section | None:
    """Figure 10b."""
    rows = []
    for name, devices, each in _by_devices(found.get("P100", {})):
        optcnn, own = each["strategies"].get("optcnn"), each["strategies"]["found"]
        if optcnn is not None:
            told = OPTCNN.get(name, OPTCNN_OTHERS)
            rows.append([TITLES[name], devices, _ms(optcnn), _ms(own), _times(optcnn, own), told])
    columns = ("network", "GPUs", "OptCNN, ms", "found, ms", "over OptCNN", "paper")
    remark = "P100. What OptCNN's strategy takes is simulated like the others; its own estimate adds everything up."
    return Section("optcnn", "OptCNN", Table(columns, rows, left=("network", "paper")), remark) if rows else None


def _by_devices(found: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for name in TITLES:
        for devices in sorted(found.get(name, {}), key=int):
            yield name, devices, found[name][devices]


def _ms(each: Mapping[str, Any]) -> str:
    if "step_ms" not in each:
        return "none"
    return f"{each['step_ms']:.2f}" + (" (does not fit)" if each["refused"] else "")


def _times(other: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    return f"{other['step_ms'] / own['step_ms']:.2f}" if "step_ms" in other else ""


def _at(curve: Sequence[Sequence[float]], seconds: float) -> float:
    return next(each[1] for each in reversed(curve) if each[0] <= seconds)
