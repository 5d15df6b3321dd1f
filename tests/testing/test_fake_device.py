"""The fake device sees what a GPU would do wrong."""

import pytest
import torch
from torch import Tensor, nn

from bow.testing import CaptureRuleError, FakeDevice, RaceError, Wait
from bow.testing.accesses import COLLECT_EVERY


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def test_streams_without_an_event_race(device: FakeDevice) -> None:
    x = torch.zeros(4)
    with device.issuing():
        with device.on(device.stream("a")):
            x.add_(1)
        with device.on(device.stream("b")), pytest.raises(RaceError, match=r"mul_.* on b writes .* on a may still"):
            x.mul_(2)


def test_an_event_orders_them(device: FakeDevice) -> None:
    x, done = torch.zeros(4), device.event("done")
    with device.issuing():
        with device.on(device.stream("a")):
            x.add_(1)
        device.stream("a").record(done)
        device.stream("b").wait(done)
        with device.on(device.stream("b")):
            x.mul_(2)
    assert x.tolist() == [2, 2, 2, 2]
    assert list(device.waits) == [Wait("b", "done")]


def test_a_wait_that_is_left_out_is_noticed() -> None:
    with pytest.raises(RaceError):
        test_an_event_orders_them(FakeDevice(without=Wait("b", "done")))


def test_what_was_issued_behind_the_event_is_not_ordered(device: FakeDevice) -> None:
    x, done = torch.zeros(4), device.event("done")
    device.stream("a").record(done)
    with device.issuing():
        with device.on(device.stream("a")):
            x.add_(1)
        device.stream("b").wait(done)
        with device.on(device.stream("b")), pytest.raises(RaceError):
            x.sum()


def test_two_reads_and_disjoint_rows_do_not_race(device: FakeDevice) -> None:
    rows = torch.zeros(2, 8)
    with device.issuing():
        with device.on(device.stream("a")):
            rows[0].add_(1)
            torch._foreach_add_([rows[0]], 1)
        with device.on(device.stream("b")):
            rows[1].add_(1)
            with pytest.raises(RaceError):
                rows.sum()


def test_lists_of_tensors_are_seen(device: FakeDevice) -> None:
    x = torch.zeros(4)
    with device.issuing():
        with device.on(device.stream("a")):
            torch._foreach_add_([x], 1)
        with device.on(device.stream("b")), pytest.raises(RaceError):
            torch._foreach_mul([x], 2)


def test_backward_runs_on_the_stream_of_the_caller(device: FakeDevice) -> None:
    model = nn.Linear(3, 2)
    with device.issuing(), device.on(device.stream("a")):
        (gradient,) = torch.autograd.grad(model(torch.ones(5, 3)).sum(), model.weight)
        with device.on(device.stream("b")), pytest.raises(RaceError, match="on a"):
            gradient.sum()


# The last two learn of what has ended, and must not take it for what had ended before.
LATER = {
    "operators": lambda stream, done: [torch.ones(4) for _ in range(COLLECT_EVERY)],
    "a wait of the stream": lambda stream, done: stream.wait(done),
    "a wait of the host": lambda stream, done: done.synchronize(),
}


@pytest.mark.parametrize("later", LATER)
def test_memory_that_is_given_back_while_in_use(device: FakeDevice, later: str) -> None:
    x = torch.zeros(4)
    done = device.event("done")
    with device.issuing():
        with device.on(device.stream("a")):
            made = torch.ones(4)
        device.stream("a").record(done)
        device.stream("b").wait(done)
        with device.on(device.stream("b")):
            x.add_(made)
        device.stream("b").record(done)
        del made
        with device.on(device.stream("a")), pytest.raises(RaceError, match="given back"):
            LATER[later](device.stream("a"), done)


def test_memory_that_is_given_back_after_the_last_operator(device: FakeDevice) -> None:
    x = torch.zeros(4)

    def issue() -> None:
        with device.issuing():
            with device.on(device.stream("a")):
                made = torch.ones(4)
            device.stream("a").record(done := device.event("done"))
            device.stream("b").wait(done)
            with device.on(device.stream("b")):
                x.add_(made)
            del made

    with pytest.raises(RaceError, match="given back"):
        issue()


def test_pinned_memory_is_the_hosts_again_once_it_waited(device: FakeDevice) -> None:
    pinned, target, copied = device.pinned((4,), torch.float32), torch.zeros(4), device.event("copied")
    stream = device.stream("copies")
    with device.issuing():
        for value in range(3):
            copied.synchronize()
            device.write_host(pinned, torch.full((4,), float(value)))
            with device.on(stream):
                target.copy_(pinned, non_blocking=True)
            stream.record(copied)
        with pytest.raises(RaceError, match="host write on host"):
            device.write_host(pinned, torch.zeros(4))
    assert target.tolist() == [2, 2, 2, 2]


