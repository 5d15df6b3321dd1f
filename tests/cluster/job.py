"""What torchrun runs in the tests: `python -m tests.cluster.job RUN_DIR FAULT AT [FILE]`, a fault behind a round."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bow
from bow.cluster import heartbeat
from bow.files import write_whole
from tests.grouped import grouped

STEPS = 60
PAUSE_S = 0.0  # after each round, so that others can strike meanwhile


class Fault:
    """Strikes the process of the highest rank, the first time that it is started.

    Args:
        kind: `"kill"`, `"stop"`, `"end"` (it is asked to) or `"none"`.
        at: behind which round.
    """

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at = kind, at

    def on_round_end(self, run: Any) -> None:
        time.sleep(PAUSE_S)
        world = run.replicas.world
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if run.round == self.at and is_first and world.rank == world.size - 1:
            numbers = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM}
            if self.kind in numbers:
                os.kill(os.getpid(), numbers[self.kind])


def train(folder: Path, fault: str = "none", at: int = 0, **settings: Any) -> bow.Result:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(400, 8, generator=generator), torch.randint(4, (400,), generator=generator)
    arguments: dict[str, Any] = {"learners": 2, "checkpoint_every": 5, **settings}
    return bow.train(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 4)),
        data,
        nn.functional.cross_entropy,
        **grouped(
            optimizer=functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
            batch_size=4,
            steps=STEPS,
            engine="eager",
            callbacks=[Fault(fault, at)],
            run_dir=folder,
            progress=False,
            **arguments,
        ),
    )


if __name__ == "__main__":
    heartbeat.MISSED_S, heartbeat.BEAT_S, PAUSE_S = 4.0, 0.5, 0.02
    folder, fault, at, *files = sys.argv[1:]
    for file in files:
        write_whole(Path(file), str(os.getpid()))
    train(Path(folder), fault, int(at))
