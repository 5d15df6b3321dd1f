"""The process of a controller: `python -m bow.planning.placement.controller_process`, its job on standard input."""

from __future__ import annotations

import pickle
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]
from torch.nn.utils import vector_to_parameters

from bow.planning.placement.messages import batch_header, packed, unpacked
from bow.planning.placement.policy import Operations, PlacementPolicy, PolicySettings
from bow.planning.placement.reinforce import LearningSettings, flat_gradients
from bow.planning.placement.training import Controller, Evaluate
from bow.planning.placement.worker import end_with_starter
from bow.planning.placement.worker_pool import WorkerPool

PARAMETERS = "parameters"
"""The key under which the server keeps the newest parameters."""

PATIENCE = timedelta(days=1)
"""So long a controller waits for the server; when that ends, the connection does, and so does the controller."""


@dataclass(frozen=True)
class ControllerJob:
    """What a controller needs to know.

    Attributes:
        port: of the server's store.
        name: under which it sends: of its number, and the manieth process it is that has this number.
        number: of the controller.
        operations: what is to be placed.
        sizes: of the policy.
        settings: how to learn.
        seed: of the training.
        evaluate: seconds of a step with each placement.
        workers: processes that evaluate; 0: the controller does it itself.
        timeout_s: seconds after which a worker's evaluation is given up; None: never.
        state: to go on from; None: a new one.
    """

    port: int
    name: str
    number: int
    operations: Operations
    sizes: PolicySettings | None
    settings: LearningSettings
    seed: int
    evaluate: Evaluate
    workers: int
    timeout_s: float | None
    state: dict[str, Any] | None


def main() -> None:
    """Draw, evaluate and send gradients until the server says that it is enough, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; who started this one ends it
    signal.signal(signal.SIGTERM, _end)  # its workers end with it
    end_with_starter()
    sys.path[:] = pickle.load(sys.stdin.buffer)
    job: ControllerJob = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)  # processes share the cores
    store = TCPStore("127.0.0.1", job.port, is_master=False, timeout=PATIENCE)
    if not job.workers:
        _run(job, store, job.evaluate)
        return
    with WorkerPool(job.evaluate, job.workers, timeout_s=job.timeout_s) as pool:
        _run(job, store, pool)


def gradients_key(name: str, count: int) -> str:
    """Where a controller puts its gradients."""
    return f"gradients/{name}/{count}"


def applied_key(name: str, count: int) -> str:
    """Where the server notes that it has applied a controller's gradients."""
    return f"applied/{name}/{count}"


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit()


def _run(job: ControllerJob, store: TCPStore, evaluate: Evaluate) -> None:
    policy = PlacementPolicy(job.operations, job.sizes, seed=job.seed)
    controller = Controller(policy, evaluate, job.settings, seed=job.seed, number=job.number)
    if job.state is not None:
        controller.load(job.state)
    count = 0
    while True:
        try:
            header, parameters = unpacked(store.get(PARAMETERS))
        except DistError:  # the server is gone
            return
        if header["is_over"]:
            return
        vector_to_parameters(parameters, policy.parameters())
        batch = controller.step(header["updates"])
        message = packed(batch_header(batch, controller.state()), flat_gradients(policy))
        try:
            store.set(gradients_key(job.name, count), message)  # type: ignore[arg-type]  # bytes are taken, torch declares str
            store.wait([applied_key(job.name, count)], PATIENCE)
            store.delete_key(applied_key(job.name, count))
        except DistError:
            return
        count += 1


if __name__ == "__main__":
    main()