def test_a_value_for_the_host_waits_for_its_stream(device: FakeDevice) -> None:
    pinned = device.pinned((1,), torch.float32)
    with device.issuing(), device.on(device.stream("a")):
        pinned.copy_(torch.ones(1))
        with pytest.raises(RaceError):
            device.read_host(pinned)
        assert torch.ones(1).item() == 1
        assert device.read_host(pinned) == [1]


def test_a_graph_runs_again_on_the_same_memory(device: FakeDevice) -> None:
    x, total, seen = torch.ones(3), torch.zeros(3), []
    with device.issuing():
        with device.capture(device.stream("a")) as graph:
            seen.append("python")
            total.add_(x * 2)
        assert total.tolist() == [0, 0, 0]  # capturing runs nothing
        with device.on(device.stream("a")):
            for _ in range(3):
                graph.replay()
                x.add_(1)
    assert total.tolist() == [2 + 4 + 6] * 3
    assert seen == ["python"]


def test_a_graph_must_not_overlap_itself(device: FakeDevice) -> None:
    x = torch.ones(3)
    with device.issuing():
        with device.capture(device.stream("a")) as graph:
            x * 2
        with device.on(device.stream("a")):
            graph.replay()
        with device.on(device.stream("b")), pytest.raises(RaceError, match="may still be running"):
            graph.replay()


def forked(device: FakeDevice, values: Tensor) -> Tensor:
    """Two branches and a join, captured and replayed."""
    main, side = device.stream("main"), device.stream("side")
    fork, join = device.event("fork"), device.event("join")
    doubled = torch.zeros_like(values)
    with device.issuing():
        with device.capture(main) as graph:
            values.add_(1)
            main.record(fork)
            side.wait(fork)
            with device.on(side):
                doubled.copy_(values * 2)
            side.record(join)
            main.wait(join)
            doubled.add_(values)
        with device.on(main):
            graph.replay()
            graph.replay()
    return doubled


def test_branches_of_a_graph(device: FakeDevice) -> None:
    assert forked(device, torch.zeros(2)).tolist() == [6, 6]
    assert set(device.waits) == {Wait("side", "fork"), Wait("main", "join")}


@pytest.mark.parametrize("wait", [Wait("side", "fork"), Wait("main", "join")], ids=lambda wait: wait.event)
def test_a_branch_that_is_not_joined_is_noticed(wait: Wait) -> None:
    with pytest.raises((RaceError, CaptureRuleError)):
        forked(FakeDevice(without=wait), torch.zeros(2))


def test_what_a_capture_does_not_allow(device: FakeDevice) -> None:
    outside = device.event("outside")
    device.stream("b").record(outside)
    with device.issuing():
        with pytest.raises(CaptureRuleError, match="makes the host wait"), device.capture(device.stream("a")):
            torch.ones(1).item()
        with pytest.raises(CaptureRuleError, match="outside of it"), device.capture(device.stream("a")):
            device.stream("a").wait(outside)
        with device.capture(device.stream("a")), pytest.raises(CaptureRuleError, match="one capture"):
            device.capture(device.stream("b")).__enter__()


def test_graphs_draw_from_their_own_generators(device: FakeDevice) -> None:
    generators, drawn = [device.generator() for _ in range(2)], []
    before = torch.default_generator.get_state()
    with device.issuing():
        for index, generator in enumerate(generators):
            stream = device.stream(f"learner {index}")
            with device.capture(stream, generator) as graph:
                mask = torch.rand(5)
            over = device.event("over")
            for seed in (index, 7):
                generator.manual_seed(seed)
                with device.on(stream):
                    graph.replay()
                drawn.append(mask.tolist())
            stream.record(over)
            over.synchronize()  # the next graph takes the place of this one
    assert drawn[1] == drawn[3]
    assert drawn[0] != drawn[2]
    assert drawn[0] == torch.rand(5, generator=torch.Generator().manual_seed(0)).tolist()
    assert torch.equal(torch.default_generator.get_state(), before)


def test_what_is_uploaded_belongs_to_the_stream(device: FakeDevice) -> None:
    target = torch.zeros(2)
    with device.issuing(), device.on(device.stream("a")):
        device.upload(target, [1.0, 2.0])
        assert target.mul(2).mul(2).tolist() == [4, 8]
