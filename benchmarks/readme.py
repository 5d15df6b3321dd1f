"""`python -m benchmarks readme`: docs/results.md and its summary in the README, written from the committed JSON.

A test fails where either says something else than the files under `benchmarks/results`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.allreduce import DELAYED, WHOLE
from benchmarks.arguments import setting
from benchmarks.figures.comparison import comparison
from benchmarks.figures.page import stem
from benchmarks.peers.report import finals_table
from benchmarks.peers.training import FINAL, Training
from benchmarks.planner.problems import TITLES
from benchmarks.predicted import told
from benchmarks.results import RESULTS, Table, write_text
from benchmarks.workloads import WORKLOADS
from bow.errors import SettingError
from bow.models import NETWORKS

BEGIN, END = "<!-- results: written by `python -m benchmarks readme` -->", "<!-- end of results -->"

SUMMARY_BATCH = 16

# Left out where there are no results yet; so are the figures
OPTIONAL = ("peers", "allreduce", "schedule", "planner", "predicted")

# Figures that the README quotes, and what of them
HEADLINES = (
    ("5.8", "throughput of 2 learners over 1"),
    ("5.4", "time of bow, 3 learners and small batch, over plain with the best batch size"),
)


@dataclass(frozen=True)
class Settings:
    """Settings of the command."""

    results: Path = setting(RESULTS, "folder with the results of all other benchmarks")  # noqa: RUF009
    out: Path = setting(Path("docs/results.md"), "file with all results")  # noqa: RUF009
    summary: Path = setting(Path("README.md"), "file with a summary of them")  # noqa: RUF009


def run(settings: Settings, command: str) -> int:
    """Replace the results and their summary."""
    for path, block in ((settings.out, results_block), (settings.summary, summary_block)):
        write_text(path, replaced(path.read_text(encoding="utf-8"), block(settings.results)))
    return 0


def replaced(text: str, block: str) -> str:
    """The text with another block between the two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SettingError(f"the file has no place for results; put {BEGIN} and {END} on lines of their own")
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}"


def results_block(folder: Path) -> str:
    """Markdown about the results in a folder."""
    parts = (
        ("engines", _engines),
        ("tuner", _tuner),
        ("peers", _peers),
        ("accuracy", _accuracy),
        ("sweep", _sweep),
        ("allreduce", _allreduce),
        ("schedule", _schedule),
        ("planner", _planner),
        ("predicted", _predicted),
    )
    paths = [(folder / f"{name}.json", write) for name, write in parts]
    texts = [write(_read(path)) for path, write in paths if path.is_file() or path.stem not in OPTIONAL]
    return "\n".join(filter(None, [*texts, *_figures(folder / "figures")]))


def summary_block(folder: Path) -> str:
    """A small table: throughput at one batch size, and time to accuracy."""
    result, peers = _read(folder / "engines.json"), _read(folder / "peers.json")
    contests = [
        each for each in result["contests"] if each["batch_size"] == SUMMARY_BATCH and each["ratio"] is not None
    ]
    titles = [WORKLOADS[each["model"]].title for each in contests]
    ratios = [_interval(each["ratio"], 2) for each in contests]
    table = Table(
        [f"batch {SUMMARY_BATCH}", *titles], [["bow / best PyTorch", *ratios]], left=[f"batch {SUMMARY_BATCH}"]
    )
    verdict, settings = peers["verdict"], peers["settings"]
    return (
        f"Samples per second against the fastest of plain and compiled PyTorch ({_machine(result)}, "
        f"{result['date'][:10]}, `{result['command']}`), median (lowest to highest):\n\n{table.markdown()}\n"
        f"Time to {settings['target']:.0%} test accuracy, {settings['model']} on {settings['data'].replace('_', ' ')}, "
        f"against the best setting of plain PyTorch ({peers['date'][:10]}): {_interval(verdict['ratio'], 2)}. "
        "Above 1: bow was slower there. [All results](docs/results.md), with their commands.\n"
    )


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


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
        f"(../benchmarks/results/engines.md).\n\n{table.markdown()}"
    )


def _side(side: dict[str, Any] | None) -> list[str]:
    return ["", ""] if side is None else [side["setting"], f"{side['samples_per_s']:,.0f}"]


