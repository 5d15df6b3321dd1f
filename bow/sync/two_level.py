"""Two synchronisers: one within a node, in every round, and one between nodes, every few rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from bow.errors import SettingError
from bow.sync.base import Rows, Synchroniser, Timing

CENTER = "node_z"
INNER, OUTER = "inner_", "outer_"


@dataclass
class RowsView:
    """Rows as one of the two synchronisers sees them."""

    weights: Tensor
    gradients: Tensor
    z: Tensor
    total: Tensor
    corrections: Tensor
    state: dict[str, Tensor]
    before: Tensor | None = None
    by_device: Sequence[int] = ()


class TwoLevel(Synchroniser):
    """Averages the learners of a node with one synchroniser, and the nodes with another, over slower links.

    Within a node, `inner` maintains a central model of the node. Every `outer.every` rounds, after the steps, `outer`
    treats each node's central model as the weights of one learner, and moves z, which is constant in between. The
    node's learners, its central model and `inner`'s state are then shifted by the movement of the node's central
    model, so that their relative positions do not change.

    With one learner per node, `TwoLevel(SMA(), outer)` is `outer` alone.

    Args:
        inner: within a node, such as `SMA()`.
        outer: between nodes: one that averages after the steps, `DiLoCo()` or `LocalSGD()`.

    Raises:
        SettingError: `inner` averages gradients or nothing at all, or `outer` needs every round.

    Example:
        >>> from bow.sync import SMA, DiLoCo
        >>> TwoLevel(SMA(), DiLoCo(every=32)).outer.every
        32

    References:
        Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023.
        Budea, TensorBow, 2019, section 2.1.4: two levels, for the difference in latency within and across GPUs.
    """

    timing = Timing.WITH_STEP
    own_state = frozenset({CENTER, INNER + "z_prev"})

    def __init__(self, inner: Synchroniser, outer: Synchroniser) -> None:
        for name, value in (("inner", inner), ("outer", outer)):
            if not isinstance(value, Synchroniser) or isinstance(value, TwoLevel):
                raise SettingError(f"{name} must be a synchroniser such as bow.SMA() or bow.DiLoCo(), got {value!r}")
        if inner.timing is not Timing.WITH_STEP or inner.every != 1 or getattr(inner, "levels", 1) != 1:
            raise SettingError(
                f"inner must average with the step, in every round and in one level, got {inner!r}; use bow.SMA()"
            )
        if outer.timing is not Timing.AFTER_STEP or outer.in_order:
            raise SettingError(f"outer must average after the steps, got {outer!r}; use bow.DiLoCo(every=32)")
        super().__init__(every=outer.every)  # z moves only then
        self.inner = inner
        self.outer = outer

    @property
    def kind(self) -> str:
        """The kinds of both synchronisers."""
        return f"TwoLevel({self.inner.kind}, {self.outer.kind})"

    @property
    def restarts_on_drop(self) -> bool:
        """As for `inner`: learners restart from the central model of their node."""
        return self.inner.restarts_on_drop

    def start_own(self, rows: Rows) -> None:
        """Set the node's central model to z."""
        rows.state[CENTER].copy_(rows.z)
        self.inner.start(self._inner_view(rows))

    def center(self, rows: Rows) -> Tensor:
        """Return the node's central model."""
        return rows.state[CENTER]

    def grow(self, rows: Rows, learners: int) -> None:
        """Start averaging at the weights of a node's only learner, without momentum."""
        if self.inner.follows(learners):
            rows.state[CENTER].copy_(rows.weights[0])
            self.inner.start(self._inner_view(rows))

    def check(self, learners: int, by_device: Sequence[int] = ()) -> None:
        """Reject a number of learners of the node that `inner` rejects."""
        self.inner.check(learners)

    def due(self, round_index: int, learners: int) -> bool:
        """Return whether `inner`, for the learners of the node, or `outer` is due."""
        return self.inner.due(round_index, learners) or self.outer_due(round_index)

    def outer_due(self, round_index: int) -> bool:
        """Return whether nodes average after this round."""
        return (round_index + 1) % self.outer.every == 0

    def start(self, rows: Rows) -> None:
        """Set the node's central model to z, and start both synchronisers."""
        if CENTER not in rows.state:
            rows.state[CENTER] = rows.z.clone()
        rows.state[CENTER].copy_(rows.z)
        inner, outer = self._inner_view(rows), self._outer_view(rows)
        for prefix, sync, view in ((INNER, self.inner, inner), (OUTER, self.outer, outer)):
            sync.start(view)
            rows.state.update({prefix + name: tensor for name, tensor in view.state.items()})

    def prepare(self, rows: Rows) -> None:
        """Prepare `inner`."""
        self.inner.prepare(self._inner_view(rows))

    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """Compute `inner`'s contribution from the learners of the node."""
        if self.inner.follows(learners):
            rows.total.zero_()
            return
        self.inner.contribute(self._inner_view(rows), learners, contributors)

    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Move the node's learners and its central model."""
        if self.inner.follows(learners):
            return
        self.inner.apply(self._inner_view(rows), learners, contributors)

    def contribute_outer(self, rows: Rows, learners: int, contributes: bool) -> None:
        """Compute `outer`'s contribution from this node.

        Args:
            rows: the learners of this device.
            learners: number of learners of this node.
            contributes: whether this device contributes for its node; the others contribute zeros.
        """
        if self.inner.follows(learners):
            rows.state[CENTER].copy_(rows.weights[0])
        self.outer.contribute(self._outer_view(rows), 1, 1)
        if not contributes:
            rows.total.zero_()

    def apply_outer(self, rows: Rows, nodes: int) -> None:
        """Move z, and shift the learners and `inner`'s state with the node's central model."""
        center = rows.state[CENTER]
        before = center.clone()
        self.outer.apply(self._outer_view(rows), nodes, nodes)
        shift = center - before
        rows.weights.add_(shift)
        z_prev = rows.state.get(INNER + "z_prev")
        if z_prev is not None:
            z_prev.add_(shift)

    def _inner_view(self, rows: Rows) -> RowsView:
        """View the learners around the node's central model."""
        state = _part(rows.state, INNER)
        center = rows.state[CENTER]
        return RowsView(rows.weights, rows.gradients, center, rows.total, rows.corrections, state, rows.before)

    def _outer_view(self, rows: Rows) -> RowsView:
        """View the node's central model as the only learner around z."""
        center = rows.state[CENTER].unsqueeze(0)
        return RowsView(center, center, rows.z, rows.total, rows.corrections, _part(rows.state, OUTER))

    def __repr__(self) -> str:
        return f"TwoLevel({self.inner!r}, {self.outer!r})"


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
