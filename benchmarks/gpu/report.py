"""The page of `python -m benchmarks gpu`, made of its JSON and of nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.floors import Floors
from benchmarks.gpu.line_up import PLAIN, one_graphed
from benchmarks.gpu.scheduling_report import scheduling_section, spread_text
from benchmarks.gpu.workloads import WORKLOADS
from benchmarks.harness import Table, ratios, spread

Values = Mapping[str, Any]


def markdown(values: Values) -> str:
    """The page."""
    parts: Mapping[str, Values] = values["parts"]
    sections = [
        *_head(values),
        *_aims(values),
        *_launches(parts),
        *_throughput(parts, values["machine"]),
        *_averaging(parts),
        *_kernels(parts),
        *_overlap(parts),
        *_paper(parts),
        *scheduling_section(parts),
        *_agreement(parts),
        *_trouble(parts),
    ]
    return "\n".join(sections)


def _head(values: Values) -> Iterator[str]:
    facts, settings, machine = values["machine"], values["settings"], values["environment"]
    yield "# bow on one GPU\n"
    if settings["fake"]:
        yield "**On the fake device of the tests: no time on this page means anything.**\n"
    yield f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s.\n"
    versions = ", ".join(
        f"{name} {facts[key]}"
        for name, key in (
            ("torch", "torch"),
            ("CUDA", "cuda"),
            ("cuDNN", "cudnn"),
            ("CuPy", "cupy"),
            ("Triton", "triton"),
        )
        if facts.get(key)
    )
    smi = facts.get("nvidia_smi", {})
    driver = f", driver {smi['driver_version']}" if "driver_version" in smi else ""
    clocks = f", {smi['clocks.max.sm']} MHz at most" if "clocks.max.sm" in smi else ""
    host = f"{machine['processor']}, {machine['cores']} cores"
    commit = f" at {machine['commit']}" if machine.get("commit") else ""
    yield f"{facts.get('device', 'no device')}{driver}{clocks}; {versions}; {host}; bow {machine['bow']}{commit}.\n"
    kernels = facts.get("kernels")
    why = f" ({facts['why_not_cupy']})" if facts.get("why_not_cupy") else ""
    yield (
        f"TF32 is {'on' if settings['tf32'] else 'off'} for all. Kernels of bow: {kernels}{why}. Data lies on the "
        "device for all, and a batch is gathered there: within the graph in the whole step as a CUDA graph and in "
        "bow's engines, before the step by the others. SGD with momentum. "
        f"{settings['repeats']} turns of {settings['stint_s']:g} s, taken in turns: median (lowest-highest); ratios "
        "are taken turn by turn.\n"
    )


def _aims(values: Values) -> Iterator[str]:
    rows = [[aim["verdict"], aim["aim"], aim["found"]] for aim in values["aims"]]
    yield "## Aims\n"
    yield Table(["", "aim", "found"], rows, left=["", "aim", "found"]).markdown()


def _launches(parts: Mapping[str, Values]) -> Iterator[str]:
    for name, queues in (("launches", ""), ("launches_8_queues", ", with 8 hardware queues")):
        found = parts.get(name, {})
        if not found.get("rows"):
            continue
        yield f"## Starting kernels{queues}\n"
        yield (
            f"Chains of {found['nodes']} dependent tiny kernels. Graphs: one on each stream. Branches: one graph. "
            "Host: to launch all of them.\n"
        )
        columns = ["streams"]
        for way in ("graphs", "branches"):
            columns += [f"{way}: kernels/us", "us a kernel of a chain", "host us"]
        rows = []
        for row in found["rows"]:
            cells = [str(row["streams"])]
            for way in ("graphs", "branches"):
                measured = row.get(way)
                keys = ("kernels_per_us", "us_per_kernel_of_a_chain", "host_us")
                cells += [spread_text(measured[key], 2) if measured else "" for key in keys]
            rows.append(cells)
        yield Table(columns, rows).markdown()


def _throughput(parts: Mapping[str, Values], machine: Values) -> Iterator[str]:
    floors = Floors(parts, machine)
    groups = [found for name, found in parts.items() if name.startswith("throughput") and found.get("contestants")]
    if not groups:
        return
    assumed = floors.assumptions
    measured = ", ".join(assumed["measured_here"]) or "none of them"
    yield "## Throughput\n"
    yield (
        "Names of bow's contestants are engine and learners. Floors of a round, from its step graph: chain, one "
        f"learner's kernels one after another, {assumed['us_from_kernel_to_kernel']:.2f} us each; work, the operations "
        f"at {assumed['peak_float32_flops'] / 1e12:.1f} TFLOP/s or the bytes at "
        f"{assumed['copy_bytes_per_s'] / 1e12:.2f} TB/s; starts, all learners' kernels at the rate above (measured "
        f"here: {measured}).\n"
    )
    for found in groups:
        yield f"### {WORKLOADS[found['model']].title}, batch {found['batch_size']}\n"
        yield _throughput_table(found, floors)


def _throughput_table(found: Values, floors: Floors) -> str:
    rows = found["contestants"]
    plain = next((row for row in rows if row["name"] == PLAIN), None)
    one = one_graphed(rows)
    lines = []
    for row in sorted(rows, key=lambda row: -row["samples_per_s"]["median"]):
        floor = floors.of(found["model"], found["batch_size"], row["learners"] or 1) or {}
        lines.append(
            [
                row["name"] + _ran_as(row),
                spread_text(row["samples_per_s"], 0),
                spread_text(row["round_ms"], 3),
                _ratio(row, plain),
                _ratio(row, one),
                *(f"{floor[key]:.3f}" if key in floor else "" for key in ("chain_ms", "work_ms", "starts_ms")),
            ]
        )
    columns = ["contestant", "samples/s", "ms a round", "to plain PyTorch", "to one graphed learner"]
    return Table([*columns, "chain ms", "work ms", "starts ms"], lines, left=["contestant"]).markdown()


def _averaging(parts: Mapping[str, Values]) -> Iterator[str]:
    groups = [found for name, found in parts.items() if name.startswith("averaging") and found.get("rows")]
    if not groups:
        return
    yield "## What averaging costs\n"
    yield (
        "Percent of time over the same without: never, `SMA` that is never due, so that all else is the same; "
        "independent, `Independent`, whose steps PyTorch makes.\n"
    )
    lines = [
        [
            WORKLOADS[found["model"]].title,
            str(found["batch_size"]),
            row["engine"],
            str(row["learners"]),
            spread_text(row["percent_over_never"], 2),
            spread_text(row["percent_over_independent"], 2) if "percent_over_independent" in row else "",
        ]
        for found in groups
        for row in found["rows"]
    ]
    columns = ["model", "batch", "engine", "learners", "% over never", "% over independent"]
    yield Table(columns, lines, left=["model", "engine"]).markdown()


def _kernels(parts: Mapping[str, Values]) -> Iterator[str]:
    found = parts.get("kernels", {})
    if not found.get("rows"):
        return
    yield "## Kernels\n"
    yield f"`{found['kernels']}`, captured as graphs, against copies of as many bytes.\n"
    lines = [
        [
            row["kernel"],
            row["size"],
            str(row["learners"]),
            f"{row['mbyte']:,.1f}",
            spread_text(row["us"], 1),
            spread_text(row["gb_per_s"], 0),
            spread_text(row["copy_gb_per_s"], 0),
            spread_text(row["share_of_copy"], 2),
        ]
        for row in found["rows"]
    ]
    columns = ["kernel", "rows of", "learners", "MB", "us", "GB/s", "copy GB/s", "share"]
    yield Table(columns, lines, left=["kernel", "rows of"]).markdown()


def _overlap(parts: Mapping[str, Values]) -> Iterator[str]:
    found = parts.get("overlap", {})
    if not found.get("rows"):
        return
    yield "## Kernels of two learners at the same time\n"
    subject = f"{WORKLOADS[found['model']].title}, batch {found['batch_size']}"
    yield f"{subject}, by the profiler, which slows everything down.\n"
    lines = [
        [
            row["engine"],
            str(row["kernels"]),
            str(row["streams"]),
            f"{row['busy_us']:,.0f}",
            f"{row['shared_us']:,.0f}",
            f"{row['together_us']:,.0f}",
            str(row["most_at_once"]),
            row["trace"],
        ]
        for row in found["rows"]
    ]
    columns = ["engine", "kernels", "streams", "busy us", "two streams us", "two kernels us", "most at once", "trace"]
    yield Table(columns, lines, left=["engine", "trace"]).markdown()


def _paper(parts: Mapping[str, Values]) -> Iterator[str]:
    titles = {
        "allocators": "Allocators (Budea 2019, figure 4.2)",
        "pinning": "Threads near the GPU (Budea 2019, section 5.4)",
        "compiling": "Compiled learning tasks",
    }
    for name, text in titles.items():
        found = parts.get(name, {})
        if found.get("contestants"):
            yield f"## {text}\n"
            yield _plain_table(found, found.get("losses", {}), found.get("cores", {}))
    groups = parts.get("spreading", {}).get("groups", ())
    if groups:
        yield "## One learner on n streams, or n learners (Budea 2019, figure 5.6)\n"
        for found in groups:
            yield f"### {WORKLOADS[found['model']].title}, batch {found['batch_size']}\n"
            yield _plain_table(found, {}, {})


def _plain_table(found: Values, losses: Values, cores: Values) -> str:
    columns = ["contestant", "samples/s", "ms a round"]
    columns += ["loss"] * bool(losses) + ["cores"] * bool(cores)
    lines = []
    for row in found["contestants"]:
        line = [row["name"] + _ran_as(row), spread_text(row["samples_per_s"], 0), spread_text(row["round_ms"], 3)]
        line += [str(losses.get(row["name"], ""))] * bool(losses) + [str(cores.get(row["name"], ""))] * bool(cores)
        lines.append(line)
    return Table(columns, lines, left=["contestant"]).markdown()


def _agreement(parts: Mapping[str, Values]) -> Iterator[str]:
    found = parts.get("agreement", {})
    rows = [
        [row["kernel"], f"{row['parameters']:,} x {row['learners']}", f"{row['largest_difference']:.1e}", _yes(row)]
        for row in found.get("kernels", ())
    ]
    rows += [
        [row["engine"], f"{row['model']} {row['batch_size']}", f"{row['largest_difference']:.1e}", _yes(row)]
        for row in found.get("engines", ())
    ]
    if rows:
        yield "## Agreement\n"
        yield "Kernels with PyTorch's operators on the same rows; central models of engines with that of `eager`.\n"
        yield Table(["what", "on", "largest difference", "agrees"], rows, left=["what", "on", "agrees"]).markdown()


def _trouble(parts: Mapping[str, Values]) -> Iterator[str]:
    lines = []
    for name, found in parts.items():
        lines += [f"* {name}: {note}" for note in found.get("notes", ())]
        lines += [f"* {name}: {found['failure']}"] if "failure" in found else []
    if lines:
        yield "## What was left out or failed\n"
        yield "\n".join(lines) + "\n"


def _yes(row: Values) -> str:
    return "yes" if row["agrees"] else "**no**"


def _ran_as(row: Values) -> str:
    engine, _, _ = row["name"].partition(",")
    ran = row.get("engine")
    return (
        f" (ran as {ran})" if ran and engine in ("graph", "whole_round", "streams", "fused") and ran != engine else ""
    )


def _ratio(row: Values, base: Values | None) -> str:
    if base is None or len(row["rates"]) != len(base["rates"]):
        return ""
    return spread_text(spread(ratios(row["rates"], base["rates"]), 3), 2)


__all__: Sequence[str] = ["markdown"]
