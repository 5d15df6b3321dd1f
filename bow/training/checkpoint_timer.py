"""When a checkpoint is due where nobody has said how often: seldom enough to take at most 1 % of the time."""

SHARE = 0.01
LEAST_S = 60.0
"""Seconds between two checkpoints, at least; a training that is shorter writes none."""

BYTES_PER_S = 200e6
"""What the first checkpoint is expected to be written at; those behind it are timed."""


class CheckpointTimer:
    """Says when a checkpoint is due.

    Args:
        num_bytes: about as many as a checkpoint has.
        now_s: on the clock that the methods are told.

    Example:
        >>> timer = CheckpointTimer(1000, now_s=0.0)
        >>> timer.is_due(59.0), timer.is_due(61.0)
        (False, True)
        >>> timer.wrote(61.0, 64.0)
        >>> timer.is_due(360.0), timer.is_due(365.0)
        (False, True)
    """

    def __init__(self, num_bytes: float, now_s: float) -> None:
        self._due_s = now_s + max(LEAST_S, num_bytes / BYTES_PER_S / SHARE)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time."""
        return now_s >= self._due_s

    def wrote(self, began_s: float, ended_s: float) -> None:
        """A checkpoint was written, or could not be."""
        self._due_s = ended_s + max(LEAST_S, (ended_s - began_s) / SHARE)
