"""The synchronisation task: a synchroniser's arithmetic, with the sum over all devices between its halves."""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bow.cluster import DONE, PendingSum
from bow.devices import Kernels
from bow.replicas import LearnerGroup
from bow.sync import Synchroniser, Timing, TwoLevel, is_plain_sma


class ModelAveraging:
    """Run a synchroniser on a device's learners: `begin`, learning tasks, `before_step`, step, `after_step`."""

    def __init__(self, group: LearnerGroup, sync: Synchroniser, kernels: Kernels | None = None) -> None:
        self._group = group
        self._sync = sync
        self._kernels = kernels
        self._inner_world = group.world.node_world() if isinstance(sync, TwoLevel) else group.world
        self.summing: PendingSum = DONE  # the pending sum over devices

    @property
    def num_averaged(self) -> int:
        """Number of learners averaged in every round: all of them, or those of this node."""
        group = self._group
        if not isinstance(self._sync, TwoLevel):
            return group.num_all
        return group.by_node(group.by_device)[group.world.node] if not group.is_alone else len(group)

    def check(self, by_device: Sequence[int]) -> None:
        """Raise if these numbers of learners by device make averaging unstable on any device."""
        averaged = [sum(by_device)]
        if isinstance(self._sync, TwoLevel):
            averaged = list(self._group.by_node(by_device).values())
        for learners in averaged:
            self._sync.check(learners, by_device)

    def due(self, round_index: int) -> bool:
        return self._sync.due(round_index, self.num_averaged)

    def begin(self, due: bool) -> None:
        """Run the part of a synchronisation task that precedes the learning tasks; a sum may overlap them."""
        if due:
            self._sync.prepare(self._group.matrix)
        if due and self._sync.timing is Timing.WITH_STEP:
            self._contribute(self._group.num_all)
            self.summing = self._inner_world.sum(self._group.matrix.total)

    def before_step(self, stepping: list[bool]) -> list[bool]:
        """Average gradients, if the synchroniser does, and return which learners step."""
        if self._sync.timing is not Timing.BEFORE_STEP:
            self.wait()  # now, because a sum that fails must leave the learners unchanged
            return stepping
        contributors = self._sum(sum(stepping))
        self._apply(contributors)
        return [contributors > 0] * len(stepping)

    def after_step(self, round_index: int) -> None:
        learners = self._group.num_all
        if self._sync.timing is Timing.AFTER_STEP:
            self._sum(learners)
            self._apply(learners)
        if self._sync.timing is Timing.WITH_STEP:
            self._apply(learners)
            self._average_nodes(round_index)

    def settle(self) -> None:
        """Update `z` for synchronisers that leave it alone during training, and share buffers."""
        if self._sync.timing is Timing.NEVER:
            with torch.no_grad():
                self._sum(self._group.num_all)
                self._apply(self._group.num_all)
        self._group.share_buffers()

    def begin_sum(self, total: Tensor) -> None:
        """Begin a sum over the devices, for an engine that computes its own contribution."""
        self.summing = self._group.world.sum(total)

    def wait(self) -> None:
        summing, self.summing = self.summing, DONE
        summing.wait()

    @contextlib.contextmanager
    def overlapping_sum(self) -> Iterator[None]:
        """Overlap learning with a sum, which is withdrawn on failure."""
        try:
            yield
        except BaseException:
            summing, self.summing = self.summing, DONE
            summing.withdraw()
            raise

    def _sum(self, contributors: int) -> int:
        """Sum over all learners of all devices, and return the number of contributors."""
        self._contribute(contributors)
        matrix, world = self._group.matrix, self._group.world
        if world.is_one:
            return contributors
        if self._sync.in_order:
            matrix.before = world.sum_with_prefix(matrix.total)
            return self._group.num_all
        if self._sync.timing is not Timing.BEFORE_STEP:
            world.sum(matrix.total).wait()
            return self._group.num_all
        matrix.allreduce_buffer[-1] = contributors
        world.sum(matrix.allreduce_buffer).wait()
        return int(matrix.allreduce_buffer[-1])

    def _average_nodes(self, round_index: int) -> None:
        sync, world, rows = self._sync, self._group.world, self._group.matrix
        if isinstance(sync, TwoLevel) and sync.outer_due(round_index):
            sync.contribute_outer(rows, self.num_averaged, contributes=self._inner_world.leads)
            world.sum(rows.total).wait()
            sync.apply_outer(rows, world.nodes)

    def _contribute(self, contributors: int) -> None:
        matrix, sync = self._group.matrix, self._sync
        if self._kernels is not None and is_plain_sma(sync) and not sync.is_in_levels(matrix):
            alpha = 1 / self._group.num_all if sync.alpha is None else sync.alpha
            self._kernels.sma_contribute(matrix.weights, matrix.z, matrix.corrections, matrix.total, alpha)
        else:
            sync.contribute(matrix, self.num_averaged, contributors)

    def _apply(self, contributors: int) -> None:
        matrix, sync = self._group.matrix, self._sync
        if self._kernels is not None and is_plain_sma(sync) and not sync.is_in_levels(matrix):
            z_prev = matrix.state["z_prev"]
            self._kernels.sma_apply(matrix.weights, matrix.corrections, matrix.z, z_prev, matrix.total, sync.mu)
        else:
            sync.apply(matrix, self.num_averaged, contributors)
