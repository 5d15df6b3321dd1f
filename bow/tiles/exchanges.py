"""What messages take while devices train: measured by the tile runtime itself."""

import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bow.planner.baselines import data_parallel
from bow.planner.device_topology import Device, DeviceTopology
from bow.planner.operator_graph import OperatorGraph
from bow.planner.plan_strategy import PlacedStrategy
from bow.planner.rules import RULES
from bow.planner.split import Split
from bow.tiles.captured import CapturedStep
from bow.tiles.capturing import capture_operators
from bow.tiles.links import all_lines, fitted_line, topology_of_lines
from bow.tiles.program import program_of
from bow.tiles.runtime import TileRuntime
from bow.tiles.team import Team

LAYERS = 8

SHAPES = ((8, 64), (32, 128), (64, 256), (128, 512), (256, 1024))
"""Samples and width of what is sent between layers, halves of it: messages of 1, 8, 32, 128 and 512 KiB."""

TURNS = 11

WARM_UP = 2


@dataclass(frozen=True)
class _Race:
    """Two ways to train the same chain of layers: one that sends nothing between them, and one that sends everything.

    Attributes:
        straight: every device keeps its half of the samples from layer to layer.
        crossed: the devices change halves behind every layer.
        messages: how many more the second one sends in a step, forward and back.
        num_bytes: of each.
    """

    straight: TileRuntime
    crossed: TileRuntime
    messages: int
    num_bytes: int
    batch: tuple[torch.Tensor, torch.Tensor]


def measure_links_in_use(
    team: Team,
    devices: Sequence[Device],
    name: str = "measured",
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    turns: int = TURNS,
) -> DeviceTopology:
    """The devices of a team, and links as fast as messages are that the tile runtime sends while it trains.

    A message between devices that do nothing else, as `measure_links` times it, is the lower bound: what the runtime
    does for each message, on both sides, keeps a device from computing, and finds cold caches. See `MessageRaces`. The
    first two devices are measured so; where there are more, what these show beyond their lower bound is added to that
    of every pair.

    All processes of the team call this; they get the same topology.

    Args:
        team: the processes.
        devices: of the team, by number.
        name: of the topology.
        shapes: samples and width of what layers send; at least two.
        turns: in which messages are timed.
    """
    if team.size == 1:
        return topology_of_lines(team, devices, {}, name)
    races = MessageRaces(team, shapes)
    for turn in range(WARM_UP + turns):
        races.turn(is_timed=turn >= WARM_UP)
    lines = {(0, 1): races.line()}
    if team.size > 2:
        idle = all_lines(team)
        extra = tuple(max(0.0, found - alone) for found, alone in zip(lines[0, 1], idle[0, 1], strict=True))
        lines = {pair: (latency + extra[0], per_byte + extra[1]) for pair, (latency, per_byte) in idle.items()}
    return topology_of_lines(team, devices, lines, name)


class MessageRaces:
    """By what a message delays the first two devices of a team while they train.

    A chain of layers is trained twice, split by samples in both cases: once with every device keeping its samples, and
    once with the devices changing them behind every layer. What the second takes longer, divided by the number of its
    messages, is how long a message keeps both devices from computing.

    All processes of the team make one and call its methods together.

    Args:
        team: of two devices or more.
        shapes: samples and width of what layers send; at least two.
    """

    def __init__(self, team: Team, shapes: Sequence[tuple[int, int]] = SHAPES) -> None:
        self._team = team
        self._races = [_race(team, samples, width) for samples, width in shapes]
        self._longer_ns: list[list[int]] = [[] for _ in shapes]

    def turn(self, is_timed: bool = True) -> None:
        """Train each chain both ways once; what machines take differs from second to second, so do it repeatedly."""
        for race, longer_ns in zip(self._races, self._longer_ns, strict=True):
            straight_ns, crossed_ns = (_step_ns(self._team, each, race) for each in (race.straight, race.crossed))
            if is_timed:
                longer_ns.append(crossed_ns - straight_ns)

    def line(self) -> tuple[float, float]:
        """Nanoseconds of any message, and for each byte: medians of all turns that were timed."""
        of_all = self._team.everyone(self._longer_ns)
        times_ns = [
            max(1.0, statistics.median(map(max, zip(*of_devices, strict=True))) / race.messages)
            for race, of_devices in zip(self._races, zip(*of_all, strict=True), strict=True)
        ]
        return fitted_line([race.num_bytes for race in self._races], times_ns)


def _step_ns(team: Team, runtime: TileRuntime, race: _Race) -> int:
    """Of two steps in a row the second is timed: the first finds in the caches what others have left."""
    for step in range(2):
        team.sum_all([torch.zeros(1, device=team.device)])  # all begin together
        began = time.perf_counter_ns()
        runtime.step(race.batch, step)
        if team.device.type == "cuda":
            torch.cuda.synchronize(team.device)
    return time.perf_counter_ns() - began


def _race(team: Team, samples: int, width: int) -> _Race:
    model, batch, captured = _chain(samples, width)
    graph = captured.graph
    straight = data_parallel(graph, RULES, 2)
    crossed = tuple(_crossed(straight, [operator.kind == "linear" for operator in graph.operators]))
    messages = _messages(graph, crossed) - _messages(graph, straight)
    optimizer = functools.partial(torch.optim.SGD, lr=0.01)
    one, other = (
        TileRuntime(captured, PlacedStrategy(graph.hash, splits), model, optimizer, team)
        for splits in (straight, crossed)
    )
    return _Race(one, other, messages, samples // 2 * width * 4, batch)


@functools.cache
def _chain(samples: int, width: int) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], CapturedStep]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    batch = torch.randn(samples, width, generator=generator), torch.randn(samples, width, generator=generator)
    return model, batch, capture_operators(model, batch, nn.functional.mse_loss)


def _messages(graph: OperatorGraph, splits: Sequence[Split]) -> int:
    """How many messages a step sends, forward and back."""
    program = program_of(graph, splits, RULES)
    return sum(len(parts) for moved in (program.sent, program.returned) for parts in moved)


def _crossed(splits: Sequence[Split], is_layer: Sequence[bool]) -> Iterator[Split]:
    """The same splits with the devices of every other layer turned round."""
    turned = False
    for split, layer in zip(splits, is_layer, strict=True):
        yield Split(split.degrees, split.devices[::-1]) if layer and turned else split
        turned ^= layer
