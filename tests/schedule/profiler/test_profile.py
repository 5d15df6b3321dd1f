"""What operators take: summaries, what is asked of them, and profiles on disk."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import ScheduleError
from bow.schedule.profiler import OperatorTime, Profile

SECONDS = st.floats(0, 10, allow_nan=False)
TIMES = st.builds(OperatorTime, SECONDS, SECONDS, st.integers(1, 1000))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    count = draw(st.integers(0, 4))
    of_each = st.tuples(*[TIMES] * count)
    texts = st.tuples(*[st.text(max_size=8)] * count)
    times = draw(st.dictionaries(st.integers(1, 64), of_each, min_size=1, max_size=3))
    return Profile(draw(texts), draw(texts), times, draw(st.text(max_size=8)))


TWO = Profile(
    names=("mm", "relu", "mm"),
    modules=("fc", "", "fc"),
    times={
        1: (OperatorTime(4e-6, 1e-6, 9), OperatorTime(1e-6, 0.0, 9), OperatorTime(4e-6, 0.0, 9)),
        4: (OperatorTime(2e-6, 0.0, 9), OperatorTime(3e-6, 0.0, 9), OperatorTime(1e-6, 0.0, 9)),
    },
    hardware="a machine",
)


@given(st.lists(SECONDS, min_size=1, max_size=30))
def test_a_summary_is_median_and_distance_of_quartiles(seconds: list[float]) -> None:
    found = OperatorTime.of(seconds)
    low, median, high = np.percentile(seconds, [25, 50, 75])
    assert found.median_s == pytest.approx(median, abs=1e-12)
    assert found.spread_s == pytest.approx(high - low, abs=1e-12)
    assert found.repeats == len(seconds)


@given(profiles())
def test_json_gives_the_same_profile_back(profile: Profile) -> None:
    assert Profile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "", "the profile is not JSON"),
        (lambda text: text[:-9], "the profile is not JSON"),
        (lambda text: "[]", 'the text is not a "bow profile"'),
        (lambda text: "null", 'the text is not a "bow profile"'),
        (
            lambda text: text.replace('"version": 1', '"version": 2'),
            "the profile has version 2, this bow reads 1; measure again$",
        ),
        (lambda text: text.replace("bow profile", "bow schedule"), 'the text is not a "bow profile"'),
        (lambda text: text.replace('"hardware"', '"software"'), "KeyError: 'hardware'"),
        (lambda text: text.replace('"repeats": 9', '"repeats": 0'), "are not a valid measurement"),
        (lambda text: text.replace("4e-06", "-1"), "are not a valid measurement"),
        (lambda text: text.replace("4e-06", "NaN"), "are not a valid measurement"),
        (lambda text: text.replace('"repeats": 9', '"repeats": Infinity'), "are not a valid measurement"),
        (lambda text: text.replace("4e-06", "1e999"), "are not a valid measurement"),
        (lambda text: text.replace("4e-06", '"long"'), "could not convert string to float"),
        (lambda text: text.replace('"spread_s": 0.0', '"spread_s": null'), "TypeError"),
        (lambda text: text.replace('"1": [', '"one": ['), "invalid literal for int"),
        (lambda text: json.dumps({**json.loads(text), "times": [1]}), "AttributeError"),
        (lambda text: text.replace('"relu", ', ""), "2 operators but modules or times for 3"),
    ],
)
def test_what_is_damaged_is_refused_in_a_sentence(damage: Any, message: str) -> None:
    assert damage(TWO.to_json()) != TWO.to_json()
    with pytest.raises(ScheduleError, match=message) as raised:
        Profile.from_json(damage(TWO.to_json()))
    assert str(raised.value).endswith(("measure again", "give one that Profile.to_json wrote"))


def test_times_are_those_of_the_most_threads_that_were_measured_below() -> None:
    assert TWO.threads == (1, 4)
    assert [TWO.nanoseconds(n) for n in (1, 3, 4, 9)] == [[4000, 1000, 4000]] * 2 + [[2000, 3000, 1000]] * 2
    with pytest.raises(ScheduleError, match="no times for 0 threads or fewer, only for 1, 4"):
        TWO.nanoseconds(0)


def test_curves_have_a_time_for_every_number_of_threads() -> None:
    assert TWO.curves() == [{1: 4000, 4: 2000}, {1: 1000, 4: 3000}, {1: 4000, 4: 1000}]


def test_the_longest_come_first_and_of_equal_ones_the_earlier() -> None:
    assert TWO.longest(2, threads=1) == [0, 2]
    assert TWO.longest(9, threads=4) == [1, 0, 2]


def test_a_step_takes_what_its_operators_take() -> None:
    assert TWO.step_s == pytest.approx({1: 9e-6, 4: 6e-6})


def test_every_operator_needs_a_time_for_every_number_of_threads() -> None:
    with pytest.raises(ScheduleError, match="3 operators but modules or times for 2"):
        dataclasses.replace(TWO, times={**TWO.times, 2: TWO.times[1][:2]})
