import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from bow.sync import SMA
from shape_checks import checked


def add(left: Float[Tensor, " n"], right: Float[Tensor, " n"], scale: float = 1.0) -> Float[Tensor, " n"]:
    return left + scale * right


def test_wrong_shape_is_caught() -> None:
    with pytest.raises(TypeCheckError):
        checked(add)(torch.zeros(3), torch.zeros(1))


def test_other_annotations_are_left_to_the_function() -> None:
    assert checked(add)(torch.ones(3), torch.ones(3), torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]  # type: ignore[arg-type]


def test_functions_without_shapes_are_not_wrapped() -> None:
    assert checked(SMA.check) is SMA.check


def test_the_package_is_checked() -> None:
    from bow.replicas.matrix import ReplicaMatrix

    assert hasattr(ReplicaMatrix.leaf, "__wrapped__")
