"""What is written: the page of all tables, and the tables and pictures of `docs/scheduling.md`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.document import with_tables
from benchmarks.manycore.claims import claims_section
from benchmarks.manycore.jobs import Done
from benchmarks.manycore.pictures import draw_cells, draw_counts, draw_speedups
from benchmarks.manycore.report_graphi import best_row, graphi_sections
from benchmarks.manycore.report_liu import liu_sections
from benchmarks.manycore.section import Section

DOCUMENT = "scheduling.md"
BENCHMARK = "manycore"


def sections(values: Mapping[str, Any]) -> Iterator[Section]:
    """All tables, of what there is."""
    yield claims_section(values["graphi"], values["liu"], values["settings"]["detail"])
    yield from graphi_sections(values["graphi"])
    yield from liu_sections(values["liu"])


def markdown(values: Mapping[str, Any], environment: str) -> str:
    """The page `manycore.md`."""
    body = "\n".join(f"## {each.title}\n\n{each.remark}\n\n{each.table.markdown()}" for each in sections(values))
    return f"""# Operator scheduling on a machine with 68 cores, simulated

`{values["command"]}`, {values["date"][:10]}, {values["seconds"]:.0f} s. {environment}.

Nothing here was measured: times of operators come from `Saturation`, decisions from the schedulers that the
runtime is driven by, and the rest is simulated. [scheduling.md](../../docs/scheduling.md) says what to make of it.

{body}"""


def replaced(text: str, values: Mapping[str, Any]) -> str:
    """The document with the tables that these values make."""
    tables = {each.key: each.table.markdown() for each in sections(values)}
    return with_tables(text, BENCHMARK, tables, keys=tables)


def draw(done: Sequence[Done], values: Mapping[str, Any], folder: Path) -> list[str]:
    """Draw all pictures; the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    draw_speedups(values["graphi"], folder / "manycore_figure_6.png")
    draw_counts({each.network: each.counts for each in done if each.counts}, folder / "manycore_figure_4.png")
    names = ["manycore_figure_6.png", "manycore_figure_4.png"]
    for each in done:
        if each.cells:
            best = best_row(each.found["executors"])["executors"]
            names += draw_cells(each.cells, best, each.size, folder)
    return names
