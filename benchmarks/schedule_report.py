"""`python -m benchmarks schedule` for people."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.line_up import counted
from benchmarks.results import Table
from benchmarks.schedule_contestants import shape
from benchmarks.schedule_cost import AT_ONCE, BY_PRIORITY, FIRST_COME
from benchmarks.schedule_effects import IDEAS
from bow.models import NETWORKS

Networks = Mapping[str, Mapping[str, Any]]  # By name: what `measure_network` has found

TABLE_I_PAIRS = [(executors, threads) for executors in (1, 2, 4) for threads in (34, 68, 136)]

# Liu et al.: speed-up over one executor with 68 threads, a core each, by pair
TABLE_I: Mapping[str, Sequence[float]] = {
    "resnet50": (0.98, 1.0, 0.61, 1.27, 1.14, 0.34, 1.18, 0.45, 0.29),
    "dcgan": (1.21, 1.0, 0.50, 1.28, 1.04, 0.42, 1.21, 0.93, 0.36),
}

_METHOD = """\
All take turns within one process: {turns} turns of {stint:g} ms, every other one in reverse order, behind a step that
does not count. Medians with quartiles; ratios are those of a turn. *Sequential* are plain PyTorch (forward, loss,
backward) and the native runtime with one executor, in the order of capture, with each number of threads. Threads that
wait for work sleep, but in *threads that spin*: PyTorch in a process of its own, which is stopped outside of its turns
(`OMP_WAIT_POLICY=ACTIVE`), its best case on a machine with nothing else to do. The best of
all kinds then race again, {final} turns, which is where speed-ups are from: over the fastest sequential one *of that
race*, so that luck counts for it and not for policies. bow's choice is made before, by `compare`, from a race of its
own; where no policy is 2 % faster, it runs operators one after another. Steps have no optimizer.
"""

_EVERYBODY = "Milliseconds of a step in the race of all, median (quartiles); the fastest in bold.\n"

_UNIFORM = """\
First come, first served by native executors: what inter- and intra-operator parallelism are in TensorFlow. Speed-up
over one executor with all threads, which its guide recommends; below, what Liu et al. measured on 68 cores.
"""

_EFFECTS = """\
How many times as fast with as without, in the race of all: median (quartiles), and the geometric mean of the medians.
Tang et al., Table 2, have critical path first at 1/0.81 to 1/0.96 times first come, first served, on 64 cores; their
section 6 found no gain in preferred executors.
"""

_COST = """\
{operators} additions of one number, in chains that do not depend on each other, on one executor: processor time of an
operator when the order is given, and what is added when the executor finds the order itself. In nanoseconds, median
(quartiles) of differences within a turn.
"""


def markdown(values: Mapping[str, Any], environment: str) -> str:
    """The page `schedule.md`."""
    networks, settings = values["networks"], values["settings"]
    method = _METHOD.format(turns=settings["turns"], stint=1e3 * settings["stint_s"], final=2 * settings["turns"])
    parts = [
        "# Policies against one operator after another\n",
        f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s. {environment}.\n",
        method,
        "".join(f"* {line}\n" for line in verdicts(values["aims"])),
        headline(networks).markdown(),
        "## Over each kind of sequential\n",
        over_each(networks).markdown(),
        "## Everybody\n",
        _EVERYBODY,
        everybody(networks).markdown(),
        "## Uniform pairs\n",
        _UNIFORM,
        uniform(networks, values["cores"]).markdown(),
        *_left_out(values["left_out"]),
        "## What single ideas bring\n",
        _EFFECTS,
        ideas(networks).markdown(),
        "## What scheduling costs\n",
        _COST.format(operators=values["cost"][0]["operators"]),
        costs(values["cost"]).markdown(),
        f"{_decisions(networks)}\n",
    ]
    return "\n".join(parts)


def verdicts(aims: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A sentence about each aim."""
    faster, slower, cost = aims["faster"], aims["not_slower"], aims["cost"]
    yield (
        f"{_met(faster)}: the best policy is at least {faster['aim']:g} times as fast as the best that is sequential "
        f"on {counted(len(faster['networks']), 'network')} ({_titles(faster['networks'])}); "
        f"the aim is {faster['wanted']}."
    )
    but = "" if slower["is_met"] else f", but on {_titles(slower['networks'])}"
    yield (
        f"{_met(slower)}: bow's choice is nowhere below {slower['aim']:g} times the speed of the best that is "
        f"sequential{but}; the least is {slower['least']:.3f}."
    )
    yield (
        f"{_met(cost)}: finding the order by priority costs {cost['most_ns']:.0f} ns an operator at most; the aim is "
        f"{cost['aim_ns']:.0f}."
    )


def summary(name: str, found: Mapping[str, Any]) -> str:
    """A line about a network."""
    best, choice = found["policies"]["best"], found["policies"]["choice"]
    return (
        f"{NETWORKS[name].title}: {best['name']} {_ratio(best['speed_up'])} times as fast as {found['sequential']}; "
        f"chosen: {choice['name']}, {_ratio(choice['speed_up'])}; took {found['seconds']:.0f} s"
    )


