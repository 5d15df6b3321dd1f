"""All algorithms give the same timeline as the one from nothing in Python, whatever is proposed."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.planning.proposal_chains import check_chain


@given(st.randoms(use_true_random=False))
def test_all_algorithms_give_the_same_timeline(source: random.Random) -> None:
    check_chain(source, most=4)
