import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from bow.sync import SMA
from shape_checks import checked, during

pytestmark = pytest.mark.quick


def add(left: Float[Tensor, " n"], right: Float[Tensor, " n"], scale: float = 1.0) -> Float[Tensor, " n"]:
    return left + scale * right


def test_wrong_shape_is_caught() -> None:
    with during(), pytest.raises(TypeCheckError):
        checked(add)(torch.zeros(3), torch.zeros(1))


def test_nothing_is_checked_where_checks_are_off() -> None:
    with during(False):
        assert checked(add)(torch.zeros(3), torch.zeros(1)).tolist() == [0.0, 0.0, 0.0]


def test_other_annotations_are_left_to_the_function() -> None:
    with during():
        total = checked(add)(torch.ones(3), torch.ones(3), torch.tensor(2.0))  # type: ignore[arg-type]
    assert total.tolist() == [3.0, 3.0, 3.0]


def test_functions_without_shapes_are_not_wrapped() -> None:
    assert checked(SMA.check) is SMA.check


def test_the_package_is_checked() -> None:
    from bow.replicas.matrix import ReplicaMatrix

    assert hasattr(ReplicaMatrix.leaf, "__wrapped__")
