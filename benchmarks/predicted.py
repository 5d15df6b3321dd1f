"""Step times that the planner predicts, compared with measured ones on this machine.

Two processes, each with one core, train small networks with all kinds of strategies: single device, data and model
parallelism, expert designs, found by search, and random. Tile and message times are measured separately, none of them
from these strategies; then every strategy is run in turns, and its step timed.
"""

import functools
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from benchmarks.harness import quartiles, setting
from benchmarks.harness.pictures import COLORS, GREY, picture
from benchmarks.predicted_cases import NETWORKS, OPTIMIZER, PAPERS, Timed, draw_strategies, spans_ms, time_strategies
from benchmarks.tile_times import mean_times, median_times
from bow.cluster import World
from bow.devices import available_cores
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.topology_files import topology_to_dict
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import MeasuredCosts, TileTimes
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.tiles.communication import ProcessGroup
from bow.planning.tiles.link_benchmark import (
    SHAPES,
    LinkBenchmark,
    measure_busy_links,
    measured_topology,
)
from bow.planning.tiles.machine import pinned_to, read_devices
from bow.planning.tiles.tile_costs import measure_tiles

CPU = torch.device("cpu")

DEVICES = 2

# Aims for relative errors: the maximum and the median
LARGEST, TYPICAL = 0.30, 0.15

# Two strategies of a network whose measured times differ by more than this should be ordered correctly
APART = 0.15

RIGHT = 0.95  # fraction of such pairs


@dataclass(frozen=True)
class Config(harness.Config):
    networks: tuple[str, ...] = setting(tuple(PAPERS), "networks to train", choices=tuple(NETWORKS), quick=("rnnlm",))
    random: int = setting(4, "number of random strategies", quick=1, least=0)
    mixed: int = setting(8, "number of strategies with random splits of some operators", quick=0, least=0)
    proposals: int = setting(300, "proposals of the search", quick=10)
    turns: int = setting(11, "number of measurements of every strategy", quick=2)
    seed: int = setting(0, "random seed")


def measure(config: Config) -> dict[str, Any]:
    found = harness.together(DEVICES, functools.partial(measure_all, config=config, known=read_devices("cpu", DEVICES)))
    return {**found, "verdict": judge(found["networks"])}


def missed(values: Mapping[str, Any]) -> bool:
    return not values["verdict"]["is_met"]


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"verdict_told": told(values)}


def measure_all(world: World, config: Config, known: DeviceTopology) -> dict[str, Any]:
    """Measure all networks in every process; the result of rank 0 is used."""
    group = ProcessGroup(CPU)
    with pinned_to([available_cores()[world.local_rank % len(available_cores())]]):
        return {"networks": {name: measure_network(group, config, name, known) for name in config.networks}}


def measure_network(group: ProcessGroup, config: Config, name: str, known: DeviceTopology) -> dict[str, Any]:
    """Return the step times of a network with each strategy, predicted and measured.

    The speed of a shared machine varies over time. Therefore tile and message times are measured in the same turns
    as the strategies, and medians are used for all.
    """
    began, case = time.perf_counter(), NETWORKS[name]
    captured, model, batch = case.captured()
    shapes = SHAPES[:2] if config.quick else SHAPES

    def tiles() -> TileTimes:
        return measure_tiles(captured, model, batch, OPTIMIZER, DEVICES, repeats=1)

    at_first = measured_topology(known, *measure_busy_links(group, shapes=shapes, turns=config.turns))
    problem = _problem(captured.graph, at_first, mean_times(group.all_gather(tiles())))
    drawn = draw_strategies(problem, config.random, config.mixed, config.proposals, config.seed)
    strategies = group.all_gather(drawn)[0]
    links, times = LinkBenchmark(group, shapes), list[TileTimes]()

    def between(is_timed: bool) -> None:
        links.turn(is_timed)
        if is_timed:
            times.append(tiles())

    timed = time_strategies(group, captured, model, batch, OPTIMIZER, strategies, config.turns, between)
    line, sum_us = links.result()
    topology = measured_topology(known, {(0, 1): line}, sum_us)
    of_tiles = mean_times(group.all_gather(median_times(times)))
    problem = _problem(captured.graph, topology, of_tiles)
    rows = [_row(name, problem.simulate(strategies[name]), timed[name]) for name in strategies]
    return {
        "title": case.network.title,
        "samples": case.samples,
        "operators": len(captured.graph.operators),
        "tiles_measured": len(of_tiles.tiles),
        "links": [topology_to_dict(each)["links"] for each in (at_first, topology)],
        "overlap": topology.overlap,
        "sum_us": topology.sum_us,
        "seconds": round(time.perf_counter() - began, 1),
        "strategies": rows,
    }


