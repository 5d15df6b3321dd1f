"""Made-up measurements of `python -m benchmarks engines`."""

from __future__ import annotations

from benchmarks.environment import Environment
from benchmarks.group import Group
from benchmarks.line_up import Lane

ENVIRONMENT = Environment("a processor", 2, 7.5, (), "Linux x86_64", "3.11.9", "2.13.0", "0.1.0")

GROUP = Group(
    "mlp",
    4,
    (
        Lane("pytorch", 1, None, rates=(100.0, 200.0, 100.0)),
        Lane("pytorch", 2, None, rates=(5.0, 400.0, 5.0)),
        Lane("compiled", 1, None, 9.0, rates=(150.0, 300.0, 150.0)),
        Lane("compiled_step", 2, None, 9.0, rates=(200.0, 400.0, 200.0)),
        Lane("eager", 1, 1, rates=(90.0, 180.0, 90.0)),
        Lane("eager", 1, 8, rates=(110.0, 220.0, 110.0)),
        Lane("eager", 2, 8, rates=(120.0, 220.0, 120.0)),
        Lane("fused", 1, 8, 25.0, rates=(800.0, 1000.0, 900.0)),
        Lane("graph", 1, 1, rates=(200.0, 400.0, 200.0)),
        Lane("graph", 2, 1, rates=(300.0, 300.0, 300.0)),
        Lane("graph", 1, 2, rates=(300.0, 800.0, 400.0)),
        Lane("graph+compiled", 1, 1, 20.0, rates=(250.0, 500.0, 250.0)),
    ),
    notes=("mlp, batch 4, fused with 1 learner on 2 threads: left out, RuntimeError: no compiler",),
    seconds=33.3,
    final=((250.0, 200.0, 200.0), (500.0, 600.0, 500.0)),
)

PYTORCH_ALONE = Group("lenet", 16, GROUP.lanes[:2], seconds=33.3)
BOW_ALONE = Group("lenet", 16, GROUP.lanes[4:6], seconds=33.3)
NOBODY = Group("lenet", 16, (), seconds=33.3)
