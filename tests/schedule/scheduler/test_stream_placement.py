"""TensorFlow's placement on several stream groups, rule by rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import ScheduleError
from bow.schedule.scheduler.stream_placement import place_branches


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


def test_one_stream_takes_everything() -> None:
    assert place_branches([(), (), (0, 1), (0,)], num_streams=1) == [0] * 4


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


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(ScheduleError, match="num_streams must be at least 1, got 0"):
        place_branches([()], num_streams=0)
    with pytest.raises(ScheduleError, match="node 0 takes the output of node 1"):
        place_branches([(1,), ()], num_streams=2)