def headline(networks: Networks) -> Table:
    """A row for each network: the best policy and bow's choice over the best that is sequential."""
    rows = [
        [
            NETWORKS[name].title,
            str(found["operators"]),
            f"{found['parallelism']:.2f}",
            found["sequential"],
            _range(found["final_ms"][found["sequential"]]),
            *_role(found, "side_by_side"),
            *_role(found, "choice"),
            _ratio(found["policies"]["manual"]["speed_up"]),
        ]
        for name, found in networks.items()
    ]
    columns = ["network", "operators", "parallelism", "best sequential", "ms", "best side by side", "speed-up"]
    columns += ["bow's choice", "its speed-up", "manual optimum"]
    return Table(columns, rows, left=("network", "best sequential", "best side by side", "bow's choice"))


def over_each(networks: Networks) -> Table:
    """A row for each network: the best policy and bow's choice over PyTorch and over the native runtime."""
    keys = [(role, over) for role in ("side_by_side", "choice") for over in ("over_pytorch", "over_native")]
    rows = [
        [NETWORKS[name].title, *(_ratio(found["policies"][role][over]) for role, over in keys)]
        for name, found in networks.items()
    ]
    columns = ["network", "best side by side over PyTorch", "over native", "bow's choice over PyTorch", "over native "]
    return Table(columns, rows, left=("network",))


def everybody(networks: Networks) -> Table:
    """A row for each who took part, a column for each network."""
    fastest = {name: min(found["race_ms"], key=_median_of(found["race_ms"])) for name, found in networks.items()}
    rows = []
    for who in dict.fromkeys(who for found in networks.values() for who in found["race_ms"]):
        cells = [_range(found["race_ms"].get(who)) for found in networks.values()]
        bold = [f"**{cell}**" if fastest[name] == who else cell for name, cell in zip(networks, cells, strict=True)]
        rows.append([who, *bold])
    return Table(["policy", *(NETWORKS[name].title for name in networks)], rows, left=("policy",))


def uniform(networks: Networks, cores: int) -> Table:
    """A row for each uniform pair, a column for each network; the paper's below."""
    recommended = f"first come, {shape(1, cores)}"
    names = dict.fromkeys(name for found in networks.values() for name in found["uniform"])
    rows = []
    for name in names:
        times = [found["race_ms"] for found in networks.values()]
        cells = [f"{own[recommended]['median'] / own[name]['median']:.2f}" for own in times]
        rows.append([name.removeprefix("first come, "), *cells])
    if any(name in TABLE_I for name in networks):
        for number, pair in enumerate(TABLE_I_PAIRS):
            cells = [f"{TABLE_I[name][number]:.2f}" if name in TABLE_I else "" for name in networks]
            rows.append([f"Liu et al., Table I: {shape(*pair)}", *cells])
    return Table(["pair", *(NETWORKS[name].title for name in networks)], rows, left=("pair",))


def ideas(networks: Networks) -> Table:
    """A row for each idea, a column for each network."""
    rows = []
    for idea in IDEAS:
        found = [own["effects"][idea] for own in networks.values()]
        mean = math.exp(statistics.mean(math.log(each["median"]) for each in found))
        rows.append([idea, *map(_ratio, found), f"{mean:.2f}"])
    return Table(["idea", *(NETWORKS[name].title for name in networks), "mean"], rows, left=("idea",))


def costs(found: list[Mapping[str, Any]]) -> Table:
    """A row for each number of operators that are ready at once."""
    ways = (BY_PRIORITY, FIRST_COME, AT_ONCE)
    rows = [
        [str(each["ready_at_once"]), _whole(each["in_order_ns"]), *(_whole(each["added_ns"][way]) for way in ways)]
        for each in found
    ]
    return Table(["ready at once", "in order, ns", *(f"{way}, added" for way in ways)], rows)


def _decisions(networks: Networks) -> str:
    schedulers = dict.fromkeys(name for found in networks.values() for name in found["decisions_per_s"])
    ranges = {name: [found["decisions_per_s"][name] for found in networks.values()] for name in schedulers}
    told = "; ".join(f"{name} {min(own):,} to {max(own):,}" for name, own in ranges.items())
    return f"The schedulers in Python, which decide once and are then recorded, in decisions a second: {told}."


def _left_out(found: Mapping[str, str]) -> list[str]:
    return [f"Left out: {', '.join(found)}, because {reason}.\n" for reason in dict.fromkeys(found.values())]


def _role(found: Mapping[str, Any], role: str) -> list[str]:
    policy = found["policies"][role]
    return [policy["name"], "itself" if policy["name"] == found["sequential"] else _ratio(policy["speed_up"])]


def _median_of(times: Mapping[str, Mapping[str, Any]]) -> Any:
    return lambda name: times[name]["median"]


def _titles(names: list[str]) -> str:
    return ", ".join(NETWORKS[name].title for name in names) or "none"


def _met(aim: Mapping[str, Any]) -> str:
    return "Met" if aim["is_met"] else "Missed"


def _ratio(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else f"{value['median']:.2f} ({value['low']:.2f}-{value['high']:.2f})"


def _range(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else f"{value['median']:.2f} ({value['low']:.2f}-{value['high']:.2f})"


def _whole(value: Mapping[str, Any]) -> str:
    return f"{value['median']:.0f} ({value['low']:.0f} to {value['high']:.0f})"
