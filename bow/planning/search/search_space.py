"""Search space: a fixed set of splits for every operator, so that uniform proposals are symmetric."""

import functools
import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.rules.rule import Rules

DeviceLists: TypeAlias = Literal["auto", "every", "distinct", "regular"]  # candidate device lists, see `SplitSpace`
MAX_DEVICES_ALL_LISTS = 4  # up to this many devices: all lists without repetition (24 for 4 devices, 40,320 for 8)
MAX_DEVICES_ALL_DEGREES = 8  # up to this many devices: all degrees and all evenly spaced lists
MAX_SPLIT_DIMENSIONS = 2  # with more than `MAX_DEVICES_ALL_DEGREES` devices: the most dimensions split at once
NUM_RANDOM = 4  # random lists of each length in addition to the regular ones


class SplitSpace:
    """All candidate splits by operator: degrees of its dimensions, and devices of its tiles."""

    # every: any devices; distinct: no device twice; regular: evenly spaced devices, assigned to tiles along the
    # dimensions in any order, plus a few fixed random lists; auto: every with 2 devices, distinct with up to 4, else
    # regular.

    def __init__(
        self,
        graph: OperatorGraph,
        rules: Rules,
        num_devices: int,
        *,
        devices: DeviceLists = "auto",
        even: bool = False,
        max_tiles: int | None = None,
        including: Sequence[Sequence[Split]] = (),
    ) -> None:
        self.num_devices = num_devices
        self._devices, self._even, self._max_tiles = devices, even, max_tiles or num_devices
        lists = functools.cache(lambda degrees: _Lists(device_lists(degrees, num_devices, devices)))
        kinds: dict[tuple[tuple[int, bool], ...], _Splits] = {}
        self._of: list[_Splits] = []
        self._extra: list[tuple[Split, ...]] = []
        for number, operator in enumerate(graph.operators):
            dimensions = rules.dimensions(operator, graph)
            key = tuple((each.size, each.kind is not None) for each in dimensions)
            if key not in kinds:
                kinds[key] = _Splits(degrees_of(key, max_tiles or num_devices, even, num_devices), lists)
            self._of.append(kinds[key])
            wanted = dict.fromkeys(partition[number] for partition in including)
            self._extra.append(tuple(split for split in wanted if split not in kinds[key]))

    @property
    def num_operators(self) -> int:
        return len(self._of)

    @property
    def num_partitions(self) -> int:
        return math.prod(map(self.count, range(self.num_operators)))

    @property
    def description(self) -> str:
        """Describe the splits, as the end of `partitions with ...`."""
        sizes = " of equal sizes" if self._even else ""
        lists = {
            "every": "on any devices",
            "distinct": "on different devices",
            "regular": f"on evenly spaced devices or on one of {NUM_RANDOM} lists drawn at random",
        }[resolve_device_lists(self._devices, self.num_devices)]
        is_limited = self.num_devices > MAX_DEVICES_ALL_DEGREES
        split = f", at most {MAX_SPLIT_DIMENSIONS} dimensions split" if is_limited else ""
        return f"at most {self._max_tiles} tiles{sizes} an operator, {lists}{split}"

    @property
    def num_neighbours(self) -> int:
        """Number of partitions that differ from a given one in one operator."""
        return sum(self.count(operator) - 1 for operator in range(self.num_operators))

    def count(self, operator: int) -> int:
        return len(self._of[operator]) + len(self._extra[operator])

    def rank(self, operator: int) -> int:
        return len(self.split_at(operator, 0).degrees)

    def split_at(self, operator: int, index: int) -> Split:
        regular = len(self._of[operator])
        return self._of[operator][index] if index < regular else self._extra[operator][index - regular]

    def degrees(self, operator: int) -> Iterator[tuple[int, ...]]:
        return iter(dict.fromkeys([*self._of[operator].degrees, *(split.degrees for split in self._extra[operator])]))

    def splits(self, operator: int) -> Iterator[Split]:
        return (self.split_at(operator, index) for index in range(self.count(operator)))

    def contains(self, operator: int, split: Split) -> bool:
        return split in self._of[operator] or split in self._extra[operator]

    def draw(self, operator: int, source: random.Random) -> Split:
        return self.split_at(operator, source.randrange(self.count(operator)))

    def draw_with_degrees(self, operator: int, degrees: tuple[int, ...], source: random.Random) -> Split | None:
        return self._of[operator].draw_with_degrees(degrees, source)

    def draw_on_devices(self, operator: int, devices: Sequence[int], source: random.Random) -> Split | None:
        """Draw one of an operator's splits whose tiles use exactly these devices; None if there is none."""
        return self._of[operator].draw_on_devices(frozenset(devices), source)

    def random_partition(self, source: random.Random) -> tuple[Split, ...]:
        return tuple(self.draw(operator, source) for operator in range(self.num_operators))


class _Lists:
    def __init__(self, lists: Sequence[tuple[int, ...]]) -> None:
        self.ordered = lists
        self.members = frozenset(lists)


