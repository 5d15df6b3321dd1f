"""Keeps the parameters that controllers share, and changes them by the gradients that these send."""

from __future__ import annotations

import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.utils import parameters_to_vector

from bow.planning.placement.controller_process import PARAMETERS, applied_key, gradients_key
from bow.planning.placement.messages import batch_of, packed, unpacked
from bow.planning.placement.reinforce import set_gradients
from bow.planning.placement.training import Progress, TrainingState


class ParameterServer:
    """A store on this machine with the newest parameters, and the gradients that wait to be applied.

    Each controller's messages have names of their own, counted from 0: one that dies leaves no gap that others
    would wait for. A message is there whole or not at all.

    Args:
        state: of the training.

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.4.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        # The store would listen to the whole network: it gets a socket that only this machine reaches.
        listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        """Where controllers find it."""
        self._store = TCPStore(
            "127.0.0.1", self.port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        self._received: dict[str, int] = {}
        self.publish()

    def publish(self, *, is_over: bool = False) -> None:
        """Give controllers the newest parameters."""
        header = {"updates": self._state.updater.updates, "is_over": is_over}
        self._store.set(PARAMETERS, packed(header, parameters_to_vector(self._state.policy.parameters())))  # type: ignore[arg-type]

    def close(self) -> None:
        """Tell controllers to end, also those that wait for their gradients to be applied."""
        self.publish(is_over=True)
        for name, count in self._received.items():
            self._store.set(applied_key(name, count), "")

    def apply(self, name: str, number: int) -> Progress | None:
        """Change the parameters by a controller's gradients; None: it has sent none."""
        count = self._received.setdefault(name, 0)
        key = gradients_key(name, count)
        if not self._store.check([key]):
            return None
        header, gradients = unpacked(self._store.get(key))
        self._store.delete_key(key)
        self._received[name] = count + 1
        set_gradients(self._state.policy, gradients)
        batch, controller = batch_of(header)
        progress = self._state.learn(batch, number, controller)
        self.publish()
        self._store.set(applied_key(name, count), "")
        return progress