def _tuner(result: dict[str, Any]) -> str:
    rows = []
    for pair in result["pairs"]:
        over = "" if pair["ratio"] is None else _interval(pair["ratio"])
        if pair["choice"] == pair["best"]:
            over = "the same" if pair["margin"] is None else f"the same; over the next {_interval(pair['margin'])}"
        cost = f"{pair['calibration_s']:.1f} s, {pair['share']:.1%}"
        choice = "none" if pair["choice"] is None else pair["choice"]
        rows.append([pair["model"], str(pair["batch_size"]), choice, pair["best"], over, cost, pair["verdict"]])
    columns = ["model", "batch size", "found by the tuner", "the best", "found over best", "cost", "verdict"]
    table = Table(columns, rows, left=["model", "found by the tuner", "the best", "verdict"])
    settings = result["settings"]
    return (
        f"**Learners and engine found by measurement** (`{result['command']}`, {_machine(result)}). What the tuner "
        f"finds for a training of {settings['run_s']:g} s, against the fastest of every engine with every number of "
        f"learners and threads: the choice and the fastest run {settings['turns']} times in turn, median of the ratios "
        "(interval with 95% confidence); the cost is that of all trials, compilation included, and its share of the "
        "training. Undecided: the median is below 0.95, the interval is not. "
        f"[All of it](../benchmarks/results/tuner.md).\n\n{table.markdown()}"
    )