def _problem(graph: OperatorGraph, topology: DeviceTopology, times: TileTimes) -> Problem:
    costs = MeasuredCosts(graph, RULES, topology, {topology.devices[0].kind.name: times})
    return Problem(graph, RULES, topology, costs)


def _row(name: str, predicted: SimulationResult, timed: Timed) -> dict[str, Any]:
    measured = quartiles(timed.seconds, 3, scale=1e3)
    predicted_ms = predicted.makespan_ns / 1e6
    return {
        "strategy": name,
        "predicted_ms": round(predicted_ms, 3),
        "measured_ms": measured,
        "error": round(predicted_ms / measured["median"] - 1, 4),
        "messages": sum(task.num_bytes > 0 for task in predicted.tasks),
        "sent_mb": round(predicted.communication_bytes / 1e6, 3),
        "measured_spans_ms": timed.spans_ms,
        "predicted_spans_ms": spans_ms(predicted.timeline.spans),
    }


def judge(networks: Mapping[str, Any]) -> dict[str, Any]:
    errors = [abs(row["error"]) for network in networks.values() for row in network["strategies"]]
    pairs = [pair for network in networks.values() for pair in _pairs(network["strategies"])]
    right = sum(pairs)
    largest, typical = max(errors), statistics.median(errors)
    is_met = largest <= LARGEST and typical <= TYPICAL and right >= RIGHT * len(pairs)
    numbers = {"largest": round(largest, 4), "typical": round(typical, 4)}
    return {"strategies": len(errors), **numbers, "pairs": len(pairs), "right": right, "is_met": is_met}


def _pairs(rows: Sequence[Mapping[str, Any]]) -> Iterator[bool]:
    """For two strategies that differ enough: whether the predicted order is right."""
    for one, other in itertools.combinations(rows, 2):
        fast, slow = sorted((one, other), key=lambda row: float(row["measured_ms"]["median"]))
        if slow["measured_ms"]["median"] > (1 + APART) * fast["measured_ms"]["median"]:
            yield slow["predicted_ms"] > fast["predicted_ms"]


def told(values: Mapping[str, Any]) -> str:
    """Return the verdict as a sentence."""
    verdict = values["verdict"]
    outcome = "All aims are met" if verdict["is_met"] else "Not all aims are met"
    return (
        f"{verdict['strategies']} strategies: the largest relative error is {verdict['largest']:.1%} "
        f"(aim: {LARGEST:.0%}), the median {verdict['typical']:.1%} ({TYPICAL:.0%}); of {verdict['pairs']} pairs of a "
        f"network whose measured times differ by more than {APART:.0%}, {verdict['right']} are predicted in the right "
        f"order ({RIGHT:.0%}). {outcome}."
    )


def draw(values: Mapping[str, Any], folder: Path) -> None:
    """Plot a point for each strategy, after Figure 11; dashed lines mark the largest permitted error."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    with picture(folder / "predicted.png", 5.2, 5.0) as figure:
        axes = figure.subplots()
        times: list[float] = []
        for network, color, marker in zip(values["networks"].values(), COLORS, "os^Dvx", strict=False):
            measured = [row["measured_ms"]["median"] for row in network["strategies"]]
            predicted = [row["predicted_ms"] for row in network["strategies"]]
            times += measured + predicted
            axes.plot(measured, predicted, marker, color=color, markersize=4.5, label=network["title"])
        ends = [min(times) / 1.25, max(times) * 1.25]
        for factor, style in ((1, "-"), (1 - LARGEST, "--"), (1 + LARGEST, "--")):
            axes.plot(ends, [factor * end for end in ends], color=GREY, linewidth=0.8, linestyle=style)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="measured step, milliseconds", ylabel="predicted step, milliseconds")
        axes.legend(frameon=False)
