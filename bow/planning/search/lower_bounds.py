"""Lower bounds of the step time: over partitions with given splits of the first operators, and over all partitions."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bow.errors import SettingError
from bow.planning.problem.box import Box, volume
from bow.planning.problem.partition import Split, tiles_of
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace
from bow.planning.search.tile_tables import NEG_INF, POS_INF, Array, PlaceTables, TileTables, edges_of
from bow.planning.simulator.costs import RooflineCosts
from bow.planning.simulator.step_model import StepModel


@dataclass(frozen=True)
class RemainingLoads:
    """Tasks that wait for backward passes of the first operators: further backward passes, reductions, updates."""

    # A place runs one task at a time: after a backward pass it needs at least the sum of all its tasks that wait for
    # it.

    tasks: Array  # [task, place], duration
    # by operator: [tile, task], whether it waits for the tile's backward pass, or is it
    waiting: tuple[NDArray[np.bool_], ...]
    # by operator: [bit set of tiles, place], sum of the tasks that wait for one of the tiles' backward passes, or are
    # one
    loads: tuple[Array, ...]
    ends: Array  # by place: least time from the end of such tasks to the end of the step

    def tails(self, tables: PlaceTables, operator: int, makers: Mapping[int, tuple[int, int]]) -> Array:
        """By split and tile of the next operator: least time from its backward pass's end to the step's end."""
        own = np.einsum("stk,skp->stp", tables.leads[operator], tables.weights[operator])
        further = np.zeros_like(own)
        for edge, (maker, option) in makers.items():
            further = np.maximum(further, self.loads[maker][tables.sources[operator][edge][option]])
        ends = np.minimum(self.ends, np.where(self.ends > 0, tables.ends[operator][:, None], 0))[:, None]
        tails: Array = np.where(own + further > 0, own + further + ends, 0).max(axis=2)
        return tails

    def extended(
        self, tables: PlaceTables, operator: int, split: int, makers: Mapping[int, tuple[int, int]]
    ) -> RemainingLoads:
        passes, weights = tables.passes[operator][split], tables.weights[operator][split]
        tasks = np.concatenate([self.tasks, passes, weights])
        waiting = np.zeros((len(passes), len(tasks)), np.bool_)
        for edge, (maker, option) in makers.items():
            of_maker = self.waiting[maker]
            sources = tables.sources[operator][edge][option, split]
            reads = sources[:, None] >> np.arange(len(of_maker)) & 1
            waiting[:, : of_maker.shape[1]] |= reads @ of_maker > 0
        first = len(self.tasks)
        waiting[:, first : first + len(passes)] |= np.eye(len(passes), dtype=np.bool_)
        waiting[:, first + len(passes) :] = tables.leads[operator][split]
        subsets = np.arange(1 << len(passes))[:, None] >> np.arange(len(passes)) & 1
        loads = (subsets @ waiting > 0).astype(np.int64) @ tasks
        ends = np.minimum(self.ends, np.where(self.ends > 0, tables.ends[operator][split], 0))
        return RemainingLoads(tasks, (*self.waiting, waiting), (*self.loads, loads), ends)


class RemainingTimes:
    """Lower bounds of the remaining step time after tiles of an operator have been computed."""

    # Every operator takes the split that minimises the bound. `around` follows tile t of u through the loss and back:
    #
    #     backward(u, t) + max over readers v, min over splits of v, max over tiles j that read of t
    #                      (transfer(t, j) + forward(v, j) + around(v, j) + gradient(j, t))
    #
    # `across` spans from the first tile computed to the last backward pass of a tile: the next operator cannot be on
    # every tile's preferred device at once.

    def __init__(
        self, tables: TileTables, has_backward: Sequence[bool], check: Callable[[], None] = lambda: None
    ) -> None:
        self._tables, self._has_backward = tables, has_backward
        self.around = [np.full_like(table, NEG_INF) for table in tables.forward]
        # by operator: [split, tile], from the end of a tile's forward pass to an update of a later operator
        self.to_update_tile = [np.full_like(table, NEG_INF) for table in tables.forward]
        self.across = [np.full(len(table), NEG_INF, np.int64) for table in tables.forward]
        # by operator: [split], from the first tile's forward pass to an update of a later operator
        self.to_update_all = [np.full(len(table), NEG_INF, np.int64) for table in tables.forward]
        for reader in reversed(range(len(self.around))):
            check()
            self._turn(reader)
            for number, edge in enumerate(tables.edges[reader]):
                self._follow_tiles(edge.maker, reader, number)
                self._follow_all(edge.maker, reader, number)

    def _turn(self, operator: int) -> None:
        """Bound by the operator's own backward pass; without one, the step may end here."""
        if self._has_backward[operator]:
            backward, is_tile = self._tables.backward[operator], self._tables.devices[operator] >= 0
            self.around[operator] = np.maximum(self.around[operator], np.where(is_tile, backward, NEG_INF))
            self.across[operator] = np.maximum(self.across[operator], backward.max(axis=1))
            update = np.where(is_tile, self._tables.updates[operator], POS_INF).min(axis=1)
            self.to_update_all[operator] = np.maximum(self.to_update_all[operator], self.across[operator] + update)
            ending = self.around[operator] + self._tables.updates[operator]
            self.to_update_tile[operator] = np.maximum(self.to_update_tile[operator], ending)
        else:
            self.to_update_tile[operator] = np.maximum(self.to_update_tile[operator], 0)
            self.to_update_all[operator] = np.maximum(self.to_update_all[operator], 0)

    def _follow_tiles(self, maker: int, reader: int, edge: int) -> None:
        tables = self._tables
        coming = tables.transfer_ns[reader][edge] + tables.forward[reader][None, :, None, :]
        returning = coming + self.around[reader][None, :, None, :] + tables.gradient_ns[reader][edge]
        around = returning.max(axis=3).min(axis=1) + tables.backward[maker]
        self.around[maker] = np.maximum(self.around[maker], around)
        to_update_tile = (coming + self.to_update_tile[reader][None, :, None, :]).max(axis=3).min(axis=1)
        self.to_update_tile[maker] = np.maximum(self.to_update_tile[maker], to_update_tile)

    def _follow_all(self, maker: int, reader: int, edge: int) -> None:
        tables = self._tables
        is_tile = tables.devices[reader][None] >= 0
        first = tables.transfer_ns[reader][edge].max(axis=2) + tables.forward[reader][None]
        coming = np.where(is_tile, first, POS_INF).min(axis=2)
        last = (tables.gradient_ns[reader][edge] + tables.backward[maker][:, None, :, None]).max(axis=2)
        returning = np.where(is_tile, last, POS_INF).min(axis=2)
        across = (coming + self.across[reader] + returning).min(axis=1)
        self.across[maker] = np.maximum(self.across[maker], across)
        self.to_update_all[maker] = np.maximum(
            self.to_update_all[maker], (coming + self.to_update_all[reader]).min(axis=1)
        )


