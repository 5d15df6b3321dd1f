"""What training a policy results in."""

from __future__ import annotations

from dataclasses import dataclass

from bow.planning.placement.controller import Placement
from bow.planning.placement.findings import Findings, Found
from bow.planning.placement.policy import PlacementPolicy


@dataclass(frozen=True)
class LearnedPlacement:
    """What a training has found.

    Attributes:
        best: the best placement that was drawn.
        greedy: the one that the trained policy decodes greedily.
        greedy_s: of a step with it, in seconds; None: it does not fit.
        policy: that was trained.
        findings: what was drawn, and each placement that was better than all before.
        updates: so many there were.
        skipped: so many of them were left out, because a gradient was not finite.
        seconds: that it took.
    """

    best: Found
    greedy: Placement
    greedy_s: float | None
    policy: PlacementPolicy
    findings: Findings
    updates: int
    skipped: int
    seconds: float
