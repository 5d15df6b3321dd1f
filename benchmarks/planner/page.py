"""What is written: the page of all tables, and the tables of `docs/planning.md`."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.document import with_tables
from benchmarks.environment import Environment
from benchmarks.planner.section import Section
from benchmarks.planner.tables import (
    curve_section,
    neighbours_section,
    optcnn_section,
    optimum_section,
    seeds_section,
    simulators_section,
    speedup_sections,
    volume_section,
)

DOCUMENT = "planning.md"
# Of all tables that there can be
KEYS = ("optimum", "neighbours", "simulators", "curve", "seeds", "speed-up P100", "speed-up K80", "volume", "optcnn")

BENCHMARK = "planner"


def sections(values: Mapping[str, Any]) -> Iterator[Section]:
    """All tables, of what there is."""
    one_each = {
        "proof": optimum_section,
        "neighbours": neighbours_section,
        "simulators": simulators_section,
        "curve": curve_section,
        "seeds": seeds_section,
    }
    yield from (section(values[part]) for part, section in one_each.items() if part in values)
    if "clusters" in values:
        yield from speedup_sections(values["clusters"])
        for section in (volume_section(values["clusters"]), optcnn_section(values["clusters"])):
            if section is not None:
                yield section


def markdown(values: Mapping[str, Any]) -> str:
    """The page `planner.md`."""
    body = "\n".join(f"## {each.title}\n\n{each.remark}\n\n{each.table.markdown()}" for each in sections(values))
    made = "\n".join(
        f"* {part}: `{each['command']}`, {each['date'][:10]}, {each['seconds']:.0f} s with all parts of the command; "
        f"{Environment(**each['environment'])}."
        for part, each in values["made"].items()
    )
    return f"""# The planner on the paper's clusters, simulated

{made}

Nothing here was run on a GPU: times of tiles come from a roofline of the devices, and the rest is simulated. Seconds of
searches were measured. [planning.md](../../docs/planning.md) says what to make of it.

{body}"""


def replaced(text: str, values: Mapping[str, Any]) -> str:
    """The document with the tables that these values make; a table of a part that was not made stays as it is."""
    tables = {each.key: f"{each.remark}\n\n{each.table.markdown()}" for each in sections(values)}
    return with_tables(text, BENCHMARK, tables, KEYS)
