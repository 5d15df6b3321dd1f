"""`bow bench readme`: the results that the README states, written from the committed JSON.

A test fails where the README says something else than the files under `benchmarks/results`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bow.bench.arguments import setting
from bow.bench.results import RESULTS, Table, write_text
from bow.bench.workloads import WORKLOADS
from bow.errors import SettingError

BEGIN, END = "<!-- results: written by `bow bench readme` -->", "<!-- end of results -->"


@dataclass(frozen=True)
class Settings:
    """Settings of the command."""

    results: Path = setting(RESULTS, "folder with the results of all other benchmarks")  # noqa: RUF009
    out: Path = setting(Path("README.md"), "file whose results are to be replaced")  # noqa: RUF009


def run(settings: Settings, command: str) -> int:
    """Replace the results in the README."""
    text = settings.out.read_text(encoding="utf-8")
    write_text(settings.out, replaced(text, results_block(settings.results)))
    return 0


def replaced(text: str, block: str) -> str:
    """The text with another block between the two marks.

    Raises:
        SettingError: the marks are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SettingError(f"the file has no place for results; put {BEGIN} and {END} on lines of their own")
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}"


def results_block(folder: Path) -> str:
    """Markdown about the results in a folder."""
    parts = (("engines", _engines), ("tuner", _tuner), ("accuracy", _accuracy), ("sweep", _sweep))
    texts = [write(json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))) for name, write in parts]
    return "\n".join(texts)


def _engines(result: dict[str, Any]) -> str:
    settings = result["settings"]
    rows = []
    for contest in result["contests"]:
        head = [WORKLOADS[contest["model"]].title, str(contest["batch_size"])]
        sides = [text for side in ("pytorch", "bow") for text in _side(contest[side])]
        ratio = contest["ratio"]
        factor = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        rows.append([*head, *sides, factor])
    columns = ["model", "batch size", "best of PyTorch", "samples/s", "best of bow", "samples/s", "ratio"]
    table = Table(columns, rows, left=["model", "best of PyTorch", "best of bow"])
    mean = result["geometric_mean"]
    overall = "" if mean is None else f"Geometric mean of the medians: {mean:.2f}. "
    return (
        f"**Throughput** (`{result['command']}`, {_machine(result)}). The fastest of PyTorch, plain and compiled, with "
        f"{' and '.join(map(str, settings['threads']))} threads, against the fastest setting of bow: "
        f"{settings['repeats']} interleaved repeats of the two alone, after all had raced, "
        f"median (lowest to highest); a ratio below 1 means that bow is slower there. {overall}"
        "[All contestants, and what bounds each model]"
        f"(benchmarks/results/engines.md).\n\n{table.markdown()}"
    )


def _side(side: dict[str, Any] | None) -> list[str]:
    return ["", ""] if side is None else [side["setting"], f"{side['samples_per_s']:,.0f}"]


def _tuner(result: dict[str, Any]) -> str:
    rows = []
    for pair in result["pairs"]:
        ratio = pair["ratio"]
        over = "the same" if ratio is None else f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        cost = f"{pair['calibration_s']:.1f} s, {pair['share']:.1%}"
        rows.append([pair["model"], str(pair["batch_size"]), pair["choice"], pair["best"], over, cost])
    columns = ["model", "batch size", "found by the tuner", "best of all", "found over best", "cost"]
    table = Table(columns, rows, left=["model", "found by the tuner", "best of all"])
    settings = result["settings"]
    return (
        f"**Learners and engine found by measurement** (`{result['command']}`, {_machine(result)}). What the tuner "
        f"finds for a training of about {settings['run_s']:g} s, against the best of everything that it could have "
        f"chosen, {settings['repeats']} interleaved repeats of the two; the cost is that of all trials, compilation "
        "included, and its share of the training. [All of it](benchmarks/results/tuner.md).\n\n"
        f"{table.markdown()}"
    )


def _accuracy(result: dict[str, Any]) -> str:
    trainings = result["trainings"]
    last = ", ".join(f"{training['accuracies'][-1]:.2%}" for training in trainings)
    settings = result["settings"]
    reached = [_first(training["accuracies"], settings["target"]) for training in trainings]
    return (
        f"**Accuracy** (`{result['command']}`). LeNet on Fashion-MNIST, {settings['learners']} learners of batch "
        f"{settings['batch_size']}: the central model passes {settings['target']:.0%} test accuracy in epoch "
        f"{', '.join(map(str, reached))} and ends at {last} after {settings['epochs']} "
        f"([all epochs](benchmarks/results/accuracy.md)).\n"
    )


def _sweep(result: dict[str, Any]) -> str:
    return (
        f"**Learning rate, mu and learners** (`{result['command']}`, {len(result['trials'])} trainings): "
        "[table and picture](benchmarks/results/sweep.md). More learners bear, and need, a higher learning rate.\n"
    )


def _first(accuracies: list[float], target: float) -> int | str:
    return next((epoch for epoch, value in enumerate(accuracies, 1) if value >= target), "never")


def _machine(result: dict[str, Any]) -> str:
    environment = result["environment"]
    return f"{environment['processor']} with {environment['cores']} cores, torch {environment['torch']}"
