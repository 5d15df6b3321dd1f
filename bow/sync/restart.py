"""Restart of the learners from the central model when the learning rate has dropped."""

from dataclasses import dataclass

DROP = 0.5  # restart when the learning rate is at most this share of its maximum since the last restart
NEGLIGIBLE = 0.01  # learning rates below this share of the peak are ignored: annealing to zero is not a drop


@dataclass
class DropRule:
    """Watches the first group's learning rate, as CROSSBOW does in its code (`clib-multigpu/synch/sma.c`)."""

    peak: float = 0.0
    maximum: float = 0.0
    current: float = 0.0
    pending: bool = False

    def observe(self, lr: float) -> None:
        """Record the learning rate of a round; a drop makes a restart pending."""
        self.current = lr
        self.peak = max(self.peak, lr)
        self.maximum = max(self.maximum, lr)
        if 0 < NEGLIGIBLE * self.peak <= lr <= DROP * self.maximum:
            self.pending = True

    def take(self) -> bool:
        """Return whether a restart is pending, and mark it as done: the maximum restarts from the current rate."""
        pending, self.pending = self.pending, False
        if pending:
            self.maximum = self.current
        return pending
