"""`python -m benchmarks micro` for people."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.cost_models.evidence import SATURATION, TABLE_II
from benchmarks.line_up import counted
from benchmarks.micro_operators import GEMM, PRODUCT
from benchmarks.results import Table
from benchmarks.schedule_contestants import shape
from bow.schedule.profiler.measuring import numbers_of_threads

# Tang et al.: the threads behind which performance no longer grows, on 64 cores
FIGURE_2 = dict(zip((GEMM, PRODUCT), (threads for _, threads in SATURATION.values()), strict=True))

FIGURE_2_SIZES = ("[64, 512] x [512, 512]", "32,768")

# Liu et al.: the best number of threads, and how many times as long 68 take; by operator and size of its images
FIGURE_1 = {
    (row.kind, f"{row.size},{row.size},{row.channels}"): f"{row.threads} threads, {1 + row.variance:.2f}"
    for row in TABLE_II
}

# Liu et al.: threads, seconds of a thousand runs, and speed-up, for the three ways in their order
TABLE_III = (("68", 41.1, 1.0), ("68+68", 39.9, 1.03), ("34+34", 29.8, 1.38))

_THREADS = """\
Microseconds of one run, median (quartiles): copies of the operator one after another on an executor that has as many
cores as threads, from the first start to the last end. `best` is the number of threads with the least median; the next
column is how many times as long all cores take. The papers, on 64 and 68 cores: where performance no longer grows
(Tang et al., Figure 2), or the best number of threads and how many times as long 68 take (Liu et al., Table II, whose
batches are of 32; filters are 1x1 here, and not named there).
"""

_PINNED = """\
Executors that run copies of one operator at the same time, each on tensors of its own: GFLOP/s of all together, with
cores of their own and wherever the system puts their threads. Over one operator: over one executor with its best number
of threads. Tang et al., Figure 3: pinned is up to 1.45 times as fast on 64 cores, and side by side more than 6 times
one at its best. A pair with more threads than cores cannot have cores of its own.
"""

_TOGETHER = """\
Both backward passes of a convolution, from the first start to the last end. `longer`: how many times as long each takes
as alone on all cores. Liu et al., Table III, at (32,8,8,2048), the three ways in the same order: {paper}; on
half of the cores, the gradients of filters and inputs take 1.25 and 1.17 times as long as alone. {siblings}
"""


@dataclass(frozen=True)
class Section:
    """A table of the page."""

    title: str  # above it
    table: Table  # the numbers
    remark: str  # what they are


def sections(values: Mapping[str, Any]) -> Iterator[Section]:
    """What was found, part by part."""
    if found := values.get("threads"):
        yield Section("Operators by number of threads", _threads(found, values["cores"]), _THREADS)
    if found := values.get("pinned"):
        yield Section("Executors with cores of their own", _pinned(found), _PINNED)
    if found := values.get("together"):
        yield Section("Two operators", _together(found), _remark(found))


def markdown(values: Mapping[str, Any], environment: str) -> str:
    """The page `micro.md`."""
    settings = values["settings"]
    body = "\n".join(f"## {each.title}\n\n{each.remark}\n{each.table.markdown()}" for each in sections(values))
    return f"""# What made the papers schedule operators

`{values["command"]}`, {values["date"][:10]}, {values["seconds"]:.0f} s. {environment}.

Native executors, float32; {settings["turns"]} turns of about {1e3 * settings["window_s"]:g} ms, every other one in
reverse order, each behind a run that does not count. Ratios are those of a turn.

{body}"""


def _threads(found: list[dict[str, Any]], cores: int) -> Table:
    shown = [str(n) for n in numbers_of_threads(cores)]
    rows = [
        [
            each["kind"],
            each["size"],
            *(_us(each["us"][n]) for n in shown),
            f"{each['gflop_per_s']:.1f}",
            str(each["best"]),
            _ratio(each["all_over_best"]),
            _paper(each["kind"], each["size"]),
        ]
        for each in found
    ]
    columns = [f"{counted(int(n), 'thread')}, us" for n in shown]
    headings = ["operator", "size", *columns, "GFLOP/s", "best", "all over best", "paper"]
    return Table(headings, rows, left=("operator", "size", "paper"))


def _pinned(found: list[dict[str, Any]]) -> Table:
    rows = []
    for each in found:
        alone = max(_best(pair) for pair in each["pairs"] if pair["executors"] == 1)
        for pair in each["pairs"]:
            named = shape(pair["executors"], pair["threads"])
            over = f"{_best(pair) / alone:.2f}"
            cells = [_ratio(pair.get(key)) for key in ("pinned", "free", "ratio")]
            rows.append([f"{each['kind']} {each['size']}", named, *cells, over])
    headings = ["operator", "executors", "pinned, GFLOP/s", "free, GFLOP/s", "pinned over free", "over one operator"]
    return Table(headings, rows, left=("operator", "executors"))


def _together(found: Mapping[str, Any]) -> Table:
    rows = [
        [each["size"], way, of["threads"], _us(of["us"]), _ratio(of["speed_up"]), *_longer(of["longer"])]
        for each in found["sizes"]
        for way, of in each["ways"].items()
    ]
    headings = ["size", "way", "threads", "us", "speed-up", "by filter: longer", "by input: longer"]
    return Table(headings, rows, left=("size", "way"))


def _remark(found: Mapping[str, Any]) -> str:
    paper = ", ".join(f"{threads} threads {seconds:g} s, {speed_up:g}" for threads, seconds, speed_up in TABLE_III)
    has_siblings = found["hardware_threads"] > 1
    siblings = "has the second hardware thread of every core" if has_siblings else "shares them by turns of the system"
    return _TOGETHER.format(paper=paper, siblings=f"On the same cores, the second operator here {siblings}.")


def _paper(kind: str, size: str) -> str:
    if kind in FIGURE_2:
        return f"{FIGURE_2[kind]} threads" if size in FIGURE_2_SIZES else ""
    _, _, images = size.strip("()").partition(",")
    return FIGURE_1[kind, images]


def _best(pair: Mapping[str, Any]) -> float:
    best: float = max(pair[key]["median"] for key in ("pinned", "free") if key in pair)
    return best


def _longer(found: list[dict[str, Any]] | None) -> list[str]:
    return ["", ""] if found is None else [_ratio(each) for each in found]


def _us(value: Mapping[str, Any]) -> str:
    return f"{value['median']:,.1f} ({value['low']:,.1f}-{value['high']:,.1f})"


def _ratio(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else f"{value['median']:.2f} ({value['low']:.2f}-{value['high']:.2f})"
