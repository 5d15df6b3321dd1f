"""What can be set about tuning, and what cannot."""

import math
from typing import Any

import pytest

from bow.errors import SettingError
from bow.tuner import EngineSetting, Tuner


def test_a_choice_can_be_pinned() -> None:
    assert Tuner(pinned=EngineSetting("graph", learners=4)).pinned == EngineSetting("graph", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "speed"}, 'objective must be "throughput" or "goodput", got \'speed\''),
        ({"threshold": 0}, "threshold must be above 0 and below 1, got 0; 0.03 is 3 %"),
        ({"threshold": math.nan}, "threshold must be .*above 0 and below 1, got nan"),
        ({"share": 1.5}, "share must be above 0 and at most 1, got 1.5; 0.05 is 5 % of the training"),
        ({"window_s": 0.0}, "window_s must be .*above 0, got 0.0"),
        ({"window_s": math.inf}, "window_s must be .*above 0, got inf"),
        ({"online": "yes"}, "online must be True or False, got 'yes'"),
        ({"cache": None}, "cache must be True or False, got None"),
        (
            {"pinned": "graph"},
            r"pinned must be an EngineSetting such as EngineSetting\(\"graph\", learners=4\), got 'graph'",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Tuner(**arguments)
