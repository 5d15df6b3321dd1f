"""Micro-benchmarks that motivated operator scheduling in both papers, on this machine.

Three parts. `threads`: time of an operator by number of threads and size (Tang et al., Figure 2; Liu et al., Figure 1
and Table II). `pinned`: concurrent executors, each pinned to its own cores or not pinned (Tang et al., Figure 3).
`together`: two operators in sequence, concurrently on the same cores, and concurrently on half of the cores each (Liu
et al., Table III).
"""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import harness
from benchmarks.costs.evidence import TABLE_II
from benchmarks.harness import quartiles, ratios, setting
from benchmarks.micro_operators import (
    BY_FILTER,
    BY_INPUT,
    GEMM,
    PRODUCT,
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
from benchmarks.schedule_cases import pairs, shape
from bow.devices import available_cores, core_sets
from bow.devices.cores import HardwareThread, hardware_threads
from bow.schedule.profiler.measuring import numbers_of_threads

PARTS = ("threads", "pinned", "together")

PAPER_HIDDEN = 512  # units in Tang et al.'s operators

FREE, PINNED = "free", "pinned"

ONE_AFTER_ANOTHER, SAME_CORES, HALF_EACH = "one after another", "on the same cores", "on half of the cores each"


@dataclass(frozen=True)
class Config(harness.Config):
    parts: tuple[str, ...] = setting(PARTS, "parts of the experiment", choices=PARTS)
    hidden: tuple[int, ...] = setting((128, PAPER_HIDDEN, 1024), "hidden units: sizes of matrix products", quick=(16,))
    samples: int = setting(4, "images of a convolution; the paper has 32", quick=1)
    turns: int = setting(15, "number of measurements", quick=2)
    stint_s: float = setting(0.05, "seconds of a measurement", quick=0.001)


def measure(config: Config) -> dict[str, Any]:
    cores = len(available_cores())
    parts: Mapping[str, Callable[[], Any]] = {
        "threads": lambda: by_threads(config, cores),
        "pinned": lambda: pinned(config, cores),
        "together": lambda: together(config, hardware_threads()),
    }
    torch.manual_seed(0)
    return {"cores": cores, **{part: parts[part]() for part in config.parts}}


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    """Additional values for the page template: the papers' numbers, and the best of the executors."""
    figure_2 = {GEMM: "8 threads", PRODUCT: "16 threads"}  # Tang et al.: where performance saturates, of 64 cores
    papers: dict[tuple[str, str], str] = {}
    for each in values.get("threads", ()):
        images = each["size"].strip("()").partition(",")[2]
        found = [f"{row.threads} threads, {1 + row.variance:.2f}" for row in TABLE_II
                 if (row.kind, f"{row.size},{row.size},{row.channels}") == (each["kind"], images)]  # fmt: skip
        known = figure_2.get(each["kind"], "") if each["size"] in ("[64, 512] x [512, 512]", "32,768") else ""
        papers[each["kind"], each["size"]] = found[0] if found else known

    def best(pair: Mapping[str, Any]) -> float:
        return max(float(pair[key]["median"]) for key in (PINNED, FREE) if key in pair)

    def alone(each: Mapping[str, Any]) -> float:
        return max(best(pair) for pair in each["pairs"] if pair["executors"] == 1)

    return {"papers": papers, "best": best, "alone": alone, "shown": numbers_of_threads(values["cores"])}


def by_threads(config: Config, cores: int) -> list[dict[str, Any]]:
    """Time every operator with every number of threads."""
    products: list[Make] = [functools.partial(make, hidden) for make in (gemm, product) for hidden in config.hidden]
    return [scaling(make, cores, config) for make in (*products, *convolutions(config.samples))]


def scaling(make: Make, cores: int, config: Config) -> dict[str, Any]:
    """Time an operator by number of threads."""
    call = make()
    seats = {n: Seat(core_sets(1, n)[0], n) for n in range(1, cores + 1)}
    count = copies(make, seats[1], config.stint_s)
    runs = sample({str(n): Probe([[call] * count], [seat]) for n, seat in seats.items()}, config.turns)
    times = {n: makespans(own) for n, own in runs.items()}
    best = min(times, key=lambda n: (statistics.median(times[n]), int(n)))
    return {
        "kind": call.kind,
        "size": call.size,
        "mflop": round(call.flops / 1e6, 3),
        "copies": count,
        "us": {n: quartiles_us(own, count) for n, own in times.items()},
        "best": int(best),
        "gflop_per_s": round(call.flops * count / statistics.median(times[best]) / 1e9, 2),
        "all_over_best": quartiles(ratios(times[str(cores)], times[best]), 3),
    }


def pinned(config: Config, cores: int) -> list[dict[str, Any]]:
    """Run the same operator on concurrent executors, pinned and not; each has its own tensors."""
    hidden = PAPER_HIDDEN if PAPER_HIDDEN in config.hidden else config.hidden[-1]
    return [executors_of(functools.partial(make, hidden), cores, config) for make in (gemm, product)]


def executors_of(make: Make, cores: int, config: Config) -> dict[str, Any]:
    """Run an operator on every uniform number of executors and threads; and on more threads than cores."""
    count = copies(make, Seat(core_sets(1, 1)[0], 1), config.stint_s)
    shapes = list(dict.fromkeys([*pairs(cores), (cores, cores)]))
    probes: dict[str, Probe] = {}
    for executors, threads in shapes:
        lanes = [[make()] * count for _ in range(executors)]
        probes[f"{FREE}, {shape(executors, threads)}"] = Probe(lanes, [Seat((), threads)] * executors)
        if executors * threads <= cores:
            own = [Seat(cores_of_one, threads) for cores_of_one in core_sets(executors, threads)]
            probes[f"{PINNED}, {shape(executors, threads)}"] = Probe(lanes, own)
    runs, call = sample(probes, config.turns), make()
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
    """GFLOP/s of unpinned executors, and of the same pinned, if measured."""
    free, own = rates[f"{FREE}, {named}"], rates.get(f"{PINNED}, {named}")
    found = {FREE: quartiles(free, 3, scale=1e-9)}
    if own is not None:
        found[PINNED] = quartiles(own, 3, scale=1e-9)
        found["ratio"] = quartiles(ratios(own, free), 3)
    return found


def together(config: Config, threads: Sequence[HardwareThread]) -> dict[str, Any]:
    """Run both backward passes of every convolution of the paper in sequence, and concurrently in two ways."""

    def one(kind: str, pixels: int, channels: int) -> Call:
        return convolution(kind, config.samples, pixels, channels)

    seats, cores = ways(threads), len({thread.core for thread in threads})
    return {
        "hardware_threads": len(threads) // cores,
        "cores": cores,
        "sizes": [
            pair_of(one(BY_FILTER, *size), one(BY_INPUT, *size), seats, config)
            for size in dict.fromkeys((row.size, row.channels) for row in TABLE_II)
        ],
    }


def ways(threads: Sequence[HardwareThread]) -> dict[str, list[Seat]]:
    """Executors for two operators: one for both; two on all cores; two on half of the cores each.

    With hyper-threading, the second of two executors on all cores gets the second hardware threads.
    """
    cores = sorted({thread.core for thread in threads})
    numbers = [[thread.number for thread in threads if thread.core == core] for core in cores]
    first, second = tuple(own[0] for own in numbers), tuple(own[-1] for own in numbers)
    count, half = len(first), len(first) // 2
    found = {
        ONE_AFTER_ANOTHER: [Seat(first, count)],
        SAME_CORES: [Seat(first, count), Seat(second, count)],
    }
    if half:
        found[HALF_EACH] = [Seat(first[:half], half), Seat(first[half : 2 * half], half)]
    return found


def pair_of(one: Call, other: Call, seats: Mapping[str, Sequence[Seat]], config: Config) -> dict[str, Any]:
    """Time two operators in several ways, from the first start to the last end."""
    alone = seats[ONE_AFTER_ANOTHER][0]
    count = copies(lambda: one, alone, config.stint_s / 2)
    probes = {}
    for way, own in seats.items():
        lanes = [[one] * count, [other] * count] if len(own) == 2 else [[one, other] * count]
        probes[way] = Probe(lanes, own)
    probes["one"], probes["other"] = Probe([[one] * count], [alone]), Probe([[other] * count], [alone])
    runs = sample(probes, config.turns)
    base = makespans(runs[ONE_AFTER_ANOTHER])
    return {
        "size": one.size,
        "copies": count,
        "ways": {
            way: {
                "threads": "+".join(str(seat.threads) for seat in seats[way]),
                "us": quartiles_us(makespans(runs[way]), count),
                "speed_up": quartiles(ratios(base, makespans(runs[way])), 3),
                "longer": None if len(seats[way]) == 1 else _longer(runs, way),
            }
            for way in seats
        },
    }


def _longer(runs: Mapping[str, Sequence[Ran]], way: str) -> list[dict[str, Any]]:
    """Slow-down of each of two operators relative to running alone on all cores."""
    return [
        quartiles(ratios([run.busy_s[lane] for run in runs[way]], makespans(runs[name])), 3)
        for lane, name in enumerate(("one", "other"))
    ]
