"""What a strategy means for each device."""

from __future__ import annotations

import dataclasses
import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from bow.planning.problem.box import contains, intersection, volume, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.problem.partition import Split, everything_on
from bow.planning.rules import RULES
from bow.planning.tiles.device_state import cells_of
from bow.planning.tiles.program import TileProgram, local_program, tile_program
from tests.planning.tiles.strategies import random_splits

CONVOLUTION = {"stride": [1], "padding": [1], "dilation": [1], "groups": 1}

# A convolution, and two linear layers that share a weight and read the same features.
GRAPH = OperatorGraph(
    (
        PlanOperator("conv", "conv1d", (0,), (1,), ("kernel",), CONVOLUTION),
        PlanOperator("one", "linear", (1,), (2,), ("shared",)),
        PlanOperator("other", "linear", (1,), (3,), ("shared",)),
        PlanOperator("still", "pointwise", (3,), (4,), attributes={"function": "aten.detach.default"}),
        PlanOperator("add", "pointwise", (2, 3, 4), (5,)),
        PlanOperator("loss", "reduction", (5,), (6,), attributes={"dims": [0, 1, 2], "keepdim": False}),
    ),
    {
        0: TensorShape((4, 3, 10), differentiable=False),
        **{number: TensorShape((4, 6, 10)) for number in (1, 2, 3, 5)},
        4: TensorShape((4, 6, 10), differentiable=False),
        6: TensorShape(()),
    },
    (0,),
    {"kernel": TensorShape((6, 3, 3)), "shared": TensorShape((10, 10))},
    6,
)


def program(**splits: Split) -> TileProgram:
    """The program of these splits; what is not named is whole, on device 0."""
    default = everything_on(GRAPH)
    chosen = [splits.get(operator.name, own) for operator, own in zip(GRAPH.operators, default, strict=True)]
    return tile_program(GRAPH, chosen, RULES)


def test_a_part_travels_once_whoever_reads_it() -> None:
    whole_on_1 = Split((1, 1, 1), (1,))
    found = program(one=whole_on_1, other=whole_on_1)
    assert len(found.sends[0]) == 1
    (part,) = found.sends[0]
    assert (part.tensor, part.source, part.target, part.box) == (1, 0, 1, whole((4, 6, 10)))
    # "one" reads it first, and so is the last to add to its gradient.
    assert [len(parts) for parts in found.gradient_sends[:4]] == [0, 1, 0, 0]


def test_parts_that_differ_travel_both() -> None:
    found = program(one=Split((1, 1, 1), (1,)), other=Split((2, 1, 1), (1, 1)))
    assert sorted(part.box[0] for part in found.sends[0]) == [(0, 2), (0, 4), (2, 4)]


def test_what_is_on_the_same_device_does_not_travel() -> None:
    found = program(conv=Split((1, 1, 3), (0, 0, 0)))
    assert not any(found.sends)
    assert not any(found.gradient_sends)


def test_no_gradient_returns_from_what_is_detached() -> None:
    found = program(still=Split((1, 1, 1), (1,)))
    assert [part.tensor for parts in found.sends for part in parts] == [3, 4]
    assert not any(found.gradient_sends)
    assert found.flows == {1, 2, 3, 5, 6}
    assert found.backward == {0, 1, 2, 4, 5}


