"""`python -m benchmarks predicted`: what the planner predicts that a step takes, against what it takes on this machine.

Two processes, each with one core, train small forms of networks under strategies of every sort: on one device, data and
model parallel, designed by experts, found by search, and drawn at random. What tiles and messages take was measured
beforehand, none of it on these strategies; then every strategy is run in turns, and its step timed.
"""

import functools
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import predicted_report
from benchmarks.arguments import check_positive, setting
from benchmarks.environment import inspect_environment
from benchmarks.predicted_networks import NETWORKS
from benchmarks.predicted_picture import draw
from benchmarks.predicted_steps import Timed, spans_ms, time_strategies
from benchmarks.predicted_strategies import draw_strategies
from benchmarks.quartiles import Quartiles
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from benchmarks.tile_times import mean_times, median_times
from bow.cluster import WorkerJob, World, join, start
from bow.devices import available_cores
from bow.errors import SettingError
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.topology_files import topology_to_dict
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.measured_costs import MeasuredCosts, TileTimes
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.tiles.link_benchmark import SHAPES, MessageBenchmark, SumBenchmark, topology_in_use
from bow.planning.tiles.link_model import measured_topology
from bow.planning.tiles.machine import all_on, read_devices
from bow.planning.tiles.process_group import ProcessGroup
from bow.planning.tiles.tile_costs import measure_tiles

CPU = torch.device("cpu")

DEVICES = 2


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for predicted.json, predicted.md and predicted.png")  # noqa: RUF009 - it is dataclasses.field
    networks: tuple[str, ...] = setting(tuple(NETWORKS), "that are trained", choices=tuple(NETWORKS))
    random: int = setting(4, "strategies drawn at random")
    mixed: int = setting(8, "strategies of which a part of the operators is drawn at random")
    proposals: int = setting(300, "that the search looks at")
    turns: int = setting(11, "in which every strategy is run once")
    seed: int = setting(0, "of what is drawn")
    quick: bool = setting(False, "a small part, to see that it works: one network, few strategies")

    def __post_init__(self) -> None:
        check_positive(self, "proposals", "turns")
        if not self.networks:
            raise SettingError("networks must not be empty; leave it out for all")
        if min(self.random, self.mixed) < 0:
            raise SettingError(f"random and mixed must be at least 0, got {self.random} and {self.mixed}")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(self, networks=("rnnlm",), random=1, mixed=0, proposals=10, turns=2)


def run(settings: Settings, command: str) -> int:
    """Predict and measure; write `predicted.json`, `predicted.md` and a picture; 1 where an aim is missed, else 0."""
    settings = settings.reduced()
    prepare_output(settings.out)
    if len(available_cores()) < DEVICES:
        raise SettingError(f"{DEVICES} processes need a core each, this one has {len(available_cores())}")
    began = time.perf_counter()
    kinds = read_devices("cpu", DEVICES)
    measure = functools.partial(measure_all, settings=settings, known=kinds)
    with start(DEVICES, CPU, WorkerJob(functools.partial(_elsewhere, measure))) as world:
        findings = measure(world)
    environment = inspect_environment()
    values = Result("predicted", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    values["verdict"] = asdict(predicted_report.judge(values["networks"]))
    write_json(settings.out / "predicted.json", values)
    write_text(settings.out / "predicted.md", predicted_report.markdown(values, str(environment)))
    draw(values, settings.out / "predicted.png")
    for title, table in predicted_report.tables(values):
        table.show(title)
    console().print(predicted_report.told(values), highlight=False)
    return int(not settings.quick and not values["verdict"]["is_met"])


def _elsewhere(measure: Any) -> None:
    with join(CPU) as world:
        measure(world)


def measure_all(world: World, settings: Settings, known: DeviceTopology) -> dict[str, Any]:
    """All networks, in every process; what rank 0 finds is what counts."""
    group = ProcessGroup(CPU)
    with all_on([available_cores()[world.local_rank % len(available_cores())]]):
        return {"networks": {name: measure_network(group, settings, name, known) for name in settings.networks}}


def measure_network(group: ProcessGroup, settings: Settings, name: str, known: DeviceTopology) -> dict[str, Any]:
    """What steps of a network take under each strategy, predicted and measured.

    A machine that others share is not as fast at one time as at another. So what tiles and messages take is measured in
    the turns in which the strategies run, and of all the median counts.
    """
    began, network = time.perf_counter(), NETWORKS[name]
    captured, model, batch = network.captured()
    shapes = SHAPES[:2] if settings.quick else SHAPES

    def tiles() -> TileTimes:
        return measure_tiles(captured, model, batch, network.optimizer, DEVICES, repeats=1)

    at_first = topology_in_use(group, known, shapes=shapes, turns=settings.turns)
    problem = _problem(captured.graph, at_first, mean_times(group.everyone(tiles())))
    drawn = draw_strategies(problem, settings.random, settings.mixed, settings.proposals, settings.seed)
    strategies = group.everyone(drawn)[0]
    messages, sums, times = MessageBenchmark(group, shapes), SumBenchmark(group), list[TileTimes]()

    def between(is_timed: bool) -> None:
        messages.turn(is_timed)
        sums.turn(is_timed)
        times.append(tiles())

    timed = time_strategies(group, captured, model, batch, network.optimizer, strategies, settings.turns, between)
    line = messages.line()
    topology = measured_topology(known, {(0, 1): line}, sums.beside_messages_us(line[0]))
    of_tiles = mean_times(group.everyone(median_times(times)))
    problem = _problem(captured.graph, topology, of_tiles)
    rows = [_row(name, problem.simulate(strategies[name]), timed[name]) for name in strategies]
    return {
        "title": network.title,
        "samples": network.samples,
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
    return Problem(graph, RULES, topology, costs, overlap=topology.overlap)


def _row(name: str, predicted: SimulationResult, timed: Timed) -> dict[str, Any]:
    measured = Quartiles.of(timed.seconds).scaled(1e3)
    predicted_ms = predicted.makespan_ns / 1e6
    return {
        "strategy": name,
        "predicted_ms": round(predicted_ms, 3),
        "measured_ms": measured.as_dict(3),
        "error": round(predicted_ms / measured.median - 1, 4),
        "messages": sum(task.num_bytes > 0 for task in predicted.tasks),
        "sent_mb": round(predicted.communication_bytes / 1e6, 3),
        "measured_spans_ms": timed.spans_ms,
        "predicted_spans_ms": spans_ms(predicted.timeline.spans),
    }
