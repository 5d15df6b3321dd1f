"""What the paper measured."""

from collections.abc import Mapping

OUT_OF_MEMORY = "OOM"

# Mirhoseini et al., 2017, Table 2: seconds of a step, by network and number of GPUs
PAPER: Mapping[tuple[str, int], Mapping[str, float | str]] = {
    ("rnnlm", 2): {"cpu": 6.89, "gpu": 1.57, "scotch": 13.43, "mincut": 11.94, "expert": 3.81, "learned": 1.57},
    ("rnnlm", 4): {"cpu": 6.89, "gpu": 1.57, "scotch": 11.52, "mincut": 10.44, "expert": 4.46, "learned": 1.57},
    ("nmt", 2): {
        "cpu": 10.72,
        "gpu": OUT_OF_MEMORY,
        "scotch": 14.19,
        "mincut": 11.54,
        "expert": 4.99,
        "learned": 4.04,
    },
    ("nmt", 4): {
        "cpu": 10.72,
        "gpu": OUT_OF_MEMORY,
        "scotch": 11.23,
        "mincut": 11.78,
        "expert": 4.73,
        "learned": 3.92,
    },
    ("inception", 2): {"cpu": 26.21, "gpu": 4.60, "scotch": 25.24, "mincut": 22.88, "expert": 11.22, "learned": 4.60},
    ("inception", 4): {"cpu": 26.21, "gpu": 4.60, "scotch": 23.41, "mincut": 24.52, "expert": 10.65, "learned": 3.85},
}

# Section 4.3: seconds of a step of what is learned, where nothing else fits
PAPER_LARGE: Mapping[str, float] = {"rnnlm": 33.46, "nmt": 35.84}

# Table 1: operations and groups
PAPER_GROUPS: Mapping[str, tuple[int, int]] = {"rnnlm": (8943, 188), "nmt": (22097, 280), "inception": (31180, 83)}