def test_the_batch_is_everywhere() -> None:
    found = program(conv=Split((2, 1, 1), (0, 1)))
    assert not any(part.tensor == 0 for parts in found.sends for part in parts)
    (fetch,) = found.tasks[0][1].inputs
    assert fetch is not None
    assert (fetch.box, fetch.parts) == (((2, 4), (0, 3), (0, 10)), ())


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_what_a_tile_reads_is_put_together_of_what_was_made(seed: int, devices: int) -> None:
    splits = random_splits(GRAPH, devices, random.Random(seed))
    found = tile_program(GRAPH, splits, RULES)
    for task in found.all_tasks:
        assert task.device == splits[task.operator].devices[task.number]
        for fetch in task.inputs:
            assert fetch is not None
            if fetch.tensor in GRAPH.makers:
                makers = found.tasks[GRAPH.makers[fetch.tensor][0]]
                assert sum(volume(part.box) for part in fetch.parts) == volume(fetch.box)
                for part in fetch.parts:
                    assert part.target == task.device
                    assert part.source == makers[part.tile].device
                    assert contains(makers[part.tile].outputs[0], part.box)


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_shares_are_the_whole_program(seed: int, devices: int) -> None:
    found = tile_program(GRAPH, random_splits(GRAPH, devices, random.Random(seed)), RULES)
    shares = [local_program(GRAPH, found, device) for device in range(devices)]
    for operator in range(len(GRAPH.operators)):
        assert sorted(t.number for share in shares for t in share.tasks[operator]) == list(
            range(len(found.tasks[operator]))
        )
        for sends, receives, of_all in (
            ("sends", "receives", found.sends),
            ("gradient_sends", "gradient_receives", found.gradient_sends),
        ):
            sent = [part for share in shares for part in getattr(share, sends)[operator]]
            received = [part for share in shares for part in getattr(share, receives)[operator]]
            assert set(sent) == set(received) == set(of_all[operator])
            assert len(sent) == len(received) == len(of_all[operator])
    assert len({share.tags[part] for share in shares for part in share.tags}) == sum(map(len, found.sends))
    for share in shares:
        for operator, pieces in share.last_pieces.items():
            readers = [
                task.operator
                for tasks in share.tasks[operator + 1 :]
                for task in tasks
                for fetch in task.inputs
                if fetch is not None
                for part in fetch.parts
                if part.source == part.target and (part.tensor, part.tile) in pieces
            ]
            assert not readers


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_cells_are_parts_of_weights_with_the_devices_that_read_them(seed: int, devices: int) -> None:
    found = tile_program(GRAPH, random_splits(GRAPH, devices, random.Random(seed)), RULES)
    readers = [(name, box, task) for task in found.all_tasks for name, box in task.weights]
    all_cells = cells_of(GRAPH, found)
    for one, other in itertools.combinations(all_cells, 2):
        assert one.name != other.name or intersection(one.box, other.box) is None
    for name in GRAPH.weights:
        assert sum(volume(cell.box) for cell in all_cells if cell.name == name) == volume(
            whole(GRAPH.weights[name].shape)
        )
    for cell in all_cells:
        reading = [task for name, box, task in readers if name == cell.name and intersection(box, cell.box) is not None]
        assert all(contains(box, cell.box) for name, box, task in readers if task in reading and name == cell.name)
        assert cell.devices == tuple(sorted({task.device for task in reading}))
        assert cell.operator == min(task.operator for task in reading)


def test_overlapping_boxes_of_a_weight_are_cut_at_all_borders() -> None:
    found = program(one=Split((1, 1, 2), (0, 1)), other=Split((1, 1, 3), (0, 1, 1)))
    shared = [(cell.box[0], cell.devices) for cell in cells_of(GRAPH, found) if cell.name == "shared"]
    assert shared == [((0, 4), (0,)), ((4, 5), (0, 1)), ((5, 7), (1,)), ((7, 10), (1,))]


def test_a_weight_that_no_gradient_reaches_waits_for_none() -> None:
    kernel = TensorShape((6, 3, 3), differentiable=False)
    features = TensorShape((4, 6, 10), differentiable=False)
    frozen = dataclasses.replace(
        GRAPH, weights={**GRAPH.weights, "kernel": kernel}, tensors={**GRAPH.tensors, 1: features}
    )
    found = cells_of(frozen, tile_program(frozen, everything_on(frozen), RULES))
    assert [(cell.name, cell.is_trained, cell.operator) for cell in found] == [
        ("kernel", False, None),
        ("shared", True, 1),
    ]
