"""What operators take on a stream of a device, by a stopwatch that counts launches; policies made of it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bow.errors import GraphError, SettingError
from bow.graph import StepGraph
from bow.models.convolutional import Branches, ConvNorm
from bow.runtime.local import dependencies_of, operators_of
from bow.runtime.streams import StreamRuntime
from bow.schedule.profiler import BoundStep, Profile
from bow.schedule.profiler.device import HostStopwatch, bind_on, device_policies, hardware_of, measure_on, stopwatch_of
from bow.schedule.profiler.measuring import OperatorTime
from bow.schedule.scheduler import critical_path
from bow.testing import FakeDevice, RaceError, Wait

PROFILE = "profile"


class Counting:
    """A stopwatch for which every operator that a device launches takes a second."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.marks = 0

    def mark(self) -> int:
        self.marks += 1
        over = self._device.event("a mark")
        self._device.caller().record(over)
        over.synchronize()
        return self._device.launches.get(PROFILE, 0)

    def seconds(self, begin: int, end: int) -> float:
        return float(end - begin)


class Tied(nn.Module):
    """Branches, batch norm, dropout, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = Branches([ConvNorm(2, 2, 1), nn.Sequential(ConvNorm(2, 2, 1), ConvNorm(2, 2, 3, padding=1))])
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.dropout, self.output = nn.Dropout(0.5), nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = self.second(torch.relu(self.first(self.branches(images).flatten(1))))
        made: Tensor = self.output(self.dropout(features))
        return made


def step(model: nn.Module, given: Any) -> Tensor:
    return nn.functional.cross_entropy(model(given[0]), given[1])


def made_on(device: FakeDevice, build: type[nn.Module] = Tied) -> BoundStep:
    torch.manual_seed(0)
    return bind_on(device, build(), (torch.randn(3, 2, 4, 4), torch.randint(3, (3,))), step)


@pytest.fixture(scope="module")
def graph() -> StepGraph:
    return made_on(FakeDevice()).graph


@pytest.fixture
def captured(graph: StepGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is captured once for all tests that do not look at that."""
    monkeypatch.setattr("bow.schedule.profiler.device.capture", lambda *_, **settings: graph)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def subject(device: FakeDevice, captured: None) -> BoundStep:
    return made_on(device)


def counted(device: FakeDevice, subject: BoundStep, **settings: Any) -> Profile:
    return measure_on(device, subject, watch=Counting(device), **{"repeats": 2, "cache": False, **settings})


def test_every_operator_takes_what_it_takes_alone_and_views_nothing(device: FakeDevice, subject: BoundStep) -> None:
    profile = counted(device, subject, repeats=3)
    operators = operators_of(subject.graph)
    assert profile.names == tuple(operator.kind for operator in operators)
    assert profile.modules == tuple(operator.module for operator in operators)
    assert profile.threads == (1,)
    expected = [OperatorTime(0.0 if operator.is_view else 1.0, 0.0, 3) for operator in operators]
    assert list(profile.times[1]) == expected
    assert profile.hardware == hardware_of(device)
    assert profile.hardware.endswith("stream")


def test_operators_of_one_signature_are_measured_once(device: FakeDevice, subject: BoundStep) -> None:
    watch = Counting(device)
    told: list[str] = []
    measure_on(device, subject, repeats=2, cache=False, watch=watch, progress=told.append)
    kernels = [operator for operator in operators_of(subject.graph) if not operator.is_view]
    assert watch.marks % 4 == 0  # two for each repeat
    assert 0 < watch.marks // 4 < len(kernels)
    assert "different operators of" in told[0]


def test_nothing_of_the_caller_changes(device: FakeDevice) -> None:
    torch.manual_seed(3)
    model = Tied()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.default_generator.get_state()
    batch = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(3, dtype=torch.int64)
    counted(device, bind_on(device, model, batch, step))
    assert torch.equal(torch.default_generator.get_state(), state)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_memory_of_the_profile_comes_back(device: FakeDevice) -> None:
    subject = made_on(device)
    before = device.used_bytes()
    counted(device, subject)
    assert device.used_bytes() == before
    del subject
    assert device.used_bytes() < before


