"""The tests on a GPU, by pytest: `pytest -m gpu tests/gpu`; `make gpu` runs them without it.

In tiny form, those that make sense there run on the fake device as well.
"""

from __future__ import annotations

import pytest

from benchmarks.gpu.machine import open_machine
from tests.gpu.case import Case, Skipped
from tests.gpu.groups import every_case


@pytest.mark.gpu
@pytest.mark.parametrize("case", every_case(fake=False), ids=str)
def test_on_a_gpu(case: Case) -> None:
    try:
        case.run(open_machine(fake=False))
    except Skipped as reason:
        pytest.skip(str(reason))


# What the compiler uses when it is first imported.
@pytest.mark.sample(7, 3)
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")
@pytest.mark.parametrize("case", every_case(fake=True), ids=str)
def test_on_the_fake_device(case: Case) -> None:
    case.run(open_machine(fake=True))
