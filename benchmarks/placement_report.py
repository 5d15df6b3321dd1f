"""What `python -m benchmarks placement` writes for people: its pages, and the tables of `docs/placement.md`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import placement_tables as tables
from benchmarks.document import with_tables
from benchmarks.results import Table

DOCUMENT = "placement.md"
BENCHMARK = "placement"

BEHIND = 1.05  # What is learned is to take at most so many times what the best baseline takes

_SIMULATED = """\
# Device placement

`{command}`, {date}, {seconds:.0f} s. {environment}.

Simulated steps (forward, backward, update) on one Haswell processor and K80 GPUs, times by roofline from data sheets;
in brackets what the paper measured. Every search has {budget_s:g} s on one core{placements}. Over slow links copies
take {copies:g} times what the data sheets say. The policy neither sees nor starts from what other methods find;
*greedy* is what it decodes at the end. `mcmc` walks through placements, `soap` through all splits of the planner. The
paper's times have overheads of its runtime that no data sheet has: what can be compared is who is ahead of whom.
[placement.md](../../docs/placement.md) says what to make of it.
"""

_REAL = """\
# Device placement, real steps

`{command}`, {date}, {seconds:.0f} s. {environment}.

An RNNLM ({size}; {groups} groups) on two devices of a core each, a process on each, placed by several methods with
costs that were measured beforehand; each search has {budget_s:g} s. One more policy learns from real steps alone:
{updates} updates of 4 placements, 10 steps with each, the first of which does not count. Then all placements are run in
{turns} turns: median (quartiles).
"""


@dataclass(frozen=True)
class Section:
    """A table."""

    key: str  # by which `docs/placement.md` asks for it
    title: str  # above it
    table: Table  # the numbers


def sections(results: Mapping[str, Mapping[str, Any]]) -> Iterator[Section]:
    """All tables of what there is."""
    if "placement" in results:
        cases = results["placement"]["cases"]
        methods = results["placement"]["settings"]["methods"]
        yield Section("groups", "Groups", tables.groups_table(cases))
        yield Section("times", "Seconds of a step", tables.times_table(cases, methods))
        yield Section("verdicts", "Learned against the others", tables.verdicts_table(cases, BEHIND))
        yield Section("where", "Where groups are, as learned", tables.where_table(cases))
        yield Section("loads", "What devices are busy with, in milliseconds of a step", tables.loads_table(cases))
        yield Section("towers", "Towers, in seconds of a step with a batch for each GPU", tables.towers_table(cases))
    if "placement_real" in results:
        yield Section("real", "Real steps", tables.real_table(results["placement_real"]))
    if "placement_small" in results:
        small = results["placement_small"]
        yield Section("small", "Small graphs", tables.small_table(small["rows"], small["settings"]["near"]))


def simulated_page(values: Mapping[str, Any], environment: str) -> str:
    """The page `placement.md`."""
    settings = values["settings"]
    most = settings["placements"]
    head = _SIMULATED.format(
        **_head(values, environment),
        copies=settings["copies"],
        placements=f", and looks at no more than {most} placements" if most else "",
    )
    return "\n".join([head, *_shown({"placement": values})])


def real_page(values: Mapping[str, Any], environment: str) -> str:
    """The page `placement_real.md`."""
    settings = values["settings"]
    size = ", ".join(f"{name} {value}" for name, value in values["size"].items())
    counts = {"updates": settings["updates"], "turns": settings["turns"], "groups": values["groups"], "size": size}
    return "\n".join([_REAL.format(**_head(values, environment), **counts), *_shown({"placement_real": values})])


def replaced(text: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The document with the tables that these results make; those of other results stay."""
    made = {each.key: each.table.markdown() for each in sections(results)}
    return with_tables(text, BENCHMARK, made, KEYS)


KEYS = ("groups", "times", "verdicts", "where", "loads", "towers", "real", "small")  # Of all tables that there can be


def missed(values: Mapping[str, Any]) -> list[str]:
    """The aims that are missed, in words."""
    found = [(case, tables.misses(case, BEHIND)) for case in values.get("cases", ())]
    return [f"{case['title']}, {case['gpus']} GPUs: {why}" for case, why in found if why is not None]


def _head(values: Mapping[str, Any], environment: str) -> dict[str, Any]:
    return {
        "command": values["command"],
        "date": values["date"][:10],
        "seconds": values["seconds"],
        "environment": environment,
        "budget_s": values["settings"]["budget_s"],
    }


def _shown(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"## {each.title}\n\n{each.table.markdown()}" for each in sections(results)]