MAX_TABLE_BYTES = 2**32  # limit of the memory of the tables of times between tiles


@dataclass(frozen=True)
class Prefix:
    """Splits of the first operators, and the quantities derived from them."""

    options: tuple[int, ...]  # chosen split, by operator
    output_ready: tuple[Array, ...]  # by operator and tile: earliest time at which its output can leave
    tails: tuple[Array, ...]  # by operator and tile: least time from its backward pass's end to the step's end
    loads: Array  # total work by place (devices, then channels)
    remaining: RemainingLoads
    bound_ns: int  # lower bound of any step with these splits


@dataclass(frozen=True)
class Extensions:
    """All splits of the next operator after a prefix."""

    before: Prefix
    bounds_ns: Array  # by split: lower bound of any step with it
    output_ready: Array  # by split and tile, as in `Prefix`
    tails: Array  # by split and tile
    loads: Array  # by split and place


class StepBounds:
    """Lower bounds of simulated step times, given the first operators' splits."""

    # The maximum of: the longest dependency chain (known operators exactly and with `RemainingLoads`, the others
    # bounded by `RemainingTimes`); the work of each device; an equal share of the total work.

    def __init__(
        self, model: StepModel, options: Sequence[Sequence[Split]], check: Callable[[], None] = lambda: None
    ) -> None:
        sizes = [len(splits) * max(split.num_tiles for split in splits) for splits in options]
        num_bytes = 2 * 8 * sum(sizes[edge.maker] * sizes[edge.reader] for edge in edges_of(model.graph))
        if num_bytes > MAX_TABLE_BYTES:
            raise SettingError(
                f"a proof over {max(map(len, options))} splits of an operator would need {num_bytes / 2**30:.1f} GiB "
                "of tables; use fewer devices, or even=True"
            )
        self._num_devices = model.topology.num_devices
        self._tables = TileTables(model, options, check)
        self._remaining = RemainingTimes(self._tables, model.has_backward, check)
        self._places = PlaceTables(model, options, self._tables, check)
        least = [int(loads[:, : self._num_devices].sum(axis=1).min()) for loads in self._places.loads]
        self._least_after = [sum(least[operator + 1 :]) for operator in range(len(least))]

    def empty_prefix(self) -> Prefix:
        num_places = self._places.num_places
        ends = np.full(num_places, POS_INF, np.int64)
        ends[: self._num_devices] = 0  # the last task of a device may be the last of the step
        remaining = RemainingLoads(np.zeros((0, num_places), np.int64), (), (), ends)
        return Prefix((), (), (), np.zeros(num_places, np.int64), remaining, 0)

    def extensions(self, prefix: Prefix) -> Extensions:
        tables, operator = self._tables, len(prefix.options)
        forward, backward, sums = tables.forward[operator], tables.backward[operator], tables.sums[operator]
        ready, after = np.zeros_like(forward), np.full_like(forward, NEG_INF)
        loads = prefix.loads + self._places.loads[operator]
        makers = self._makers(prefix, operator)
        for edge, (maker, option) in makers.items():
            transfer_ns, gradient_ns = (of[operator][edge][option] for of in (tables.transfer_ns, tables.gradient_ns))
            ready = np.maximum(ready, (transfer_ns + prefix.output_ready[maker][:, None]).max(axis=1))
            returned = tables.backward[maker][option] + prefix.tails[maker]
            after = np.maximum(after, (gradient_ns + returned[:, None]).max(axis=1))
            loads += self._places.edge_loads[operator][edge][option]
        over = ready + forward
        made = over if sums is None else (over[:, :, None] + sums).max(axis=1)
        after = after if sums is None else (after[:, None, :] + sums).max(axis=2)
        waiting = prefix.remaining.tails(self._places, operator, makers)
        tails = np.maximum.reduce([tables.updates[operator], after, waiting])
        back_at = np.maximum(over + backward, made + self._remaining.around[operator])
        chains = np.maximum(back_at + tails, made + self._remaining.to_update_tile[operator]).max(axis=1)
        is_tile = tables.devices[operator] >= 0
        first, last = (np.where(is_tile, times, POS_INF).min(axis=1) for times in (made, tails))
        wholes = first + np.maximum(self._remaining.across[operator] + last, self._remaining.to_update_all[operator])
        computing = loads[:, : self._num_devices].sum(axis=1) + self._least_after[operator]
        shares = -(-computing // self._num_devices)
        bounds = np.maximum.reduce([chains, wholes, loads.max(axis=1), shares, np.full_like(shares, prefix.bound_ns)])
        return Extensions(prefix, bounds, made, tails, loads)

    def extended(self, extensions: Extensions, option: int) -> Prefix:
        before = extensions.before
        operator = len(before.options)
        return Prefix(
            (*before.options, option),
            (*before.output_ready, extensions.output_ready[option]),
            (*before.tails, extensions.tails[option]),
            extensions.loads[option],
            before.remaining.extended(self._places, operator, option, self._makers(before, operator)),
            int(extensions.bounds_ns[option]),
        )

    def _makers(self, prefix: Prefix, operator: int) -> dict[int, tuple[int, int]]:
        """By edge of the next operator: the maker of its input, and that one's split."""
        edges = self._tables.edges[operator]
        return {number: (edge.maker, prefix.options[edge.maker]) for number, edge in enumerate(edges)}


ITERATIONS = 200
SECONDS = 10.0  # after this time the bound is not improved further


def least_batch_ns(problem: Problem, learners: Collection[int] = (1,)) -> float:
    """Bound the time of a batch over all partitions with at most as many tiles of an operator as devices."""
    # Messages and waiting for devices cost nothing here; `StepBounds` includes them, for few operators and devices.
    return min(_LeastStep(problem.of_one_learner(count)).bound_ns() / count for count in learners)


@dataclass(frozen=True)
class _Times:
    """Lower bounds of an operator's times in nanoseconds, by split."""

    computing: NDArray[np.float64]  # all tiles' passes together
    forward: NDArray[np.float64]  # of the fastest tile
    backward: NDArray[np.float64]
    update: float  # least update after a backward pass
    reads: tuple[bool, ...]  # by input: whether every tile reads a part


class _LeastStep:
    # A step takes at least an equal share of all computing, and at least any chain of dependent tiles: forward passes
    # up to some operator, its backward pass, backward passes down to another one, and an update. So it takes at least
    # any weighted average of these, in which each operator has the split that minimises its own terms. The weights with
    # the largest bound are approached by the method of Frank and Wolfe: An algorithm for quadratic programming, 1956.

    def __init__(self, problem: Problem) -> None:
        self._ends = time.perf_counter() + SECONDS
        self._model = model = problem.model()
        self._costs, self._is_roofline = problem.costs, isinstance(problem.costs, RooflineCosts)
        self._num_devices = len(problem.topology.devices)
        self._kinds = problem.topology.of_each_kind
        space = SplitSpace(problem.graph, problem.rules, self._num_devices)
        found: dict[tuple[int, tuple[int, ...]], _Times] = {}  # by what determines an operator's times
        self._operators: list[_Times] = []
        for operator, alike in enumerate(model.tilings.signature_ids):
            key = alike, tuple(model.groups_read[operator])
            if key not in found:
                found[key] = self._times(operator, list(space.degrees(operator)))
            self._operators.append(found[key])
        edges = [edge for edge in edges_of(model.graph) if self._operators[edge.reader].reads[edge.input]]
        self._makers: list[list[int]] = [[] for _ in self._operators]
        self._flows: list[list[int]] = [[] for _ in self._operators]
        for edge in edges:
            self._makers[edge.reader].append(edge.maker)
            if model.has_gradient(model.graph.operators[edge.maker].outputs[edge.output]):
                self._flows[edge.reader].append(edge.maker)
        trained = [group.weights for group in model.weight_groups if group.trainable]
        sizes = [sum(model.graph.weights[name].num_bytes for name in names) for names in trained]
        self._updates = sum(min(model.costs.update_ns(size, device) for device in self._kinds) for size in sizes)

    def bound_ns(self) -> float:
        size = len(self._operators)
        share, weights = 1.0, np.zeros((2, size))  # weights: of the total computing; of each [pass, operator]
        rest = 0.0  # weighted updates after the chains
        best = 0.0
        for iteration in range(ITERATIONS):
            chosen, value = self._least(share, weights)
            best = max(best, value + rest + share * self._updates / self._num_devices)
            computing = sum(each.computing[split] for each, split in zip(self._operators, chosen, strict=True))
            passes, update, length = self._chain(chosen)
            step = 2 / (iteration + 3)
            share, weights, rest = (1 - step) * share, (1 - step) * weights, (1 - step) * rest
            if (computing + self._updates) / self._num_devices >= length:
                share += step
            else:
                weights, rest = weights + step * passes, rest + step * update
            if time.perf_counter() > self._ends:
                break
        return best

    def _least(self, share: float, weights: NDArray[np.float64]) -> tuple[list[int], float]:
        """Return each operator's split with the lowest weighted time, and the sum of these times."""
        chosen, total = [], 0.0
        for each, forward, backward in zip(self._operators, *weights, strict=True):
            terms = share / self._num_devices * each.computing + forward * each.forward + backward * each.backward
            chosen.append(int(terms.argmin()))
            total += float(terms[chosen[-1]])
        return chosen, total

    def _chain(self, chosen: Sequence[int]) -> tuple[NDArray[np.float64], float, float]:
        """Return the longest chain under given splits: mask of its [pass, operator], its update, its length."""
        size = len(chosen)
        forward_ns, backward_ns, makers = np.zeros(size), np.zeros(size), np.full((2, size), -1)
        has_backward = np.array(self._model.has_backward)
        for operator, (each, split) in enumerate(zip(self._operators, chosen, strict=True)):
            forward_ns[operator], backward_ns[operator] = each.forward[split], each.backward[split]
            if before := self._makers[operator]:
                makers[0, operator] = max(before, key=forward_ns.__getitem__)
                forward_ns[operator] += forward_ns[makers[0, operator]]
            last = max(self._flows[operator], key=backward_ns.__getitem__, default=-1)
            if last >= 0 and backward_ns[last] > each.update:
                makers[1, operator], backward_ns[operator] = last, backward_ns[operator] + backward_ns[last]
            else:
                backward_ns[operator] += each.update if has_backward[operator] else 0
        lengths = forward_ns + np.where(has_backward, backward_ns, 0)
        end = int(lengths.argmax())
        passes, update = np.zeros((2, size)), 0.0
        for number in range(2 if has_backward[end] else 1):
            operator = end
            while operator >= 0:
                passes[number, operator] = 1
                update = self._operators[operator].update if number else 0.0
                operator = makers[number, operator]
        return passes, update, float(lengths[end])

    def _times(self, operator: int, splits: Sequence[tuple[int, ...]]) -> _Times:
        model = self._model
        described, rule = model.graph.operators[operator], model.rules.of(model.graph.operators[operator])
        sides = model.graph.output_shape(described)
        if not self._is_roofline:
            tiles = [dict.fromkeys(tiles_of(model.graph, described, Split(each, ())), 1) for each in splits]
            computing, forward, backward = np.array([self._of_boxes(operator, boxes) for boxes in tiles]).T
        else:  # smaller tiles take less time, and splitting never reduces an operator's total time
            together = self._of_boxes(operator, _sizes(sides, [1] * len(sides)))[0]
            if time.perf_counter() > self._ends:
                return _Times(np.array([together]), np.zeros(1), np.zeros(1), 0.0, (False,) * len(described.inputs))
            tiles = [_sizes(sides, degrees) for degrees in splits]
            computing, forward, backward = np.array([self._of_boxes(operator, boxes) for boxes in tiles]).T
            computing = np.maximum(computing, together)
        boxes = {box for of in tiles for box in of} if described.weights else ()
        update = self._update(operator, [rule.weight_boxes(described, model.graph, box) for box in boxes])
        return _Times(computing, forward, backward, update, self._reads(operator, splits))

    def _reads(self, operator: int, splits: Sequence[tuple[int, ...]]) -> tuple[bool, ...]:
        """Return by input whether every tile reads a part, judged by the tiles at both ends of each dimension."""
        graph, described = self._model.graph, self._model.graph.operators[operator]
        most = [max(degrees) for degrees in zip(*splits, strict=True)]
        whole = [(0, side) for side in graph.output_shape(described)]
        found = [True] * len(described.inputs)
        for place, ((_, side), degree) in enumerate(zip(whole, most, strict=True)):
            for number in {0, degree - 1}:
                box = [*whole]
                box[place] = (side * number // degree, side * (number + 1) // degree)
                read = self._model.rules.of(described).input_boxes(described, graph, tuple(box))
                found = [so_far and each is not None for so_far, each in zip(found, read, strict=True)]
        return tuple(found)

    def _of_boxes(self, operator: int, boxes: Mapping[Box, int]) -> tuple[int, int, int]:
        """Return the total time of the given numbers of boxes, and the fastest box's forward and backward time."""
        passes = 2 if self._model.has_backward[operator] else 1
        times = [[self._costs.tile_time(operator, box, device) for device in self._kinds] for box in boxes]
        each = np.array([[(time.forward_ns, time.backward_ns)[:passes] for time in on] for on in times])
        total = each.sum(axis=2).min(axis=1) @ [*boxes.values()]
        return int(total), int(each[:, :, 0].min()), int(each[:, :, 1].min()) if passes == 2 else 0

    def _update(self, operator: int, held: Sequence[Sequence[Box]]) -> float:
        """Return the least update of a device that holds a tile's part of a weight group."""
        model, least = self._model, 0.0
        names = model.graph.operators[operator].weights
        for number in model.groups_read[operator]:
            group = model.weight_groups[number]
            if group.trainable:
                places = [(names.index(name), model.graph.weights[name].itemsize) for name in group.weights]
                size = min(sum(volume(boxes[place]) * itemsize for place, itemsize in places) for boxes in held)
                least = max(least, min(model.costs.update_ns(size, device) for device in self._kinds))
        return least


def _sizes(sides: Sequence[int], degrees: Sequence[int]) -> dict[Box, int]:
    """Return the number of tiles of each size; a size is given as a box that starts at 0."""
    found: list[dict[tuple[int, int], int]] = []
    for side, degree in zip(sides, degrees, strict=True):
        least, larger = divmod(side, degree)
        parts = {(0, least): degree - larger, (0, least + 1): larger}
        found.append({part: count for part, count in parts.items() if count})
    boxes = itertools.product(*(of.items() for of in found))
    return {tuple(part for part, _ in each): math.prod(count for _, count in each) for each in boxes}
