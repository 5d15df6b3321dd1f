"""The numbers of the paper, as far as its text gives them: its figures have none printed."""

from collections.abc import Mapping

# By number of GPUs: seconds of a search with full and with delta simulation, and their ratio as printed
TABLE_4: Mapping[str, Mapping[int, tuple[float, float, float]]] = {
    "alexnet": {
        4: (0.11, 0.04, 2.9),
        8: (0.40, 0.13, 3.0),
        16: (1.4, 0.48, 2.9),
        32: (5.3, 1.8, 3.0),
        64: (18, 5.9, 3.0),
    },
    "resnet101": {
        4: (1.4, 0.4, 3.2),
        8: (4.5, 1.4, 3.2),
        16: (22, 7.3, 3.1),
        32: (107, 33, 3.2),
        64: (515, 158, 3.3),
    },
    "inception": {
        4: (14, 4.1, 3.4),
        8: (66, 17, 3.9),
        16: (388, 77, 5.0),
        32: (1746, 298, 5.9),
        64: (8817, 1278, 6.9),
    },
    "rnntc": {
        4: (16, 7.5, 2.2),
        8: (91, 39, 2.3),
        16: (404, 170, 2.4),
        32: (1358, 516, 2.6),
        64: (4404, 1489, 3.0),
    },
    "rnnlm": {
        4: (21, 9.2, 2.3),
        8: (76, 31, 2.5),
        16: (327, 121, 2.7),
        32: (1102, 342, 3.2),
        64: (3406, 969, 3.6),
    },
    "nmt": {
        4: (40, 16, 2.5),
        8: (178, 65, 2.7),
        16: (998, 328, 3.0),
        32: (2698, 701, 3.8),
        64: (8982, 2190, 4.1),
    },
}

# Figure 7, section 8.2.1: throughput over data parallelism and experts' strategies, all networks but those below
SPEEDUP_RANGE = (1.3, 3.3)

SIMILAR = frozenset({"resnet101"})  # Networks for which strategies like data parallelism are found

# Figure 10b, on 16 P100: throughput of what is found over OptCNN's strategy
OPTCNN: Mapping[str, str] = {"alexnet": "the same", "resnet101": "the same"}

OPTCNN_OTHERS = "1.2 to 1.6"

# NMT on 64 K80: how many times less time and transfers than other approaches, and of data parallelism's task time
FIGURE_8: Mapping[str, tuple[float, ...]] = {"time": (1.7, 2.4), "transfers": (2.0, 5.5), "tasks": (0.8,)}

PROOF_HOURS: Mapping[str, float] = {"lenet": 0.8, "rnnlm": 18.0}  # Section 8.4: until the optimum was proven
