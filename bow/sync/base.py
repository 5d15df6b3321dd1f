"""What a synchroniser is: pure arithmetic on the rows of a device, and when its sum must be there."""

import abc
import enum
from collections.abc import Sequence
from typing import ClassVar, Protocol

from jaxtyping import Float
from torch import Tensor

from bow.values import whole


class Timing(enum.Enum):
    """When the sum over all learners must have arrived.

    Only `WITH_STEP` lets the AllReduce between devices hide behind the learning tasks of the same round: the
    contribution is computed from the weights before the step and applied together with the step.
    """

    BEFORE_STEP = "before_step"
    WITH_STEP = "with_step"
    AFTER_STEP = "after_step"
    NEVER = "never"


class Rows(Protocol):
    """The rows of one device that a synchroniser reads and writes."""

    weights: Float[Tensor, "learners parameters"]
    gradients: Float[Tensor, "learners parameters"]
    z: Float[Tensor, " parameters"]
    total: Float[Tensor, " parameters"]
    """Where the device's contribution is put, and then the sum over all devices."""
    before: Float[Tensor, " parameters"] | None
    """For a synchroniser that is `in_order`: the sum over the devices in front of this one; None: there are none."""
    state: dict[str, Tensor]
    """The synchroniser's own tensors (such as `z_prev`), made by `Synchroniser.start`."""

    by_device: Sequence[int]
    """How many learners each device has; of one device alone it may be empty."""

    @property
    def corrections(self) -> Float[Tensor, "learners parameters"]:
        """Scratch rows."""
        ...


class Synchroniser(abc.ABC):
    """Keeps learners together. It never communicates and holds no tensors: both belong to its caller.

    Args:
        every: rounds between two synchronisation tasks; round t (from 0) synchronises when
            `(t + 1) % every == 0`.

    Raises:
        SettingError: `every` is not a whole number of at least 1.
    """

    timing: ClassVar[Timing]
    in_order: ClassVar[bool] = False
    """Whether what learners contribute counts in their order, over all devices."""
    restarts_diverged: ClassVar[bool] = True
    """Whether a learner that leaves the finite numbers starts again from `center`."""

    def __init__(self, every: int = 1) -> None:
        self.every = whole("every", every)

    @property
    def kind(self) -> str:
        """What must be the same where a state is loaded."""
        return type(self).__name__

    @property
    def restarts_on_drop(self) -> bool:
        """Whether learners are set to z when the learning rate drops."""
        return False

    def due(self, round_index: int, learners: int) -> bool:
        """Whether a round of this many learners (over all devices) has a synchronisation task."""
        return (round_index + 1) % self.every == 0

    own_state: ClassVar[frozenset[str]] = frozenset()
    """Names in `rows.state` that differ from device to device."""

    def check(self, learners: int, by_device: Sequence[int] = ()) -> None:  # noqa: B027 - most work with any number
        """Refuse a number of learners with which averaging would be unstable.

        Args:
            learners: over all devices.
            by_device: how many each device has, where there are several.

        Raises:
            SettingError: with the limit in the message.
        """

    def follows(self, learners: int) -> bool:
        """Whether z simply is the weights of the first learner, after every round."""
        return False

    def start(self, rows: Rows) -> None:  # noqa: B027 - most synchronisers keep nothing
        """Make the synchroniser's tensors in `rows.state`, at the start of the training."""

    def start_own(self, rows: Rows) -> None:  # noqa: B027 - most keep nothing of a device's own
        """Make what differs from device to device anew, for devices that are others than before."""

    def center(self, rows: Rows) -> Float[Tensor, " parameters"]:
        """Where a learner starts that is new, or starts again: z, for most."""
        return rows.z

    def restart_all(self, rows: Rows) -> None:
        """Have all learners start again, weights only."""
        rows.weights.copy_(self.center(rows).expand_as(rows.weights))

    def grow(self, rows: Rows, learners: int) -> None:  # noqa: B027 - most keep nothing of a device's own
        """Learners are about to come, to so many that average in every round."""

    def prepare(self, rows: Rows) -> None:  # noqa: B027 - only some need it
        """Look at the rows before the learning tasks of a synchronising round."""

    def restarted(self, rows: Rows, learner: int) -> None:  # noqa: B027 - most look at what the weights are
        """A learner whose step led out of the finite numbers has been set to `center`; it contributes from there."""

    @abc.abstractmethod
    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """Put this device's part of the sum into `rows.total`.

        Args:
            rows: the learners of this device.
            learners: number of learners over all devices.
            contributors: how many of them computed a gradient in this round, over all devices.
        """

    @abc.abstractmethod
    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Use `rows.total`, by now summed over all devices. Arguments as for `contribute`."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__}({settings})"
