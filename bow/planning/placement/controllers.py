"""Policy training in this process, or by controller processes that sample, evaluate and send gradients."""

from __future__ import annotations

import queue
from typing import Any, TypeAlias

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bow.errors import ClusterError
from bow.planning.placement.policy import Operations, PlacementPolicy, PolicySettings
from bow.planning.placement.training import (
    Controller,
    Evaluate,
    LearnedPlacement,
    LearningSettings,
    TrainingState,
    Watch,
)
from bow.planning.search.processes import Inbox, SearchProcess, Send

Messages: TypeAlias = "queue.Queue[tuple[SearchProcess, Any]]"

POLL_S = 0.1  # interval of budget checks while no controller sends anything
CLOSING_S = 5.0  # time that a controller whose connection has closed gets to exit
MOST_DEATHS = 3  # consecutive deaths without a message after which a controller is not restarted


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
    # Reproducible by seed in one process; with controllers, results depend on the order of their messages.
    settings, sizes = settings or LearningSettings(), sizes or PolicySettings()
    state = TrainingState(operations, settings, sizes, seed, updates=updates, budget_s=budget_s)
    shared = (operations, sizes, settings, seed, evaluate)
    processes = [_ControllerProcess(number, shared) for number in range(controllers)]
    with state.reporting_best():
        try:
            if processes:
                _serve(state, processes, watch)
            else:
                controller, goes_on = Controller(state.policy, evaluate, settings, seed=seed), True
                while goes_on and not state.is_over:
                    progress = state.learn(controller.step(state.updater.updates, state.left))
                    goes_on = watch is None or watch(progress) is not False
        finally:
            for process in processes:
                process.end()
    return state.result()


def _serve(state: TrainingState, processes: list[_ControllerProcess], watch: Watch | None) -> None:
    messages: Messages = queue.Queue()
    for process in processes:
        process.begin(state, messages)
    while not state.is_over:
        if all(process.deaths == MOST_DEATHS for process in processes):
            raise ClusterError(f"{processes[0].failure}; check its output")
        try:
            sender, message = messages.get(timeout=POLL_S)
        except queue.Empty:
            continue
        process = next(each for each in processes if each.process is sender)
        if message is None:
            process.replace(state, messages)
            continue
        gradients, batch, process.controller = message
        process.deaths = 0
        for parameter, gradient in zip(state.policy.parameters(), gradients, strict=True):
            parameter.grad = gradient
        progress = state.learn(batch)
        if (watch is not None and watch(progress) is False) or state.is_over:
            return
        process.send_parameters(state)


class _ControllerProcess:
    """A controller's number, state, and current process."""

    def __init__(self, number: int, shared: tuple[Any, ...]) -> None:
        self.deaths = 0  # consecutive, without a message
        self.controller: dict[str, Any] | None = None  # state after its last message
        self.process: SearchProcess | None = None
        self._number, self._shared = number, shared

    def begin(self, state: TrainingState, messages: Messages) -> None:
        self.process = SearchProcess(messages)
        self.process.begin(run_controller, self._number, self.controller, *self._shared)
        self.send_parameters(state)

    def send_parameters(self, state: TrainingState) -> None:
        assert self.process is not None
        self.process.send((state.updater.updates, state.left, parameters_to_vector(state.policy.parameters()).detach()))

    def replace(self, state: TrainingState, messages: Messages) -> None:
        assert self.process is not None
        self.deaths += 1
        status = self.process.end(CLOSING_S)
        times = f"died {self.deaths} times before its first message"
        self.failure = f"controller {self._number} {times} (last exit status {status})"
        if self.deaths < MOST_DEATHS:
            self.begin(state, messages)

    def end(self) -> None:
        if self.process is not None:
            self.process.end()


def run_controller(
    send: Send,
    inbox: Inbox,
    number: int,
    own: dict[str, Any] | None,
    operations: Operations,
    sizes: PolicySettings,
    settings: LearningSettings,
    seed: int,
    evaluate: Evaluate,
) -> None:
    """Entry point of a controller process: sample, evaluate and send gradients."""
    torch.set_num_threads(1)  # processes share the cores
    policy = PlacementPolicy(operations, sizes, seed=seed)
    controller = Controller(policy, evaluate, settings, seed=seed, number=number)
    if own is not None:
        controller.load(own)
    while True:
        updates, left, parameters = inbox.get()
        vector_to_parameters(parameters, policy.parameters())
        batch = controller.step(updates, left)
        send(([parameter.grad for parameter in policy.parameters()], batch, controller.state()))
