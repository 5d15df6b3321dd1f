"""TensorFlow's placement on several stream groups, rule by rule."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import bow
from benchmarks.gpu.branches import branch_schedule, place_branches
from bow.models import LogisticRegression
from bow.runtime.local import dependencies_of
from bow.runtime.streams import MemoryUse, issue_order
from bow.schedule.scheduler.stream_plan import StreamPlan
from tests.graph.cases import PAPER_MODELS, captured


def test_constants_go_to_different_streams_in_turn() -> None:
    assert place_branches([()] * 7, num_streams=3) == [0, 1, 2, 0, 1, 2, 0]


def test_a_node_stays_on_the_stream_of_one_of_its_inputs() -> None:
    constants = [(), (), ()]
    assert place_branches([*constants, (2,), (1, 3), (4, 0)], num_streams=8) == [0, 1, 2, 2, 1, 1]


def test_the_first_input_that_has_no_other_consumer_is_followed() -> None:
    # Node 0 has two consumers, node 1 one: node 2 follows node 1.
    assert place_branches([(), (), (0, 1), (0,)], num_streams=8) == [0, 1, 1, 2]


def test_consumers_of_a_node_with_many_neighbours_run_in_parallel() -> None:
    # A residual block: 1 feeds two branches, which meet in 5.
    assert place_branches([(), (0,), (1,), (2,), (1,), (3, 4)], num_streams=8) == [0, 0, 1, 1, 2, 1]


def test_a_node_that_takes_an_output_twice_counts_twice() -> None:
    assert place_branches([(), (0, 0)], num_streams=8) == [0, 1]


def test_new_streams_are_taken_in_turn_and_followed_ones_do_not_count() -> None:
    inputs = [(), (0,), (1,), (), (3,), (2, 4), (), (6,), (6,), ()]
    assert place_branches(inputs, num_streams=3) == [0, 0, 0, 1, 1, 0, 2, 0, 1, 2]


def test_a_constant_of_every_iteration_is_on_another_stream_than_what_reads_it() -> None:
    # Figure 5.6: weights - learning rate * gradient, where several updates read the same learning rate.
    weights, gradient, rate = [(), ()], [(), ()], [()]
    inputs = [*weights, *gradient, *rate, (4, 2), (4, 3), (0, 5), (1, 6)]
    streams = place_branches(inputs, num_streams=8)
    assert streams[4] not in {streams[5], streams[6]}
    assert streams[5] != streams[6]


@st.composite
def _graphs(draw: st.DrawFn) -> list[list[int]]:
    """By node: its inputs."""
    nodes = range(draw(st.integers(0, 15)))
    return [draw(st.lists(st.sampled_from(range(node)), max_size=3)) if node else [] for node in nodes]


@given(_graphs(), st.integers(1, 5))
def test_a_node_follows_an_input_that_only_it_takes_or_opens_the_next_stream(inputs, num_streams: int) -> None:
    placed = place_branches(inputs, num_streams)
    flat = [source for sources in inputs for source in sources]
    opened = 0
    for node, sources in enumerate(inputs):
        own = [source for source in sources if flat.count(source) == 1]
        assert placed[node] == (placed[own[0]] if own else opened % num_streams)
        opened += not own
    assert len(placed) == len(inputs)


BY_DAY = ("transformer",)
"""What is captured fastest."""


@pytest.mark.parametrize("num_streams", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.nightly) for name in PAPER_MODELS]
)
def test_the_schedule_of_branches_fits_the_graph_and_leaves_views_where_they_look(name: str, num_streams: int) -> None:
    _, graph = captured(name)
    schedule = branch_schedule(graph, num_streams)
    schedule.check(dependencies_of(graph.operators))
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
        waits.append(sum(len(turn.waits) for turn in plan.tasks) + len(plan.join))
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] > waits[1] > 0
