"""`python -m benchmarks placement`: learned device placement against all that it was compared with.

`part=simulated`: RNNLM, NMT and Inception-v3 in the paper's sizes (section 4.1), and the large RNNLM and NMT that fit
no GPU (section 4.3), on a processor and 2 or 4 K80 GPUs: what a step takes with each method's placement, all searches
with the same budget, beside the paper's Table 2. Besides: what each device is busy with, towers (4.4, 4.5), pictures.
Once with links as the data sheets have them, and once with copies so slow that an LSTM layer for each GPU is as far
behind one GPU as in the paper.

`part=real`: a small RNNLM on two devices of a core each of this machine, placed by several methods with measured costs,
and by a policy that learns from real steps; then run, and its steps timed.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import placement_real, placement_report
from benchmarks.arguments import check_positive, setting
from benchmarks.environment import inspect_environment
from benchmarks.placement_cells import DATA_SHEET, SLOW, Cell, carry_out
from benchmarks.placement_networks import PLACED
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from bow.errors import SettingError
from bow.planning.placement.evaluation import SearchBudget
from bow.planning.placement.methods import METHODS

PARTS = ("simulated", "real")

SIZES = ("paper", "large")

LINKS = (DATA_SHEET, SLOW)

# With it the RNNLM with a layer for each of two GPUs takes 2.4 times as long as on one, as in the paper's Table 2
COPIES = 280.0


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for placement.json and placement.md")  # noqa: RUF009 - it is dataclasses.field
    docs: Path = setting(Path("docs"), "folder with placement.md, whose tables and pictures are replaced")  # noqa: RUF009
    part: str = setting(PARTS[0], "simulated, or real: on this machine", choices=PARTS)
    networks: tuple[str, ...] = setting(tuple(PLACED), "that are placed", choices=tuple(PLACED))
    sizes: tuple[str, ...] = setting(SIZES, "of the networks: the paper's, and those that fit no GPU", choices=SIZES)
    gpus: tuple[int, ...] = setting((2, 4), "numbers of GPUs")
    links: tuple[str, ...] = setting(LINKS, "as in data sheets, or slow; large networks: the first", choices=LINKS)
    copies: float = setting(COPIES, "over slow links copies take so many times as long as by the data sheets")
    methods: tuple[str, ...] = setting(tuple(METHODS), "that place", choices=tuple(METHODS))
    budget_s: float = setting(100.0, "seconds of each search")
    placements: int = setting(0, "each search looks at no more placements; 0: as many as it can in its time")
    workers: int = setting(2, "processes that share the networks; 1: this one")
    turns: int = setting(30, "real: in which every placement is run once")
    updates: int = setting(40, "real: of the policy that learns from real steps, each with 4 placements of 10 steps")
    seed: int = setting(0, "of all random numbers")
    quick: bool = setting(False, "a small part of each, to see that it works")

    def __post_init__(self) -> None:
        check_positive(self, "gpus", "budget_s", "copies", "workers", "turns", "updates")
        if self.placements < 0:
            raise SettingError(f"placements must be at least 0, got {self.placements}")
        for name in ("networks", "sizes", "links", "methods"):
            if not getattr(self, name):
                raise SettingError(f"{name} must not be empty; leave it out for all")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        few = replace(self, gpus=self.gpus[:1], links=self.links[:1], workers=1, turns=2, updates=2)
        return replace(few, sizes=("tiny",), budget_s=2.0, placements=48, docs=self.out)

    @property
    def budget(self) -> SearchBudget:
        """Of each search."""
        return SearchBudget(self.budget_s, self.placements or None)

    def cells(self) -> Iterator[Cell]:
        """What is placed; slow links are for the paper's sizes alone."""
        for name in self.networks:
            for size in (each for each in PLACED[name].sizes if each in self.sizes):
                for links in self.links if size == "paper" else self.links[:1]:
                    copies = self.copies if links == SLOW else 1.0
                    for gpus in self.gpus:
                        yield Cell(name, size, gpus, links, copies, self.methods, self.budget, self.seed)


def run(settings: Settings, command: str) -> int:
    """Carry out a part, and write what is found; 1 where an aim is missed, else 0."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began = time.perf_counter()
    if settings.part == "real":
        history = placement_real.measure(settings.budget, settings.turns, settings.updates, settings.seed)
        name, page = "placement_real", placement_report.real_page
    else:
        history = _simulated(settings)
        name, page = "placement", placement_report.simulated_page
    environment = inspect_environment()
    values = Result(name, command, environment, settings, time.perf_counter() - began, history).as_dict()
    values["settings"].pop("docs")
    write_json(settings.out / f"{name}.json", values)
    write_text(settings.out / f"{name}.md", page(values, str(environment)))
    document = settings.docs / placement_report.DOCUMENT
    if document.is_file() and document.parent != settings.out:
        write_text(document, placement_report.replaced(document.read_text(encoding="utf-8"), {name: values}))
    for section in placement_report.sections({name: values}):
        section.table.show(section.title)
    return int(not settings.quick and bool(placement_report.missed(values)))


def _simulated(settings: Settings) -> dict[str, object]:
    images = settings.docs / "images"
    cases = []
    for found in carry_out(list(settings.cells()), settings.workers):
        cases.append(found.case)
        for name, picture in found.pictures.items():
            images.mkdir(parents=True, exist_ok=True)
            write_text(images / name, picture)
        case = found.case
        console().print(f"{case['title']}, {case['size']}, {case['gpus']} GPUs, {case['links']}: done", highlight=False)
    return {"cases": cases}
