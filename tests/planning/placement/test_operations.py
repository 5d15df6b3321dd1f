import pytest

from bow.errors import GraphError
from bow.planning.placement.policy import Operations

SHAPES = (((8, 4),), ((8, 9),))


def test_a_graph_of_nothing_is_refused() -> None:
    with pytest.raises(GraphError, match="at least 1 operation and 1 device, got 0 and 2"):
        Operations((), (), (), 2)


def test_every_operation_needs_shapes() -> None:
    with pytest.raises(GraphError, match="1 entries in shapes for 2 operations"):
        Operations(("linear", "linear"), SHAPES[:1], (), 2)


def test_edges_end_at_operations() -> None:
    with pytest.raises(GraphError, match="joins operations 0 and 2, and there are 2"):
        Operations(("linear", "linear"), SHAPES, ((0, 2),), 2)


@pytest.mark.parametrize("devices", [(), (2,), (-1, 0)])
def test_every_operation_may_have_some_device_that_exists(devices: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="operation 1 may have devices"):
        Operations(("linear", "linear"), SHAPES, (), 2, allowed=((0,), devices))


def test_without_a_list_all_devices_are_allowed() -> None:
    assert Operations(("linear", "linear"), SHAPES, (), 3).devices(1) == (0, 1, 2)