class _Splits:
    """Splits of operators with the same dimensions, generated on demand: there may be many thousands."""

    def __init__(self, degrees: Sequence[tuple[int, ...]], lists: Callable[[tuple[int, ...]], _Lists]) -> None:
        found = {each: lists(tuple(degree for degree in each if degree > 1)) for each in degrees}
        self._lists = {each: of for each, of in found.items() if of.members}
        self.degrees = list(self._lists)
        self._ends = [*itertools.accumulate(len(of.ordered) for of in self._lists.values())]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Split:
        place = bisect_right(self._ends, index)
        degrees = self.degrees[place]
        return Split(degrees, self._lists[degrees].ordered[index - self._ends[place]])  # negative: from the part's end

    def draw_with_degrees(self, degrees: tuple[int, ...], source: random.Random) -> Split | None:
        return Split(degrees, source.choice(self._lists[degrees].ordered)) if degrees in self._lists else None

    def draw_on_devices(self, devices: frozenset[int], source: random.Random) -> Split | None:
        found = self._on_devices.get(devices)
        return self[source.choice(found)] if found else None

    @functools.cached_property
    def _on_devices(self) -> dict[frozenset[int], list[int]]:
        """Positions of splits by the exact set of devices of their tiles."""
        found: dict[frozenset[int], list[int]] = {}
        for place in range(len(self)):
            found.setdefault(frozenset(self[place].devices), []).append(place)
        return found

    def __contains__(self, split: object) -> bool:
        return (
            isinstance(split, Split)
            and split.degrees in self._lists
            and split.devices in self._lists[split.degrees].members
        )


def resolve_device_lists(which: DeviceLists, num_devices: int) -> Literal["every", "distinct", "regular"]:
    if which != "auto":
        return which
    return "every" if num_devices <= 2 else "distinct" if num_devices <= MAX_DEVICES_ALL_LISTS else "regular"


def device_lists(
    degrees: tuple[int, ...], num_devices: int, which: DeviceLists = "auto"
) -> tuple[tuple[int, ...], ...]:
    """Return the distinct candidate device lists of a split with these degrees."""
    tiles = math.prod(degrees)
    kind = resolve_device_lists(which, num_devices)
    if kind == "every":
        return tuple(itertools.product(range(num_devices), repeat=tiles))
    if kind == "distinct":
        return tuple(itertools.permutations(range(num_devices), tiles))
    spread = (each for devices in _spaced(tiles, num_devices) for each in device_assignments(devices, degrees))
    turns = range(NUM_RANDOM if 1 < tiles <= num_devices else 0)
    sources = (random.Random(f"{tiles}/{num_devices}/{turn}") for turn in turns)  # the same in every call
    drawn = (tuple(source.sample(range(num_devices), tiles)) for source in sources)
    return tuple(dict.fromkeys(itertools.chain(spread, drawn)))


def _spaced(tiles: int, num_devices: int) -> Iterator[range]:
    """Yield evenly spaced devices; with more than 8 devices only lists that tile them without overlap."""
    for stride in range(1, num_devices + 1):
        span = tiles * stride
        if num_devices <= MAX_DEVICES_ALL_DEGREES:
            starts = [*range(num_devices - span + stride)]
        elif num_devices % stride == 0:
            blocks = range(0, num_devices - span + 1, span)
            starts = [block + offset for block in blocks for offset in range(stride)]
        else:
            continue
        yield from (range(start, start + span, stride) for start in starts)


def device_assignments(devices: Sequence[int], degrees: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Assign devices to tiles along the dimensions, in each order of these."""
    for order in itertools.permutations(range(len(degrees))):
        weights = [math.prod(degrees[later] for later in order[order.index(dim) + 1 :]) for dim in range(len(degrees))]
        places = itertools.product(*(range(degree) for degree in degrees))
        yield tuple(devices[sum(map(int.__mul__, place, weights))] for place in places)


def degrees_of(
    dimensions: Sequence[tuple[int, bool]], max_tiles: int, even: bool, num_devices: int
) -> list[tuple[int, ...]]:
    """Return all degrees with at most this many tiles."""
    many = num_devices > MAX_DEVICES_ALL_DEGREES
    candidates = [*range(1, max_tiles + 1)]
    if many:  # only 1 or 3 times a power of two, and the number of tiles itself
        candidates = [each for each in candidates if each == max_tiles or each // (each & -each) in (1, 3)]
    found: list[tuple[int, ...]] = [()]
    for size, may_be_split in dimensions:
        ahead = [degree for degree in candidates if degree <= size and not (even and size % degree)]
        choices = ahead if may_be_split and ahead else [1]
        found = [(*before, degree) for before in found for degree in choices if math.prod(before) * degree <= max_tiles]
    return [each for each in found if not many or sum(degree > 1 for degree in each) <= MAX_SPLIT_DIMENSIONS]
