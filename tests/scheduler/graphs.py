"""Random dependencies, for properties that hold for all."""

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
