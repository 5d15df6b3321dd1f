"""A lower bound of the step time over all partitions, for every plan."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.box import Box, volume
from bow.planning.problem.partition import Split, tiles_of
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace
from bow.planning.search.tile_tables import edges_of
from bow.planning.simulator.costs import RooflineCosts

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
        self._kinds = tuple({device.kind: number for number, device in enumerate(problem.topology.devices)}.values())
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
