"""Steps at random by placed strategies on two devices."""

import pytest

from tests.training.placed_steps import fitting, outcomes, trains


@pytest.mark.nightly
@pytest.mark.usefixtures("_no_report")
@pytest.mark.parametrize("chunk", range(4))
def test_two_devices_train_steps_at_random_as_plain_pytorch_does_or_say_why_not(chunk: int) -> None:
    cases = [case for case in map(fitting, range(50 * chunk, 50 * (chunk + 1))) if trains(case)]
    found = dict(zip(cases, outcomes(cases), strict=True))
    assert not {case: what for case, what in found.items() if what.startswith("wrong")}