@pytest.mark.parametrize(
    "wait", [Wait(PROFILE, "the caller has made what is profiled"), Wait("host", "the profile is over")], ids=str
)
def test_the_profile_waits_for_the_caller_and_the_caller_for_the_profile(wait: Wait) -> None:
    device = FakeDevice(without=wait)
    with pytest.raises((RaceError, GraphError), match=r"no event orders|given back while"):  # noqa: PT012
        subject = made_on(device)
        counted(device, subject)
        del subject
        device.used_bytes()


def test_times_are_kept_for_a_device_and_its_versions(
    device: FakeDevice, subject: BoundStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = counted(device, subject, cache=True)
    watch = Counting(device)
    again = measure_on(device, subject, repeats=2, watch=watch)
    assert again == first
    assert watch.marks == 0
    measure_on(device, subject, repeats=3, watch=watch)  # more repeats than were made
    assert watch.marks > 0
    monkeypatch.setattr("bow.schedule.profiler.device.hardware_of", lambda device: "another one")
    measure_on(device, subject, repeats=2, watch=(other := Counting(device)))
    assert other.marks > 0


def test_there_has_to_be_a_repeat(device: FakeDevice, subject: BoundStep) -> None:
    with pytest.raises(SettingError, match=r"repeats must be .*at least 1, got 0"):
        measure_on(device, subject, repeats=0)


def test_an_operator_that_fails_is_named(device: FakeDevice, subject: BoundStep) -> None:
    images, targets = subject.batch
    with pytest.raises(GraphError, match="failed"):
        counted(device, BoundStep(subject.graph, subject.parameters, subject.buffers, (images, targets + 7)))


def test_the_host_measures_where_work_runs_as_it_is_issued(device: FakeDevice) -> None:
    watch = stopwatch_of(device)
    assert isinstance(watch, HostStopwatch)
    begin, end = watch.mark(), watch.mark()
    assert watch.seconds(begin, end) == end - begin >= 0
    assert [wait.waiting for wait in device.waits] == ["host"]


# Policies


def test_policies_are_one_stream_and_those_of_more_streams_that_shorten_something(
    device: FakeDevice, subject: BoundStep
) -> None:
    profile = counted(device, subject)
    policies = device_policies(subject, profile)
    assert [policy.name for policy in policies[:2]] == ["one stream", "critical path on 2 streams"]
    assert [policy.is_sequential for policy in policies] == [True] + [False] * (len(policies) - 1)
    spans = [policy.predicted.makespan for policy in policies]
    assert spans[0] == pytest.approx(sum(profile.nanoseconds(1)) / 1e9)
    assert spans == sorted(spans, reverse=True)
    assert len(set(spans)) == len(spans)
    assert len(device_policies(subject, profile, streams=())) == 1


def test_streams_that_shorten_nothing_are_left_out(subject: BoundStep) -> None:
    count = subject.num_operators
    chain = set(critical_path(subject.dependencies, [1] * count).path)
    times = {1: tuple(OperatorTime(1e-6 if index in chain else 0.0, 0.0, 1) for index in range(count))}
    policies = device_policies(subject, Profile(("",) * count, ("",) * count, times, "a device"))
    assert [policy.name for policy in policies] == ["one stream"]


def test_every_policy_gives_the_numbers_of_the_graph(device: FakeDevice, subject: BoundStep) -> None:
    expected = subject.graph.run(subject.parameters, subject.buffers, subject.batch, seed=5)
    for policy in device_policies(subject, counted(device, subject)):
        policy.schedule.check(dependencies_of(operators_of(subject.graph)))
        streams = [device.stream(f"{policy.name}, {n}") for n in range(len(policy.schedule.threads))]
        with contextlib.closing(StreamRuntime(subject.graph, policy.schedule, device, streams)) as runtime:
            ready = device.event("ready")
            device.caller().record(ready)
            streams[0].wait(ready)
            made = runtime.run(subject.parameters, subject.buffers, subject.batch, seed=5)
            assert torch.equal(made.loss, expected.loss), policy.name
            for name, gradient in expected.gradients.items():
                assert torch.equal(made.gradients[name], gradient), (policy.name, name)
