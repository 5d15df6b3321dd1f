"""How operators of one sort scale with threads on a machine with many small cores."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from bow.errors import SettingError

Sort: TypeAlias = Literal["convolution", "input gradient", "weight gradient", "product", "reduction", "elementwise"]


@dataclass(frozen=True)
class Scaling:
    """Parameters of the operators of one sort; `Saturation` says what it makes of them.

    Attributes:
        flops_per_s: of one thread.
        crowding_s: seconds for each pair of threads: starting them, and their waiting for each other.
        grain_s: seconds of one thread's work that are worth a thread: further ones bring nothing.
        serial: part of the work that only one thread does.
        serial_s: seconds that only one thread works, however large the operator is.
        traffic: memory traffic where two threads share a cache, over that where none do: below 1 they use each
            other's data, above 1 they are in each other's way.
    """

    flops_per_s: float
    crowding_s: float = 1e-9
    grain_s: float = 0.0
    serial: float = 0.002
    serial_s: float = 0.0
    traffic: float = 1.0

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "traffic"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("crowding_s", "grain_s", "serial_s"):
            if not getattr(self, name) >= 0:
                raise SettingError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.serial < 1:
            raise SettingError(f"serial must be at least 0 and below 1, got {self.serial}")


KNIGHTS_LANDING: Mapping[Sort, Scaling] = MappingProxyType(
    {
        # Rates and crowding of the three convolutions: fitted to Liu et al., 2019, Table II.
        "convolution": Scaling(34e9, crowding_s=0.16e-6, traffic=0.7),
        "input gradient": Scaling(30e9, crowding_s=0.28e-6, traffic=0.7),
        "weight gradient": Scaling(34e9, crowding_s=0.50e-6, traffic=0.7),
        # The grains: Tang et al., 2018, Figure 2.
        "product": Scaling(45e9, crowding_s=5e-9, grain_s=110e-6, traffic=0.7),
        "elementwise": Scaling(8e9, grain_s=2.7e-6, traffic=1.1),
        # Neither paper shows one: between the two.
        "reduction": Scaling(8e9, crowding_s=5e-9, grain_s=5e-6, serial=0.01, traffic=1.1),
    }
)
"""A Xeon Phi 7250. What the papers do not show is chosen: shared parts, what is serial, all of reductions."""

_REDUCTIONS = ("norm", "pool", "sum", "mean", "softmax", "nll_loss", "amax", "var", "mse_loss", "cross_entropy")
_PRODUCTS = ("mm", "linear", "matmul", "attention")


def sort_of(kind: str) -> Sort:
    """The sort that an operator belongs to, by its name in PyTorch or TensorFlow.

    A `convolution_backward` computes the gradient of the weights if its name goes on with `weight`, as in
    `aten.convolution_backward.default weight`, else that of the input.

    Example:
        >>> sort_of("aten.addmm.default"), sort_of("Conv2DBackpropFilter"), sort_of("aten.relu.default")
        ('product', 'weight gradient', 'elementwise')
    """
    name = kind.lower()
    if "conv" in name:
        if "backward" not in name and "backprop" not in name:
            return "convolution"
        return "weight gradient" if "weight" in name or "filter" in name else "input gradient"
    if any(part in name for part in _REDUCTIONS):
        return "reduction"
    return "product" if any(part in name for part in _PRODUCTS) else "elementwise"
