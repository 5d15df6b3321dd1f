"""All of it, and what is written."""

import time
from typing import Any

from benchmarks.environment import inspect_environment
from benchmarks.manycore.jobs import Done, all_jobs, carry_out
from benchmarks.manycore.machines import CORES, TEAM_CORES
from benchmarks.manycore.page import DOCUMENT, draw, markdown, replaced, sections
from benchmarks.manycore.settings import Settings
from benchmarks.results import Result, console, prepare_output, write_json, write_text

SHOWN = ("claims", "figure 6", "figure 3")


def run(settings: Settings, command: str) -> int:
    """Simulate, and write `manycore.json`, `manycore.md`, pictures, and the tables of `scheduling.md`."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began = time.perf_counter()
    done: list[Done] = []
    for each in carry_out(all_jobs(settings), settings.workers):
        done.append(each)
        console().print(f"{each.network}, {each.size}: {each.found['operators']} operators", highlight=False)
    environment = inspect_environment()
    findings = _findings(done, settings)
    values = Result("manycore", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    values["settings"].pop("docs")
    write_json(settings.out / "manycore.json", values)
    write_text(settings.out / "manycore.md", markdown(values, str(environment)))
    if settings.docs.is_dir():
        draw(done, values, settings.docs / "images")
    document = settings.docs / DOCUMENT
    if document.is_file():
        write_text(document, replaced(document.read_text(encoding="utf-8"), values))
    for section in sections(values):
        if section.key in SHOWN:
            section.table.show(section.title)
    return 0


def _findings(done: list[Done], settings: Settings) -> dict[str, Any]:
    """By network, and by size, in the order of the settings."""
    found = {(each.network, each.size): each.found for each in done}
    return {
        "cores": CORES,
        "cores_of_executors": TEAM_CORES,
        "graphi": {network: {size: found[network, size] for size in settings.sizes} for network in settings.graphi},
        "liu": {network: found[network, settings.size] for network in settings.liu},
    }
