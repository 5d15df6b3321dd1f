"""Changes a policy's parameters, and keeps them finite."""

from typing import Any

import torch
from torch import Tensor, nn

from bow.planning.placement.learning_settings import LearningSettings


class Updater:
    """Adam with a learning rate that decays, and clipped gradients; what is not finite is left out.

    Args:
        policy: whose parameters change.
        settings: learning rate, its decay, and the gradients' norm.

    References:
        Kingma, Ba: Adam: A method for stochastic optimization, 2015.
    """

    def __init__(self, policy: nn.Module, settings: LearningSettings) -> None:
        self._parameters = list(policy.parameters())
        self._settings = settings
        self._adam = torch.optim.Adam(self._parameters, lr=settings.learning_rate, foreach=True)
        self.updates = 0
        """How many there were, with those left out."""
        self.skipped = 0
        """How many were left out, because a gradient was not finite."""

    def update(self) -> bool:
        """Change the parameters by their gradients; whether it was done.

        Where all gradients are 0 there was nothing to learn, such as only failures that are masked: then Adam's
        momentum does not move the parameters either.
        """
        norm = nn.utils.clip_grad_norm_(self._parameters, self._settings.gradient_norm)
        rate = self._settings.rate(self.updates)
        self.updates += 1
        self.skipped += not norm.isfinite()
        if not norm.isfinite() or norm == 0:
            return False
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        return True

    def state(self) -> dict[str, Any]:
        """What it takes to go on from here, without the parameters."""
        return {"adam": self._adam.state_dict(), "updates": self.updates, "skipped": self.skipped}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from where another one was."""
        self._adam.load_state_dict(state["adam"])
        self.updates, self.skipped = state["updates"], state["skipped"]


def flat_gradients(policy: nn.Module) -> Tensor:
    """All gradients one behind the other; 0 for parameters that have none."""
    pairs = ((each, each.grad) for each in policy.parameters())
    return torch.cat([(each.new_zeros(each.numel()) if grad is None else grad.flatten()) for each, grad in pairs])


def set_gradients(policy: nn.Module, gradients: Tensor) -> None:
    """Set all gradients."""
    parameters = list(policy.parameters())
    parts = torch.split(gradients, [each.numel() for each in parameters])
    for each, part in zip(parameters, parts, strict=True):
        each.grad = part.view_as(each).clone()
