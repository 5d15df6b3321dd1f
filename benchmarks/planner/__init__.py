"""`python -m benchmarks planner`: the experiments of the paper on planning that need no machine, simulated.

Steps of the paper's six networks are captured in the paper's sizes, its clusters are those of Figure 6, and what tiles
take is a roofline's. In parts: what the search finds against a proof of the optimum (proof) and against all neighbours
(neighbours), section 8.4; full and delta simulation of the same proposals (simulators), Table 4; the best time over the
time of the search (curve), Figure 12; NMT on 64 devices with several seeds (seeds); found strategies against data
parallelism, experts' and OptCNN's on both clusters (clusters), Figures 7, 8, 10b, 13 and 14.

References:
    Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 8.
"""

from benchmarks.planner.program import run as run
from benchmarks.planner.settings import Settings as Settings
