"""Base class of synchronisers: pure arithmetic on the rows of a device, and the timing of its sum."""

import abc
import enum
from collections.abc import Sequence
from typing import ClassVar, Protocol

from jaxtyping import Float
from torch import Tensor

from bow.values import whole


class Timing(enum.Enum):
    """When the sum over all learners must be available.

    Only `WITH_STEP` lets the AllReduce between devices overlap the learning tasks of the same round: the
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
    """The device's contribution, and later the sum over all devices."""
    before: Float[Tensor, " parameters"] | None
    """For a synchroniser that is `in_order`: the sum over the devices before this one; None: there are none."""
    state: dict[str, Tensor]
    """The synchroniser's own tensors (such as `z_prev`), made by `Synchroniser.start`."""

    by_device: Sequence[int]
    """Number of learners of each device; may be empty for a single device."""

    @property
    def corrections(self) -> Float[Tensor, "learners parameters"]:
        """Scratch rows for the synchroniser."""
        ...


class Synchroniser(abc.ABC):
    """Keeps learners together. It neither communicates nor holds tensors: both belong to its caller.

    Args:
        every: rounds between two synchronisation tasks; round t (from 0) synchronises when
            `(t + 1) % every == 0`.

    Raises:
        SettingError: `every` is not a whole number of at least 1.
    """

    timing: ClassVar[Timing]
    in_order: ClassVar[bool] = False
    """Whether contributions depend on the order of the learners over all devices."""
    restarts_diverged: ClassVar[bool] = True
    """Whether a learner with weights that are not finite restarts from `center`."""

    def __init__(self, every: int = 1) -> None:
        self.every = whole("every", every)

    @property
    def kind(self) -> str:
        """Identifies the synchroniser when a state is loaded, which must be of the same kind."""
        return type(self).__name__

    @property
    def restarts_on_drop(self) -> bool:
        """Whether learners restart from `center` when the learning rate drops."""
        return False

    def due(self, round_index: int, learners: int) -> bool:
        """Return whether a round of this many learners (over all devices) has a synchronisation task."""
        return (round_index + 1) % self.every == 0

    own_state: ClassVar[frozenset[str]] = frozenset()
    """Names in `rows.state` whose tensors differ between devices."""

    def check(self, learners: int, by_device: Sequence[int] = ()) -> None:  # noqa: B027 - most work with any number
        """Reject a number of learners with which averaging would be unstable.

        Args:
            learners: over all devices.
            by_device: number on each device, if there are several.

        Raises:
            SettingError: with the limit in the message.
        """

    def follows(self, learners: int) -> bool:
        """Return whether z equals the weights of the first learner after every round."""
        return False

    def start(self, rows: Rows) -> None:  # noqa: B027 - most synchronisers keep nothing
        """Create or reset the synchroniser's tensors in `rows.state`."""

    def start_own(self, rows: Rows) -> None:  # noqa: B027 - most keep nothing of a device's own
        """Reset the tensors named in `own_state`, when a state of other devices is loaded."""

    def center(self, rows: Rows) -> Float[Tensor, " parameters"]:
        """Return the weights from which new and restarted learners start: z, for most synchronisers."""
        return rows.z

    def restart_all(self, rows: Rows) -> None:
        """Restart all learners, weights only."""
        rows.weights.copy_(self.center(rows).expand_as(rows.weights))

    def grow(self, rows: Rows, learners: int) -> None:  # noqa: B027 - most keep nothing of a device's own
        """Called before learners are added; `learners` is the number that averages in every round until then."""

    def prepare(self, rows: Rows) -> None:  # noqa: B027 - only some need it
        """Called before the learning tasks of a synchronising round."""

    def restarted(self, rows: Rows, learner: int) -> None:  # noqa: B027 - most use the weights as they are
        """Called in a synchronising round after a learner whose step was not finite was set to `center`.

        It contributes from there.
        """

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
        """Apply `rows.total`, now summed over all devices. Arguments as for `contribute`."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__}({settings})"
