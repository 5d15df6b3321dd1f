"""Strategies, run for real."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

import bow
from bow.cluster import World
from bow.errors import DataError, OptimizerError, ScheduleError, SettingError
from bow.planning.problem.partition import Partition, Split, everything_on
from bow.planning.search.problem import Problem
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime, capture_operators
from bow.planning.tiles.communication import wait_for
from tests.cluster.worlds import in_world
from tests.planning.tiles.equality import (
    SGD,
    TOLERANCE,
    Task,
    Trial,
    by_pytorch,
    by_tiles,
    difference,
    on_one_device,
    task,
)
from tests.planning.tiles.many import trials
from tests.planning.tiles.networks import mixed, optimizers
from tests.planning.tiles.strategies import problem_on, random_splits

CPU = torch.device("cpu")
SEED = 3
LEARNERS, DEVICES, SYNC = 2, 2, {"alpha": 0.3, "mu": 0.4}
AVERAGED_STEPS = 4
MIXED_STEPS = 3
MEMBERS = ((0, 1, 2, 3), (0, 1), (1, 3), (1, 2, 3))
COUNTS = (5, 2**17)
"""Of numbers that are added up: three and more devices do that in one way or the other."""
NETWORKS = ("alexnet", "rnnlm")


@dataclasses.dataclass(frozen=True)
class AsyncWork:
    """What is tried out on several processes.

    Attributes:
        mixed: strategies of a network of everything.
        networks: strategies of the papers' networks.
        dropout: strategies of a network with dropout.
        averaged: learners of several devices.
    """

    mixed: list[Trial]
    networks: list[Trial]
    dropout: list[Trial]
    averaged: Averaged


@dataclasses.dataclass(frozen=True)
class Results:
    """How far trainings on four processes are from those on one device."""

    mixed: list[float]
    networks: list[float]
    dropout: list[float]
    learners: list[float]
    sums: dict[tuple[tuple[int, ...], int], Tensor]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> list[Results]:
    """By process; all in one world, since processes take longer to start than to run this."""
    size = LEARNERS * DEVICES
    is_nightly = request.config.getoption("--nightly")
    names, seeds = (NETWORKS, range(3)) if is_nightly else (NETWORKS[-1:], range(1, 2))
    networks = [trial for seed, name in enumerate(names) for trial in trials(name, size, [seed])]
    given = mixed()
    work = AsyncWork(list(of_everything(given, seeds)), networks, list(with_dropout(range(1))), written_out(given))
    return in_world(size, functools.partial(everything, work=work))


def everything(world: World, work: AsyncWork) -> Results:
    torch.set_num_threads(1)
    group = ProcessGroup(CPU)
    return Results(
        [trial.difference(group, steps=MIXED_STEPS) for trial in work.mixed],
        [trial.difference(group) for trial in work.networks],
        [trial.difference(group, seed=SEED) for trial in work.dropout],
        off_average(work.averaged),
        sums(group),
    )


def of_everything(given: Task, seeds: range) -> Iterator[Trial]:
    """Strategies for two, three and four devices of as many as there are; of one seed, for three and four."""
    for turn, (kind, optimizer) in enumerate(optimizers("mixed").items()):
        own = dataclasses.replace(given, optimizer=optimizer)
        expected = by_pytorch(own, MIXED_STEPS)
        for seed in (each + turn for each in seeds):
            splits = random_splits(given.captured.graph, 2 + seed % 3, random.Random(seed))
            yield Trial(f"{kind}, {seed}", own, splits, expected)


def with_dropout(seeds: range) -> Iterator[Trial]:
    """Strategies of a network with dropout, to be compared with the whole on one device."""
    given = mixed(dropout=0.3)
    expected = by_tiles(given, given.strategy(everything_on(given.captured.graph)), ProcessGroup(CPU), seed=SEED)
    for seed in seeds:
        splits = random_splits(given.captured.graph, LEARNERS * DEVICES, random.Random(seed))
        yield Trial(f"dropout, {seed}", given, splits, expected)


def test_any_strategy_trains_as_one_device(results: list[Results]) -> None:
    for found in results:
        assert len(found.mixed) >= 2
        assert max(found.mixed) < TOLERANCE


def test_any_strategy_of_the_papers_networks_trains_as_one_device(results: list[Results]) -> None:
    for found in results:
        assert found.networks
        assert max(found.networks) < TOLERANCE


def test_what_is_dropped_does_not_follow_the_strategy(results: list[Results]) -> None:
    for found in results:
        assert len(found.dropout) == 1
        assert max(found.dropout) < TOLERANCE


def test_learners_of_several_devices_are_averaged(results: list[Results]) -> None:
    for found in results:
        assert max(found.learners) < TOLERANCE


def sums(group: ProcessGroup) -> dict[tuple[tuple[int, ...], int], Tensor]:
    """What devices have added up, by who they are and how many numbers: two are under way at a time, begun in order."""
    group.prepare(MEMBERS)
    found = {(each, count): part_of(group.rank, count) for each in MEMBERS if group.rank in each for count in COUNTS}
    works = [group.sum(tensor, members) for (members, _), tensor in found.items()]
    for _ in range(2):  # to wait again changes nothing
        wait_for(works)
    return found


def part_of(device: int, count: int) -> Tensor:
    """What a device has of a sum."""
    return torch.randn(count, generator=torch.Generator().manual_seed(device))


def test_sums_are_the_same_to_the_last_bit_on_all_that_have_a_part(results: list[Results]) -> None:
    for members, count in itertools.product(MEMBERS, COUNTS):
        first, *others = (results[device].sums[members, count] for device in members)
        expected = torch.stack([part_of(device, count).double() for device in members]).sum(0)
        torch.testing.assert_close(first.double(), expected, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(first, other) for other in others)
    assert [sum(members.count(device) for members in MEMBERS) * len(COUNTS) for device in range(4)] == [
        len(found.sums) for found in results
    ]


def check_on_one_device(given: Task, seeds: int) -> None:
    """Whole operators, and tiles of them at random, train as PyTorch does."""
    graph, expected = given.captured.graph, by_pytorch(given)
    for splits in (everything_on(graph), *(random_splits(graph, 1, random.Random(seed)) for seed in range(seeds))):
        assert difference(by_tiles(given, given.strategy(splits), ProcessGroup(CPU)), expected) < TOLERANCE


def test_many_tiles_on_one_device_train_as_one() -> None:
    check_on_one_device(mixed(), seeds=2)


def test_what_nobody_reads_of_a_weight_is_kept_and_decays() -> None:
    class Positions(nn.Module):
        """Positions for longer samples than there are, and a row of a weight."""

        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.rand(7, 3))
            self.layer = nn.Linear(3, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            placed = inputs + self.positions[: inputs.shape[1]]
            return self.layer(placed).sum(2) + placed @ self.layer.weight[1]

    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    given = task("positions", Positions(), (torch.rand(4, 5, 3), torch.rand(4, 5)), F.mse_loss, optimizer)
    check_on_one_device(given, seeds=3)


def test_norms_with_a_bias_alone_train_as_one_under_any_split() -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.bias = nn.Linear(4, 6), nn.Parameter(torch.rand(6))
            self.register_buffer("mean", torch.rand(6))
            self.register_buffer("variance", torch.rand(6))

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = F.layer_norm(self.layer(inputs), (6,), None, self.bias)
            hidden = F.batch_norm(hidden.tanh(), None, None, None, self.bias, training=True)
            return F.batch_norm(hidden.tanh(), self.mean, self.variance, None, self.bias)

    torch.manual_seed(0)
    check_on_one_device(task("norms", Norms(), (torch.rand(8, 4), torch.rand(8, 6)), F.mse_loss, SGD), seeds=3)


def test_a_weight_that_an_operator_reads_twice_has_one_gradient() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs @ (self.weight @ self.weight) + self.weight * self.weight

    check_on_one_device(task("twice", Twice(), (torch.rand(4, 4), torch.rand(4, 4)), F.mse_loss, SGD), seeds=2)


def test_what_is_dropped_follows_seed_and_step() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Dropout(0.4)).double()
    batch = torch.ones(30, 20).double(), torch.zeros(30, 20).double()
    given = task("dropout", model, batch, F.mse_loss, functools.partial(torch.optim.SGD, lr=0.0))

    def losses(seed: int) -> list[float]:
        runtime = TileRuntime(
            given.captured, given.strategy(everything_on(given.captured.graph)), model, SGD, seed=seed
        )
        runtime.optimizer.param_groups[0]["lr"] = 0.0
        return [float(runtime.step(batch, index)) for index in (0, 1, 0)]

    one, other = losses(1), losses(2)
    assert one[0] == one[2] != one[1]
    assert other[0] not in one
    whole = float(model.eval()(batch[0]).square().mean().detach())
    assert one[0] == pytest.approx(whole / 0.6, rel=0.15)


@dataclasses.dataclass(frozen=True)
class Averaged:
    """Two learners, and what synchronous model averaging makes of them on one device.

    Attributes:
        task: what both begin with.
        batches: by learner.
        losses: by learner, of all steps.
        state: of the central model.
    """

    task: Task
    batches: list[Any]
    losses: list[list[float]]
    state: dict[str, Tensor]


def off_average(expected: Averaged) -> list[float]:
    """How far two learners of two devices each are from two learners on one device."""
    own, group = expected.task, ProcessGroup(CPU, LEARNERS)
    splits = random_splits(own.captured.graph, DEVICES, random.Random(7))
    strategy = own.strategy(splits, LEARNERS)
    runtime = TileRuntime(own.captured, strategy, own.model, own.optimizer, group, sync=bow.SMA(**SYNC))
    losses = [float(runtime.step(expected.batches[group.learner], index)) for index in range(AVERAGED_STEPS)]
    model = copy.deepcopy(own.model)
    runtime.gather_into(model)
    state = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    return [
        *(abs(a - b) for a, b in zip(losses, expected.losses[group.learner], strict=True)),
        *(float((value - expected.state[name]).abs().max()) for name, value in state.items()),
    ]


def written_out(task: Task) -> Averaged:
    """Synchronous model averaging as in Budea, 2019, algorithm 2."""
    batches = [_batch(learner) for learner in range(LEARNERS)]
    models = [copy.deepcopy(task.model) for _ in batches]
    optimizers = [task.optimizer(model.parameters()) for model in models]
    z = z_prev = [parameter.detach().clone() for parameter in models[0].parameters()]
    losses: list[list[float]] = [[] for _ in batches]
    for _ in range(AVERAGED_STEPS):
        moves = []
        for model, optimizer, batch, own in zip(models, optimizers, batches, losses, strict=True):
            moves.append([SYNC["alpha"] * (w.detach() - c) for w, c in zip(model.parameters(), z, strict=True)])
            optimizer.zero_grad()
            loss = task.loss(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for weight, correction in zip(model.parameters(), moves[-1], strict=True):
                    weight.sub_(correction)
            own.append(float(loss.detach()))
        pull = [torch.stack(each).sum(0) for each in zip(*moves, strict=True)]
        following = [c + p + SYNC["mu"] * (c - old) for c, p, old in zip(z, pull, z_prev, strict=True)]
        z, z_prev = following, z
    states = [model.state_dict() for model in models]
    means = {name: torch.stack([state[name].double() for state in states]).mean(0) for name in states[0]}
    central = dict(zip((name for name, _ in models[0].named_parameters()), z, strict=True))
    return Averaged(task, batches, losses, {**means, **central})


def _batch(learner: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(learner)
    return torch.randn(5, 2, 7, 6, generator=generator).double(), torch.randint(7, (5,), generator=generator)


def linear() -> tuple[nn.Module, tuple[Tensor, Tensor], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    batch = torch.randn(8, 4), torch.randint(3, (8,))
    return model, batch, capture_operators(model, batch, F.cross_entropy)


def test_what_ran_when_is_noted_on_request() -> None:
    model, batch, captured = linear()
    runtime = on_one_device(captured, model)
    runtime.step(batch, 0)
    assert runtime.timeline().spans == ()
    runtime.record()
    runtime.step(batch, 1)
    spans = runtime.timeline().spans
    names = [operator.name for operator in captured.graph.operators]
    assert [span.name for span in spans if span.category == "forward"] == names
    assert [span.name for span in spans if span.category == "backward"] == names[::-1]
    assert {span.category for span in spans} == {"forward", "backward", "reduction", "update"}
    assert {span.place for span in spans} == {"device 0"}
    runtime.record(False)
    runtime.step(batch, 2)
    assert runtime.timeline().spans == ()


def test_groups_and_schedules_of_an_optimizer_are_kept() -> None:
    def groups(parameters: Any) -> torch.optim.Optimizer:
        first, *others = list(parameters)
        return torch.optim.Adagrad(
            [{"params": [first], "lr": 0.5}, {"params": others}], lr=0.05, initial_accumulator_value=0.1
        )

    model, batch, _ = linear()
    given = task("groups", model, batch, F.cross_entropy, groups)
    splits = random_splits(given.captured.graph, 1, random.Random(2))
    assert difference(by_tiles(given, given.strategy(splits), ProcessGroup(CPU)), by_pytorch(given)) < TOLERANCE
    runtime = TileRuntime(given.captured, given.strategy(splits), given.model, groups)
    schedule = torch.optim.lr_scheduler.StepLR(runtime.optimizer, 1, gamma=0.1)
    runtime.step(given.batch, 0)
    schedule.step()
    assert [group["lr"] for group in runtime.optimizer.param_groups] == pytest.approx([0.05, 0.005])


def test_frozen_and_unused_parameters_stay_as_they_are() -> None:
    model, batch, _ = linear()
    model[0].bias.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    captured = capture_operators(model, batch, lambda outputs, targets: F.cross_entropy(outputs, targets))
    runtime = on_one_device(captured, model)
    runtime.step(batch, 0)
    assert runtime.gradients().keys() == {"0.weight", "2.weight", "2.bias"}
    runtime.gather_into(model)
    same = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert same == {"0.bias", "unused"}


@dataclasses.dataclass(frozen=True)
class Small:
    """A small step, and what it is simulated with."""

    model: nn.Module
    batch: Any
    captured: CapturedOperators
    problem: Problem


@pytest.fixture(scope="module")
def small() -> Small:
    model, batch, captured = linear()
    return Small(model, batch, captured, problem_on(captured.graph, 1))


@hypothesis.given(seed=st.integers(0, 2**32))
def test_what_the_simulator_accepts_runs_and_nothing_else(small: Small, seed: int) -> None:
    graph = small.captured.graph
    splits = damaged(random_splits(graph, 1, random.Random(seed)), random.Random(seed + 1))
    try:
        accepted = small.problem.simulate(splits).refusal is None
    except ScheduleError:
        accepted = False
    with contextlib.nullcontext() if accepted else pytest.raises(ScheduleError):
        runtime = TileRuntime(small.captured, Partition(graph.hash, splits), small.model, SGD)
        assert runtime.step(small.batch, 0).isfinite()


def damaged(splits: tuple[Split, ...], draw: random.Random) -> tuple[Split, ...]:
    """Splits of which one may have another degree, or another device."""
    place, changed = draw.randrange(len(splits)), draw.choice(("nothing", "degree", "device", "number of devices"))
    degrees, devices = list(splits[place].degrees), list(splits[place].devices)
    if changed == "degree" and degrees:
        degrees[draw.randrange(len(degrees))] = draw.choice((0, 2, 9))
        devices = [0] * math.prod(degrees)
    if changed == "device":
        devices[draw.randrange(len(devices))] = draw.choice((-1, 1))
    if changed == "number of devices":
        devices = devices[1:]
    return (*splits[:place], Split(tuple(degrees), tuple(devices)), *splits[place + 1 :])


def test_a_strategy_of_another_graph_is_refused() -> None:
    model, _, captured = linear()
    with pytest.raises(ScheduleError, match="the partition is for graph 0123, this model's is"):
        TileRuntime(captured, Partition("0123", everything_on(captured.graph)), model, SGD)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.Adafactor, functools.partial(torch.optim.Muon, lr=0.1)], ids=["adafactor", "muon"]
)
def test_an_optimizer_that_couples_elements_is_refused(optimizer: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False)
    captured = capture_operators(model, (torch.randn(8, 4), torch.randn(8, 3)), F.mse_loss)
    with pytest.raises(OptimizerError, match="does not treat every element of a weight independently"):
        on_one_device(captured, model, optimizer)


def test_a_batch_of_another_size_is_refused() -> None:
    model, (inputs, targets), captured = linear()
    with pytest.raises(DataError, match=r"tensor 0 of the batch has shape \(7, 4\)"):
        on_one_device(captured, model).step((inputs[:7], targets[:7]), 0)


def test_a_process_is_one_learner() -> None:
    model, _, captured = linear()
    strategy = Partition(captured.graph.hash, everything_on(captured.graph), learners=2)
    with pytest.raises(SettingError, match="1 processes cannot be divided among 2 learners"):
        TileRuntime(captured, strategy, model, SGD)
