"""Write docs/results.md and its summary in the README from the committed JSON.

A test fails if either disagrees with the files under `benchmarks/results`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.figures.comparison import comparison, stem
from benchmarks.harness import setting
from benchmarks.peers import finals_rows, trainings_of
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.training import FINAL
from benchmarks.planner import by_devices
from benchmarks.planner.problems import TITLES
from benchmarks.predicted import told
from benchmarks.workloads import WORKLOADS
from bow.errors import SettingError

BEGIN, END = "<!-- results: written by `python -m benchmarks readme` -->", "<!-- end of results -->"
SUMMARY_BATCH = 16
NEEDED = ("engines", "tuner")
OPTIONAL = (
    "peers",
    "budgets",
    "members",
    "tabular",
    "halving",
    "allreduce",
    "schedule",
    "planner",
    "predicted",
)  # omitted if there are no results yet

# Figures to quote, and their captions
HEADLINES = (
    ("5.8", "throughput of 2 learners over 1"),
    ("5.4", "time of bow, 3 learners and small batch, over plain with the best batch size"),
)


@dataclass(frozen=True)
class Config(harness.Config):
    results: Path = setting(harness.RESULTS, "folder with the results of all other benchmarks")  # noqa: RUF009
    out: Path = setting(Path("docs/results.md"), "file with all results")  # noqa: RUF009
    summary: Path = setting(Path("README.md"), "file with a summary of them")  # noqa: RUF009


def run(config: Config, command: str) -> int:
    """Replace the results and their summary."""
    for path, block in ((config.out, results_block), (config.summary, summary_block)):
        harness.write_text(path, replaced(path.read_text(encoding="utf-8"), block(config.results)))
    return 0


def replaced(text: str, block: str) -> str:
    """Replace the block between the two marks in a text."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SettingError(f"the file has no place for results; put {BEGIN} and {END} on lines of their own")
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}"


def results_block(folder: Path) -> str:
    """Return the results in a folder as Markdown."""
    found = {name: _read(folder / f"{name}.json", name in OPTIONAL) for name in (*NEEDED, *OPTIONAL)}
    figures = {name: _read(folder / "figures" / f"{stem(name)}.json", True) for name, _ in HEADLINES}
    quotes = [quote for name, what in HEADLINES if (values := figures[name]) for quote in _quoted(name, what, values)]
    peers, budgets = found["peers"], found["budgets"]
    trainings = [] if peers is None else trainings_of(peers)
    return harness.render(
        "results",
        {
            **found,
            "workloads": WORKLOADS,
            "trained": sum(budgets[task]["trainings"] for task in budgets["made"]) if budgets else 0,
            "finals": finals_rows([training for training in trainings if training.stage == FINAL]),
            "by_devices": by_devices,
            "network_titles": TITLES,
            "over": _over,
            "told_predicted": found["predicted"] and told(found["predicted"]),
            "quotes": quotes,
            "quoted": next(filter(None, reversed(figures.values())), None),
        },
    )


def summary_block(folder: Path) -> str:
    """Return a small table: throughput at one batch size, and time to accuracy."""
    engines, peers, members = (
        _read(folder / f"{name}.json", name == "members") for name in ("engines", "peers", "members")
    )
    assert engines is not None
    contests = [each for each in engines["contests"] if each["batch_size"] == SUMMARY_BATCH and each["ratio"]]
    groups = [] if members is None else members["groups"]
    seeds = {each["model"]: each["over"]["loops"] for each in groups if each["batch_size"] == SUMMARY_BATCH}
    values = {"engines": engines, "peers": peers, "members": members, "contests": contests, "seeds": seeds}
    known = {"batch": SUMMARY_BATCH, "workloads": WORKLOADS, "contestants": CONTESTANTS}
    return harness.render("summary", {**values, **known})


def _read(path: Path, is_optional: bool = False) -> dict[str, Any] | None:
    if is_optional and not path.is_file():
        return None
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _quoted(name: str, what: str, values: Mapping[str, Any]) -> list[str]:
    on = f" on {values['data']}" if "data" in values else ""
    rows = [row for row in comparison(name, values) if row[0] == what]
    return [f"{values['model']}{on}, {what}: {here}; in the paper {paper}" for _, paper, here in rows]


def _over(strategies: Mapping[str, Any]) -> str:
    """Speed-up of the strategy found over the faster of data parallelism and the expert's strategy."""
    usual = (strategies[name] for name in ("data", "expert"))
    known = [each["step_ms"] for each in usual if "step_ms" in each and not each.get("refused")]
    return f"{min(known) / strategies['found']['step_ms']:.2f}" if known else "none"
