"""What keeps operators apart that disturb each other, where decisions are repeated."""

from collections.abc import Collection, Sequence

from bow.schedule.scheduler.disturbance import pair
from bow.schedule.scheduler.start import Start


def kept_apart(
    turns: Sequence[Start],
    dependencies: Sequence[Collection[int]],
    kinds: Sequence[str],
    pairs: Collection[tuple[str, str]],
) -> tuple[tuple[int, int], ...]:
    """What operators wait for so that types that disturb each other stay apart: `after` of a schedule.

    A scheduler that avoids such pairs starts the one when the other is over. Where its decisions are repeated,
    operators take other times than were predicted, and the two may meet after all. So the one that was started later
    waits for the other, unless it does so anyway: it depends on it, has one of its cores behind it, or waits for what
    comes behind it.

    Example:
        >>> turns = [Start(0, 0), Start(1, 1), Start(2, 1), Start(3, 0)]
        >>> kinds = ["conv", "add", "conv", "add"]
        >>> kept_apart(turns, [(), (), (), ()], kinds, pairs={("add", "conv")})
        ((1, 0), (3, 2))
    """
    numbers = {turn.operator: number for number, turn in enumerate(turns)}
    over: list[int] = []  # by turn: itself and those that are over before it, as the bits of a whole number
    last: dict[tuple[int, bool], int] = {}  # by core, or executor: the turn that had it last
    of_kind: dict[str, int] = {}
    found: list[tuple[int, int]] = []
    for number, turn in enumerate(turns):
        places = [(core, turn.sibling) for core in turn.cores or (turn.executor,)]
        behind = {last[place] for place in places if place in last}
        behind |= {numbers[earlier] for earlier in dependencies[turn.operator]}
        known = 1 << number
        for earlier in behind:
            known |= over[earlier]
        kind = kinds[turn.operator]
        apart = 0
        for other, started in of_kind.items():
            apart |= started if pair(kind, other) in pairs else 0
        while left := apart & ~known:
            latest = left.bit_length() - 1
            found.append((turn.operator, turns[latest].operator))
            known |= over[latest]
        over.append(known)
        of_kind[kind] = of_kind.get(kind, 0) | 1 << number
        last.update(dict.fromkeys(places, number))
    return tuple(found)
