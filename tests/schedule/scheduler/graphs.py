"""Random dependencies and times, for properties that hold for all; and the graph of an LSTM."""

from __future__ import annotations

from hypothesis import strategies as st

Dependencies = list[list[int]]


@st.composite
def dependencies(draw: st.DrawFn, most: int = 24) -> Dependencies:
    """By operator: earlier ones that it depends on, now and then shuffled so that numbers are in no order."""
    count = draw(st.integers(1, most))
    before = [
        draw(st.lists(st.integers(0, index - 1), max_size=4, unique=True)) if index else [] for index in range(count)
    ]
    names = draw(st.permutations(range(count)))
    shuffled: Dependencies = [[] for _ in range(count)]
    for index, earlier in enumerate(before):
        shuffled[names[index]] = [names[each] for each in earlier]
    return shuffled


def listed(elements: st.SearchStrategy, before: Dependencies) -> st.SearchStrategy:
    """One element for each operator."""
    return st.lists(elements, min_size=len(before), max_size=len(before))


def times(before: Dependencies, cores: int, least: int = 0) -> st.SearchStrategy:
    """By operator, by number of threads: any times at all, also such as no operator has."""
    numbers = st.integers(least, 30)
    return listed(st.fixed_dictionaries(dict.fromkeys(range(1, cores + 1), numbers)), before)


def grid(layers: int, steps: int) -> Dependencies:
    """The cells of an LSTM: cell (layer, step) is operator `layer * steps + step`, behind the one below and before."""
    return [
        [cell - steps] * (cell >= steps) + [cell - 1] * (cell % steps > 0) for cell in range(layers * steps)
    ]  # fmt: skip
