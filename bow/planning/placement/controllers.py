"""Trains a policy here, or in processes: controllers, which draw, evaluate and send gradients of shared parameters."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bow.errors import ClusterError
from bow.planning.placement.policy import Operations, PlacementPolicy, PolicySettings
from bow.planning.placement.training import (
    Controller,
    Evaluate,
    LearnedPlacement,
    LearningSettings,
    SampledPlacements,
    TrainingState,
    Watch,
    flat_gradients,
    set_gradients,
)

PROCESSES = multiprocessing.get_context("forkserver")  # torch is imported once, and is forked before it has computed

POLL_S = 0.1  # how often the time that is spent is looked at while no controller sends anything

CLOSING_S = 5.0  # how long a controller may take to end by itself

MOST_DEATHS = 3  # a controller that ends so often in a row without having sent anything is not started again


def train_policy(
    operations: Operations,
    evaluate: Evaluate,
    *,
    updates: int,
    settings: LearningSettings | None = None,
    sizes: PolicySettings | None = None,
    seed: int = 0,
    budget_s: float | None = None,
    controllers: int = 0,
    watch: Watch | None = None,
) -> LearnedPlacement:
    """Learn to place operations on devices from nothing but the time of a step."""
    # The same seed gives the same placements here; with controllers, what is drawn depends on who is first.
    settings, sizes = settings or LearningSettings(), sizes or PolicySettings()
    state = TrainingState(operations, settings, sizes, seed, updates=updates, budget_s=budget_s)
    shared = (operations, sizes, settings, seed, evaluate)
    processes = [_ControllerProcess(number, shared) for number in range(controllers)]
    with state.with_best_noted():
        try:
            if processes:
                _serve(state, processes, watch)
            else:
                _learn_here(state, Controller(state.policy, evaluate, settings, seed=seed), watch)
        finally:
            for process in processes:
                process.end()
    return state.result(evaluate)


def _learn_here(state: TrainingState, controller: Controller, watch: Watch | None) -> None:
    while not state.is_over:
        progress = state.learn(controller.step(state.updater.updates))
        if watch is not None and watch(progress) is False:
            return


def _serve(state: TrainingState, processes: list[_ControllerProcess], watch: Watch | None) -> None:
    for process in processes:
        process.begin(state)
    while not state.is_over:
        alive = {process.connection: process for process in processes if process.deaths < MOST_DEATHS}
        if not alive:
            raise ClusterError(f"{processes[0].failure}; see what it printed")
        for connection in wait(list(alive), POLL_S):
            process = alive[connection]  # type: ignore[index]
            batch = process.receive(state)
            if batch is None:
                process.replace(state)
                continue
            progress = state.learn(batch)
            if (watch is not None and watch(progress) is False) or state.is_over:
                return
            process.send_parameters(state)


class _ControllerProcess:
    """A controller's number, and the process that has it now."""

    def __init__(self, number: int, shared: tuple[Any, ...]) -> None:
        self.deaths = 0  # in a row, without having sent anything
        self._number, self._shared = number, shared
        self._controller: dict[str, Any] | None = None  # the state of the controller when it sent something last

    def begin(self, state: TrainingState) -> None:
        PROCESSES.set_forkserver_preload([__name__])
        self.connection, theirs = PROCESSES.Pipe()
        job = cloudpickle.dumps((self._number, self._controller, *self._shared))
        self._process = PROCESSES.Process(target=run_controller, args=(theirs, job), daemon=True)
        self._process.start()
        theirs.close()  # or its end would not be noticed
        self.send_parameters(state)

    def send_parameters(self, state: TrainingState) -> None:
        vector = parameters_to_vector(state.policy.parameters()).detach()
        with contextlib.suppress(OSError):  # that it has died is noticed where something of it is expected
            self.connection.send_bytes(pickle.dumps((state.updater.updates, vector)))

    def receive(self, state: TrainingState) -> SampledPlacements | None:
        """Set the policy's gradients to what it has sent; None: it has died."""
        try:
            gradients, batch, self._controller = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        self.deaths = 0
        set_gradients(state.policy, gradients)
        return batch  # type: ignore[no-any-return]

    def replace(self, state: TrainingState) -> None:
        self.deaths += 1
        self.end()
        if self.deaths < MOST_DEATHS:
            self.begin(state)

    @property
    def failure(self) -> str:
        status = self._process.exitcode
        return f"controller {self._number} ended {self.deaths} times before it sent anything, last with status {status}"

    def end(self) -> None:
        if not hasattr(self, "_process"):
            return
        self.connection.close()
        self._process.terminate()
        self._process.join(CLOSING_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def run_controller(connection: Connection, job: bytes) -> None:
    """The process of a controller: draw, evaluate and send gradients until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the server ends this one
    threading.Thread(target=_end_with_server, name="bow-end-with-server", daemon=True).start()
    torch.set_num_threads(1)  # processes share the cores
    number, own, operations, sizes, settings, seed, evaluate = pickle.loads(job)
    policy = PlacementPolicy(operations, sizes, seed=seed)
    controller = Controller(policy, evaluate, settings, seed=seed, number=number)
    if own is not None:
        controller.load(own)
    with contextlib.suppress(EOFError, OSError):  # the server is gone
        while True:
            updates, parameters = pickle.loads(connection.recv_bytes())
            vector_to_parameters(parameters, policy.parameters())
            batch = controller.step(updates)
            # As bytes: the connection's own pickling would put tensors into shared memory.
            connection.send_bytes(pickle.dumps((flat_gradients(policy), batch, controller.state())))


def _end_with_server() -> None:
    """End this process as soon as the one that started it is gone, whatever it is doing then."""
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os._exit(0)
