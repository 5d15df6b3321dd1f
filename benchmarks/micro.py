"""`python -m benchmarks micro`: what made both papers schedule operators, on the machine at hand.

Three parts. `threads`: how long an operator takes, by number of threads and size (Tang et al., Figure 2; Liu et al.,
Figure 1 and Table II). `pinned`: several executors at once, each with cores of its own, or wherever the system puts
their threads (Tang et al., Figure 3). `together`: two operators one after another, on the same cores at once, and each
on half of the cores (Liu et al., Table III).
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import micro_report
from benchmarks.arguments import check_positive, setting
from benchmarks.cost_models.evidence import TABLE_II
from benchmarks.environment import inspect_environment
from benchmarks.micro_operators import (
    BY_FILTER,
    BY_INPUT,
    Call,
    Make,
    Probe,
    Ran,
    Seat,
    convolution,
    convolutions,
    copies,
    gemm,
    makespans,
    product,
    quartiles_us,
    sample,
)
from benchmarks.quartiles import Quartiles
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from benchmarks.schedule_contestants import pairs, shape
from bow.devices import available_cores, core_sets
from bow.devices.topology import Topology, read_topology
from bow.errors import SettingError

PARTS = ("threads", "pinned", "together")

PAPER_HIDDEN = 512  # Units of Tang et al.'s operators

FREE, PINNED = "free", "pinned"

ONE_AFTER_ANOTHER, SAME_CORES, HALF_EACH = "one after another", "on the same cores", "on half of the cores each"


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for micro.json and micro.md")  # noqa: RUF009 - it is dataclasses.field
    parts: tuple[str, ...] = setting(PARTS, "what is done", choices=PARTS)
    hidden: tuple[int, ...] = setting((128, PAPER_HIDDEN, 1024), "units: sizes of products")
    samples: int = setting(4, "images of a convolution; the paper has 32")
    turns: int = setting(15, "turns of everybody")
    stint_s: float = setting(0.05, "seconds of each")
    quick: bool = setting(False, "a small part of each, to see that it works")

    def __post_init__(self) -> None:
        check_positive(self, "hidden", "samples", "turns", "stint_s")
        if not self.parts:
            raise SettingError("parts must not be empty; leave it out for all")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        return replace(self, hidden=(16,), samples=1, turns=2, stint_s=0.001) if self.quick else self


def run(settings: Settings, command: str) -> int:
    """Do the parts, and write `micro.json` and `micro.md`."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began, before, cores = time.perf_counter(), torch.get_num_threads(), len(available_cores())
    parts: Mapping[str, Callable[[], Any]] = {
        "threads": lambda: by_threads(settings, cores),
        "pinned": lambda: pinned(settings, cores),
        "together": lambda: together(settings, read_topology()),
    }
    findings: dict[str, Any] = {"cores": cores}
    torch.manual_seed(0)
    try:
        for part in settings.parts:
            console().print(f"{part} ...", highlight=False)
            findings[part] = parts[part]()
    finally:
        torch.set_num_threads(before)
    environment = inspect_environment()
    values = Result("micro", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    write_json(settings.out / "micro.json", values)
    write_text(settings.out / "micro.md", micro_report.markdown(values, str(environment)))
    for section in micro_report.sections(values):
        section.table.show(section.title)
    return 0


def by_threads(settings: Settings, cores: int) -> list[dict[str, Any]]:
    """Every operator with every number of threads."""
    products: list[Make] = [functools.partial(make, hidden) for make in (gemm, product) for hidden in settings.hidden]
    return [scaling(make, cores, settings) for make in (*products, *convolutions(settings.samples))]


def scaling(make: Make, cores: int, settings: Settings) -> dict[str, Any]:
    """How long an operator takes, by number of threads."""
    call = make()
    seats = {n: Seat(core_sets(1, n)[0], n) for n in range(1, cores + 1)}
    count = copies(make, seats[1], settings.stint_s)
    runs = sample({str(n): Probe([[call] * count], [seat]) for n, seat in seats.items()}, settings.turns)
    times = {n: makespans(own) for n, own in runs.items()}
    best = min(times, key=lambda n: (Quartiles.of(times[n]).median, int(n)))
    return {
        "kind": call.kind,
        "size": call.size,
        "mflop": round(call.flops / 1e6, 3),
        "copies": count,
        "us": {n: quartiles_us(own, count) for n, own in times.items()},
        "best": int(best),
        "gflop_per_s": round(call.flops * count / Quartiles.of(times[best]).median / 1e9, 2),
        "all_over_best": Quartiles.of_ratios(times[str(cores)], times[best]).as_dict(3),
    }


def pinned(settings: Settings, cores: int) -> list[dict[str, Any]]:
    """Executors side by side, pinned and not, that all run the same operator; each has tensors of its own."""
    hidden = PAPER_HIDDEN if PAPER_HIDDEN in settings.hidden else settings.hidden[-1]
    return [executors_of(functools.partial(make, hidden), cores, settings) for make in (gemm, product)]


def executors_of(make: Make, cores: int, settings: Settings) -> dict[str, Any]:
    """One operator on every uniform number of executors and threads; and on more threads than there are cores."""
    count = copies(make, Seat(core_sets(1, 1)[0], 1), settings.stint_s)
    shapes = list(dict.fromkeys([*pairs(cores), (cores, cores)]))
    probes: dict[str, Probe] = {}
    for executors, threads in shapes:
        lanes = [[make()] * count for _ in range(executors)]
        probes[f"{FREE}, {shape(executors, threads)}"] = Probe(lanes, [Seat((), threads)] * executors)
        if executors * threads <= cores:
            own = [Seat(cores_of_one, threads) for cores_of_one in core_sets(executors, threads)]
            probes[f"{PINNED}, {shape(executors, threads)}"] = Probe(lanes, own)
    runs, call = sample(probes, settings.turns), make()
    rates = {name: [len(run.busy_s) * count * call.flops / run.makespan_s for run in own] for name, own in runs.items()}
    return {
        "kind": call.kind,
        "size": call.size,
        "copies": count,
        "pairs": [
            {"executors": executors, "threads": threads, **_compared(rates, shape(executors, threads))}
            for executors, threads in shapes
        ],
    }


def _compared(rates: Mapping[str, Sequence[float]], named: str) -> dict[str, Any]:
    """GFLOP/s of executors wherever the system puts them, and of the same with cores of their own if there are any."""
    free, own = rates[f"{FREE}, {named}"], rates.get(f"{PINNED}, {named}")
    found = {FREE: Quartiles.of(free).scaled(1e-9).as_dict(3)}
    if own is not None:
        found[PINNED] = Quartiles.of(own).scaled(1e-9).as_dict(3)
        found["ratio"] = Quartiles.of_ratios(own, free).as_dict(3)
    return found


def together(settings: Settings, topology: Topology) -> dict[str, Any]:
    """Both backward passes of every convolution of the paper: one after another, and at once in two ways."""

    def one(kind: str, pixels: int, channels: int) -> Call:
        return convolution(kind, settings.samples, pixels, channels)

    seats = ways(topology)
    return {
        "hardware_threads": len(topology.threads) // len(topology.cores),
        "cores": len(topology.cores),
        "sizes": [
            pair_of(one(BY_FILTER, *size), one(BY_INPUT, *size), seats, settings)
            for size in dict.fromkeys((row.size, row.channels) for row in TABLE_II)
        ],
    }


def ways(topology: Topology) -> dict[str, list[Seat]]:
    """Executors for two operators: one for both; two on all cores; two on half of the cores each.

    Where cores have a second hardware thread, the second of two executors on all cores has these.
    """
    first = tuple(topology.threads_of(core)[0] for core in topology.cores)
    second = tuple(topology.threads_of(core)[-1] for core in topology.cores)
    count, half = len(first), len(first) // 2
    found = {
        ONE_AFTER_ANOTHER: [Seat(first, count)],
        SAME_CORES: [Seat(first, count), Seat(second, count)],
    }
    if half:
        found[HALF_EACH] = [Seat(first[:half], half), Seat(first[half : 2 * half], half)]
    return found


def pair_of(one: Call, other: Call, seats: Mapping[str, Sequence[Seat]], settings: Settings) -> dict[str, Any]:
    """Two operators in several ways; a time is that from the first start to the last end."""
    alone = seats[ONE_AFTER_ANOTHER][0]
    count = copies(lambda: one, alone, settings.stint_s / 2)
    probes = {}
    for way, own in seats.items():
        lanes = [[one] * count, [other] * count] if len(own) == 2 else [[one, other] * count]
        probes[way] = Probe(lanes, own)
    probes["one"], probes["other"] = Probe([[one] * count], [alone]), Probe([[other] * count], [alone])
    runs = sample(probes, settings.turns)
    base = makespans(runs[ONE_AFTER_ANOTHER])
    return {
        "size": one.size,
        "copies": count,
        "ways": {
            way: {
                "threads": "+".join(str(seat.threads) for seat in seats[way]),
                "us": quartiles_us(makespans(runs[way]), count),
                "speed_up": Quartiles.of_ratios(base, makespans(runs[way])).as_dict(3),
                "longer": None if len(seats[way]) == 1 else _longer(runs, way),
            }
            for way in seats
        },
    }


def _longer(runs: Mapping[str, Sequence[Ran]], way: str) -> list[dict[str, Any]]:
    """How many times as long each of two operators takes as by itself on all cores."""
    return [
        Quartiles.of_ratios([run.busy_s[lane] for run in runs[way]], makespans(runs[name])).as_dict(3)
        for lane, name in enumerate(("one", "other"))
    ]
