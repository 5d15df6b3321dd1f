"""The numbers of the two papers, as far as their texts give them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """From the lowest to the highest of several numbers."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


# Tang et al., Figure 6 as section 7.3 tells it: the best speed-ups over sequential execution, over the three sizes
BEST_SPEEDUP: Mapping[str, Range] = {
    "lstm": Range(2.3, 3.1),
    "phased_lstm": Range(2.3, 3.1),
    "pathnet": Range(1.2, 2.1),
    "googlenet": Range(1.2, 1.2),
}

# Section 7.3: how many operators are parallel, which is the best number of executors
BEST_EXECUTORS: Mapping[str, Range] = {
    "lstm": Range(8, 12),
    "phased_lstm": Range(8, 12),
    "pathnet": Range(6, 6),
    "googlenet": Range(2, 3),
}

OVER_TENSORFLOW = Range(2.1, 9.5)  # Figure 5: Graphi over TensorFlow, all networks and sizes

# By number of executors: the time of a step over that with a naive queue; medium size
TABLE_2: Mapping[str, Mapping[int, float]] = {
    "lstm": {2: 0.86, 4: 0.88, 8: 0.82, 16: 0.91, 32: 0.87},
    "phased_lstm": {2: 0.81, 4: 0.85, 8: 0.91, 16: 0.86, 32: 0.85},
    "pathnet": {2: 0.88, 4: 0.92, 8: 0.89, 16: 0.91, 32: 0.92},
    "googlenet": {2: 0.94, 4: 0.96, 8: 0.93, 16: 0.91, 32: 0.92},
}


@dataclass(frozen=True)
class Strategies:
    """What the strategies of Liu et al. bring to a network, as speed-ups (Figures 3 and 4)."""

    first_two: float  # strategies 1 and 2 over the recommendation
    third: float  # strategy 3 over those
    fourth: float  # strategy 4 over strategy 3
    all: float | None  # all over the recommendation; None: the text does not say
    over_manual: float  # all over the best uniform pair
    pair: tuple[int, int]  # that pair, inter-op and intra-op parallelism
    together: float  # operators that run at the same time with strategies 1 to 3, on average over events
    together_with_fourth: float  # the same with strategy 4


FIGURE_3: Mapping[str, Strategies] = {
    "resnet50": Strategies(1.02, 1.35, 1.08, 1.49, 1.08, (4, 16), 1.61, 1.89),
    "dcgan": Strategies(1.12, 1.15, 1.04, None, 1.07, (2, 34), 1.62, 2.04),
    "inception": Strategies(1.02, 1.07, 1.07, 1.17, 0.98, (2, 68), 1.52, 1.74),
}

MEAN_OF_ALL = 1.33  # Liu et al.: all strategies over the recommendation, on average over the three networks

# By inter-op and intra-op parallelism: over 1 x 68
TABLE_I: Mapping[str, Mapping[str, float]] = {
    "resnet50": {"1 x 34": 0.98, "1 x 68": 1.00, "2 x 34": 1.27, "2 x 68": 1.14, "4 x 34": 1.18},
    "dcgan": {"1 x 34": 1.21, "1 x 68": 1.00, "2 x 34": 1.28, "2 x 68": 1.04, "4 x 34": 1.21},
}

# By operator: TensorFlow's name, milliseconds before and with strategies 1 and 2, and the speed-up
TABLE_VI: Mapping[str, Mapping[str, tuple[str, float, float, float]]] = {
    "resnet50": {
        "aten.convolution_backward.default weight": ("Conv2DBackpropFilter", 158, 146, 1.08),
        "aten.convolution_backward.default input": ("Conv2DBackpropInput", 76, 76, 1.01),
        "aten.convolution.default": ("Conv2D", 49, 49, 1.00),
    },
    "dcgan": {
        "aten.convolution_backward.default weight": ("Conv2DBackpropFilter", 133, 110, 1.21),
        "aten.convolution_backward.default input": ("Conv2DBackpropInput", 164, 144, 1.14),
        "aten.convolution.default": ("Conv2D", 9, 8, 1.03),
        "aten.native_batch_norm_backward.default": ("FusedBatchNormGrad", 9, 9, 1.05),
        "aten._native_batch_norm_legit_functional.default": ("FusedBatchNorm", 15, 14, 1.03),
        "aten.mm.default": ("MatMul", 5, 5, 1.02),
    },
    "inception": {
        "aten.convolution_backward.default weight": ("Conv2DBackpropFilter", 479, 475, 1.01),
        "aten.convolution_backward.default input": ("Conv2DBackpropInput", 397, 393, 1.01),
        "aten.convolution.default": ("Conv2D", 326, 319, 1.02),
        "aten.max_pool2d_with_indices_backward.default": ("MaxPoolGrad", 255, 255, 1.00),
    },
}
