"""The order of issue, the memory behind values, and TensorFlow's placement as a schedule."""

import pytest
import torch
import torch.nn.functional as F
from graph.cases import PAPER_MODELS, captured

import bow
from bow.errors import ScheduleError
from bow.models import LogisticRegression
from bow.runtime import branch_schedule
from bow.runtime.issue import MemoryUse, issue_order
from bow.runtime.local import dependencies_of
from bow.scheduler.stream_plan import StreamPlan
from bow.strategy import Schedule


def test_streams_in_the_order_of_capture_are_issued_in_it() -> None:
    order = [(number % 3, number) for number in range(9)]
    lanes = tuple(tuple(range(stream, 9, 3)) for stream in range(3))
    assert issue_order(Schedule((1,) * 3, order=lanes), [frozenset()] * 9) == order


def test_other_orders_are_kept_on_every_stream_and_behind_what_they_depend_on() -> None:
    dependencies = [frozenset(before) for before in [(), (), (0,), (1,), (2, 3)]]
    schedule = Schedule((1, 1), order=((3, 0, 4), (1, 2)))
    assert issue_order(schedule, dependencies) == [(1, 1), (0, 3), (0, 0), (1, 2), (0, 4)]


def test_priorities_deal_operators_in_turn() -> None:
    schedule = Schedule((1, 1), priority=(0, 5, 9, 1))
    assert issue_order(schedule, [frozenset(before) for before in [(), (), (1,), ()]]) == [
        (0, 1),
        (1, 2),
        (0, 3),
        (1, 0),
    ]


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_memory_is_used_by_whoever_reads_any_view_of_it(name: str) -> None:
    _, graph = captured(name)
    memory = MemoryUse(graph, graph.operators)
    views = [view for views in (memory.views_of_inputs, *memory.views_of.values()) for view in views]
    assert sorted(view.index for view in views) == [op.index for op in graph.operators if op.is_view]
    depends = memory.dependencies()
    for value, (maker, *readers) in memory.uses.items():
        aliases = memory.aliases[value]
        assert value in graph.operators[maker].results
        direct = {op.index for op in graph.operators if not op.is_view and not set(aliases).isdisjoint(op.reads)}
        assert set(readers) == direct
        assert all(maker in depends[reader] for reader in readers)
        assert graph.results.isdisjoint(aliases)


@pytest.mark.parametrize("num_streams", [1, 2, 3, 5])
@pytest.mark.parametrize("name", PAPER_MODELS)
def test_the_schedule_of_branches_fits_the_graph_and_leaves_views_where_they_look(name: str, num_streams: int) -> None:
    _, graph = captured(name)
    schedule = branch_schedule(graph, num_streams)
    schedule.check(dependencies_of(graph.operators))
    assert schedule.order is not None
    stream_of = {index: stream for stream, lane in enumerate(schedule.order) for index in lane}
    assert set(stream_of.values()) == set(range(num_streams))
    for maker, views in MemoryUse(graph, graph.operators).views_of.items():
        assert {stream_of[view.index] for view in views} <= {stream_of[maker]}


def test_a_chain_stays_together_and_branches_part() -> None:
    torch.manual_seed(0)
    batch = torch.randn(4, 3), torch.randn(4, 1)
    model = torch.nn.Linear(3, 1)
    graph = bow.capture(model, batch, F.mse_loss)
    schedule = branch_schedule(graph, num_streams=16)
    assert schedule.order is not None
    kinds = [[graph.operators[index].kind.split(".")[1] for index in lane] for lane in schedule.order]
    stream_of = {graph.operators[index].kind: stream for stream, lane in enumerate(schedule.order) for index in lane}
    # The gradient of the output has two consumers, the gradients of weight and bias, which go separate ways.
    assert stream_of["aten.mm.default"] != stream_of["aten.sum.dim_IntList"]
    assert sum(map(len, kinds)) == len(graph.operators)


def test_more_streams_only_bring_more_waits_for_logistic_regression() -> None:
    # Why throughput falls with the number of streams in figure 5.6.
    torch.manual_seed(0)
    batch = torch.randn(16, 784), torch.randint(10, (16,))
    graph = bow.capture(LogisticRegression(784, 10), batch, F.cross_entropy)
    waits = []
    for num_streams in (1, 2, 4, 8):
        memory = MemoryUse(graph, graph.operators)
        order = issue_order(branch_schedule(graph, num_streams), dependencies_of(graph.operators))
        kernels = [turn for turn in order if not graph.operators[turn[1]].is_view]
        plan = StreamPlan.of(kernels, memory.dependencies(), num_streams)
        waits.append(sum(len(turn.waits) for turn in plan.turns) + len(plan.join))
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] > waits[1] > 0


def test_no_stream_is_refused() -> None:
    with pytest.raises(ScheduleError, match="num_streams must be at least 1, got 0"):
        branch_schedule(captured("transformer")[1], num_streams=0)
