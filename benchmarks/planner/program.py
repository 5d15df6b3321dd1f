"""All of it, and what is written."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.environment import inspect_environment
from benchmarks.planner.jobs import Done, carry_out, own_jobs, shared_jobs
from benchmarks.planner.page import DOCUMENT, markdown, replaced, sections
from benchmarks.planner.pictures import draw
from benchmarks.planner.problems import graph_of
from benchmarks.planner.settings import Settings
from benchmarks.results import Result, console, prepare_output, write_json, write_text
from bow.planning.problem.operator_graph import OperatorGraph

FILE = "planner.json"


def run(settings: Settings, command: str) -> int:
    """Search, prove and replay, and write `planner.json`, `planner.md`, pictures, and the tables of `planning.md`."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began = time.perf_counter()
    graphs = {network: graph_of(network, settings.size) for network in settings.networks}
    done: list[Done] = []
    for jobs, workers in ((shared_jobs(settings, graphs), settings.workers), (own_jobs(settings, graphs), 1)):
        for each in carry_out(jobs, workers):
            done.append(each)
            console().print(f"{time.perf_counter() - began:.0f} s: {' '.join(each.key)}", highlight=False)
    environment = inspect_environment()
    own = Result("planner", command, environment, settings, time.perf_counter() - began, _nested(done)).as_dict()
    own["settings"].pop("docs")
    values = _with_other_parts(own, settings)
    write_json(settings.out / FILE, values)
    write_text(settings.out / "planner.md", markdown(values))
    _write_docs(settings, values, done, graphs)
    for section in sections(values):
        section.table.show(section.title)
    return 0


def _write_docs(
    settings: Settings, values: Mapping[str, Any], done: Sequence[Done], graphs: Mapping[str, OperatorGraph]
) -> None:
    if settings.docs.is_dir():
        draw(values, {each.key[2]: each.splits for each in done if each.splits}, graphs, settings.docs / "images")
    document = settings.docs / DOCUMENT
    if document.is_file():
        write_text(document, replaced(document.read_text(encoding="utf-8"), values))


def _nested(done: Sequence[Done]) -> dict[str, Any]:
    """By part, and by each further word of the keys."""
    found: dict[str, Any] = {}
    for each in done:
        inside = found
        for word in each.key[:-1]:
            inside = inside.setdefault(word, {})
        inside[each.key[-1]] = each.found
    return found


def _with_other_parts(own: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The results with the parts that were made earlier, each with the command that made it."""
    parts = [part for part in settings.parts if part in own]
    made = {key: own[key] for key in ("command", "date", "seconds", "environment", "settings")}
    before: Mapping[str, Any] = {}
    path = settings.out / FILE
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
    kept = {part: before[part] for part in before.get("made", {}) if part in before}
    return {
        "benchmark": own["benchmark"],
        "made": {**before.get("made", {}), **dict.fromkeys(parts, made)},
        **kept,
        **{part: own[part] for part in parts},
    }