def _interval(found: dict[str, Any], digits: int = 3) -> str:
    median, low, high = (f"{found[name]:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def _peers(result: dict[str, Any]) -> str:
    settings, verdict = result["settings"], result["verdict"]
    finals = [Training.from_dict(values) for values in result["trainings"] if values["stage"] == FINAL]
    outcome = {True: "The claim holds", False: "The claim does not hold", None: "No verdict"}[verdict["is_met"]]
    ratio = verdict["ratio"]
    over = "" if ratio is None else f": the ratio is {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    missed = "".join(f"; {name} did not reach the target with seed {seed}" for name, seed in verdict.get("missed", ()))
    return (
        f"**Time to accuracy, beside the peers** (`{result['command']}`, {_machine(result)}). {settings['model']} on "
        f"{settings['data'].replace('_', ' ')}, to {settings['target']:.1%} test accuracy, "
        f"{settings['seeds']} seed(s), median (lowest to highest). Claimed is that {verdict['claim']}. "
        f"{outcome}{over}{missed}. [All of it](../benchmarks/results/peers.md).\n\n"
        f"{finals_table(finals, settings['target']).markdown()}"
    )


def _figures(folder: Path) -> list[str]:
    """The section about the figures of the paper, or nothing."""
    quotes = []
    for name, what in HEADLINES:
        path = folder / f"{stem(name)}.json"
        if path.is_file():
            values = _read(path)
            rows = [row for row in comparison(name, values).rows if row[0] == what]
            on = f" on {values['data']}" if "data" in values else ""
            quotes += [f"{values['model']}{on}, {what}: {here}; in the paper {paper}" for _, paper, here in rows]
    if not quotes:
        return []
    text = (
        f"**The figures of the TensorBow evaluation** (`python -m benchmarks figures`, form {values['form']}, "
        f"{_machine(values)}): [all of them](../benchmarks/results/figures/figures.md), beside the paper's. "
        "Models and data are not the paper's in everything, and hardware and framework are others. "
        f"{'. '.join(quotes)}.\n"
    )
    return [text]


def _accuracy(result: dict[str, Any]) -> str:
    trainings = result["trainings"]
    last = ", ".join(f"{training['accuracies'][-1]:.2%}" for training in trainings)
    settings = result["settings"]
    reached = [_first(training["accuracies"], settings["target"]) for training in trainings]
    return (
        f"**Accuracy** (`{result['command']}`). LeNet on Fashion-MNIST, {settings['learners']} learners of batch "
        f"{settings['batch_size']}: the central model passes {settings['target']:.0%} test accuracy in epoch "
        f"{', '.join(map(str, reached))} and ends at {last} after {settings['epochs']} "
        f"([all epochs](../benchmarks/results/accuracy.md)).\n"
    )


def _sweep(result: dict[str, Any]) -> str:
    return (
        f"**Learning rate, mu and learners** (`{result['command']}`, {len(result['trials'])} trainings): "
        "[table and picture](../benchmarks/results/sweep.md). More learners bear, and need, a higher learning rate.\n"
    )


def _allreduce(result: dict[str, Any]) -> str:
    """A round with averaging between devices over one without."""
    quoted = "; ".join(
        f"{WORKLOADS[model].title} {_ratio(ways[WHOLE])}, late {_ratio(ways[DELAYED])}"
        for model, ways in result["models"].items()
    )
    settings = result["settings"]
    return (
        f"**Averaging between devices** (`{result['command']}`, {_machine(result)}). {settings['devices']} processes "
        "on the cores of one machine, Gloo: a round over one without averaging, with one AllReduce, and with one that "
        f"arrives late by {result['late']:g} of a round, which is to cost at most {result['limit']:g}. {quoted}. "
        "[All ways, buckets and the paper's among them](../benchmarks/results/allreduce.md).\n"
    )


def _schedule(result: dict[str, Any]) -> str:
    """What bow chooses for the operators of one learner, over the fastest way to run them one after another."""
    found = {name: network["policies"]["choice"]["speed_up"] for name, network in result["networks"].items()}
    quoted = "; ".join(f"{NETWORKS[name].title} {_spread(each)}" for name, each in found.items())
    return (
        f"**Operators of one learner side by side** (`{result['command']}`, {_machine(result)}). A step under the "
        "schedule that `bow schedule compare` chooses, over the fastest that runs one operator after another, "
        f"PyTorch's too: median and quartiles of {2 * result['settings']['turns']} turns. {quoted}. "
        "[All policies](../benchmarks/results/schedule.md), [what they do](scheduling.md).\n"
    )


def _planner(result: dict[str, Any]) -> str:
    """What the strategies that are found gain on as many devices as were simulated of each kind."""
    made = result["made"].get("clusters")
    if made is None:
        return ""
    clusters = [_cluster(gpu, networks) for gpu, networks in result["clusters"].items()]
    return (
        f"**Operators split over devices, simulated** (`{made['command']}`, {_machine(made)}; no GPU was used). How "
        "much faster a step is by what "
        f"{made['settings']['cluster_s']:g} s of search find than by the faster one of data parallelism and the "
        f"expert's strategy: {'; '.join(clusters)}. "
        "Simulated links serve messages in order, which slows down most what sends from all to all, as the expert's "
        "strategies for convolutional networks do. [All of it](../benchmarks/results/planner.md), "
        "[the paper's numbers beside it, and where this differs](planning.md).\n"
    )


def _cluster(gpu: str, networks: dict[str, Any]) -> str:
    """Of as many GPUs as there are in all networks."""
    devices = max((number for by_devices in networks.values() for number in by_devices), key=int)
    quoted = [
        f"{title} {_over(networks[name][devices])}"
        for name, title in TITLES.items()
        if devices in networks.get(name, {})
    ]
    return f"on {devices} {gpu} {', '.join(quoted)}"


def _over(found: dict[str, Any]) -> str:
    strategies = found["strategies"]
    known = [strategies[name]["step_ms"] for name in ("data", "expert") if "step_ms" in strategies[name]]
    return f"{min(known) / strategies['found']['step_ms']:.2f}" if known else "none"


def _predicted(result: dict[str, Any]) -> str:
    """How well the simulator knows what a step takes."""
    return (
        f"**Predicted against measured steps** (`{result['command']}`, {_machine(result)}). {told(result)} "
        "[Every strategy](../benchmarks/results/predicted.md).\n"
    )


def _ratio(way: dict[str, Any]) -> str:
    return _spread(way["ratio"])


def _spread(found: dict[str, Any]) -> str:
    return "{median:.2f} ({low:.2f} to {high:.2f})".format(**found)


def _first(accuracies: list[float], target: float) -> int | str:
    return next((epoch for epoch, value in enumerate(accuracies, 1) if value >= target), "never")


def _machine(result: dict[str, Any]) -> str:
    environment = result["environment"]
    return f"{environment['processor']} with {environment['cores']} cores, torch {environment['torch']}"
