"""Benchmarks for every figure of the TensorBow evaluation, and for its Table 5.1.

`size=small` is a variant of each figure for two CPU cores, with smaller models and data; `size=full`, for a server with
a GPU, has models of the same names and the paper's data, epochs and targets. Only the logistic regression is known
to be identical: the paper's LeNet is 2.5 times as large, its ResNet-32 almost as large as ours (Table 5.1), and it
states neither learning rates nor augmentation. Plain PyTorch replaces the paper's TensorFlow, and alternates with bow
in one process. Every figure writes a JSON file and a picture; `figures.md` is generated from all JSON files in the
folder.

References:
    Budea: TensorBow, supporting small-batch training in TensorFlow, 2019, chapter 5.
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import harness
from benchmarks.figures.catalogue import FIGURES, NAMES, TABLE, Bench
from benchmarks.figures.comparison import context, stem
from benchmarks.figures.convergence import School
from benchmarks.figures.forms import FORMS, QUICK, SIZES
from benchmarks.figures.pictures import draw
from benchmarks.harness import setting
from bow.errors import BowError, SettingError
from bow.training.checks import resolve_device

ALL = "all"


@dataclass(frozen=True)
class Config(harness.Config):
    out: Path = setting(harness.RESULTS / "figures", "folder for the JSON files, pictures and figures.md")  # noqa: RUF009
    figure: tuple[str, ...] = setting((ALL,), "figures, such as 5.6,5.7 or table5.1", choices=(ALL, *NAMES))
    size: str = setting("small", "small: for two cores; full: as in the paper, for a GPU", choices=SIZES)
    root: str = setting("", "with size=full: folder with the files of MNIST and CIFAR-10, or with mnist/ and cifar10/")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quick and self.size != "small":
            raise SettingError(f"quick=true has a size of its own, got size={self.size}; leave one of the two out")
        if self.root and self.form != "full":
            raise SettingError(f"root={self.root} has an effect with size=full only; leave it out, or set size=full")

    @property
    def form(self) -> str:
        """Key of the form to measure."""
        return QUICK if self.quick else self.size

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures, each once, in order."""
        return NAMES if ALL in self.figure else tuple(name for name in NAMES if name in self.figure)


def run(config: Config, command: str) -> int:
    """Write JSON, picture and page after every figure; returns 1 if one of several failed, else 0."""
    harness.prepare_output(config.out)
    device = resolve_device("auto")
    bench = Bench(FORMS[config.form], device, School(device, config.root, harness.say))
    failures: dict[str, BowError] = {}
    for name in config.names:
        harness.say(f"{name}: {FIGURES[name].title}")
        try:
            _measure(name, bench, config, command)
        except BowError as error:
            failures[name] = error
    if len(failures) == len(config.names):
        raise next(iter(failures.values()))
    for name, failure in failures.items():
        harness.say(f"{name} could not be measured: {failure}")
    return int(bool(failures))


def render(config: Config) -> None:
    """Draw the figures and write the page from the JSON files in the folder."""
    for name in config.names:
        path = config.out / f"{stem(name)}.json"
        if name != TABLE and path.is_file():
            draw(name, json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".png"))
    harness.write_text(config.out / "figures.md", markdown(config.out))


def markdown(folder: Path) -> str:
    """Return the page, from the contents of the folder."""
    return harness.render("figures", context(folder))


def _measure(name: str, bench: Bench, config: Config, command: str) -> None:
    began = time.perf_counter()
    findings = FIGURES[name].measure(bench)
    # Includes trainings that an earlier figure ran: the time that the figure takes on its own.
    seconds = findings.pop("trained_s", time.perf_counter() - began)
    device = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else bench.device.type
    about = {"figure": name, "form": config.form, "device": device}
    own = replace(config, figure=(name,))
    values = harness.result(f"figures {name}", command, own, seconds, {**about, **findings})
    harness.write_json(config.out / f"{stem(name)}.json", values)
    if name != TABLE:
        draw(name, values, config.out / f"{stem(name)}.png")
    harness.write_text(config.out / "figures.md", markdown(config.out))
