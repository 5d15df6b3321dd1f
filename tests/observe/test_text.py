"""Numbers as text."""

import pytest

from bow.observe.text import count_text, duration_text, learners_text, metric_text, rate_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(1234567), "1,234,567"),
        (metric_text("accuracy", 0.97222), "97.22 %"),
        (metric_text("loss", 0.123456), "0.1235"),
        (metric_text("error", 12345.6), "12,346"),
        (metric_text("loss", float("nan")), "nan"),
        (rate_text(12345.6), "12,346 samples/s"),
        (rate_text(1.23), "1.2 samples/s"),
        (duration_text(0.0123), "12 ms"),
        (duration_text(4.56), "4.6 s"),
        (duration_text(75), "1 min 15 s"),
        (duration_text(3700), "1 h 1 min"),
        (duration_text(180000), "2 d 2 h"),
        (learners_text(1), "1 learner"),
        (learners_text(4), "4 learners"),
        (learners_text(10**6), "1,000,000 learners"),
    ],
)
def test_numbers_are_readable(text: str, expected: str) -> None:
    assert text == expected
