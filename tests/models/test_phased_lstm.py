import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bow.errors import SettingError
from bow.models import PhasedLSTM
from bow.models.recurrent import PhasedLSTMCell


def _rhythm(period: float, shift: float, open_ratio: float, leak: float = 0.001) -> PhasedLSTMCell:
    cell = PhasedLSTMCell(3, 1, leak=leak).double()
    for parameter, value in ((cell.period, period), (cell.shift, shift), (cell.open_ratio, open_ratio)):
        nn.init.constant_(parameter, value)
    return cell


@given(
    time=st.floats(-100, 100),
    period=st.floats(0.5, 50),
    shift=st.floats(0, 50),
    open_ratio=st.floats(0.05, 0.95),
    training=st.booleans(),
)
def test_the_gate_follows_the_paper_s_three_cases(
    time: float, period: float, shift: float, open_ratio: float, training: bool
) -> None:
    cell = _rhythm(period, shift, open_ratio).train(training)
    phase = np.mod(time - shift, period) / period
    if phase < open_ratio / 2:
        expected = 2 * phase / open_ratio
    elif phase < open_ratio:
        expected = 2 - 2 * phase / open_ratio
    else:
        expected = (0.001 if training else 0.0) * phase
    gate = cell.gate(torch.tensor([[time]], dtype=torch.float64))
    assert gate.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_closed_unit_keeps_its_state_and_an_open_one_is_an_ordinary_cell() -> None:
    cell = _rhythm(period=10.0, shift=0.0, open_ratio=0.5, leak=0.0)
    inputs = torch.randn(2, 3, dtype=torch.float64)
    state = (torch.randn(2, 1, dtype=torch.float64), torch.randn(2, 1, dtype=torch.float64))
    closed, opened = (torch.tensor([[time]], dtype=torch.float64) for time in (8.0, 2.5))
    for kept, before in zip(cell(inputs, closed, state), state, strict=True):
        assert torch.equal(kept, before)
    for made, expected in zip(cell(inputs, opened, state), cell.cell(inputs, state), strict=True):
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-12)


def test_a_half_open_unit_goes_half_of_the_way() -> None:
    cell = _rhythm(period=10.0, shift=0.0, open_ratio=0.5)
    inputs, zeros = torch.randn(2, 3, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    half = torch.tensor([[1.25]], dtype=torch.float64)
    for made, whole in zip(cell(inputs, half), cell.cell(inputs, (zeros, zeros)), strict=True):
        torch.testing.assert_close(made, whole / 2, rtol=0, atol=1e-12)


def test_tokens_without_times_come_one_unit_apart() -> None:
    model = PhasedLSTM(5, hidden=8, periods=(1.0, 10.0))
    tokens = torch.randint(5, (3, 4))
    positions = torch.arange(4.0).expand(3, 4)
    assert torch.equal(model(tokens), model((tokens, positions)))
    assert not torch.equal(model(tokens), model((tokens, 1.5 * positions)))


def test_the_period_and_the_other_parts_of_a_rhythm_are_learned() -> None:
    torch.manual_seed(0)
    model = PhasedLSTM(5, hidden=16, periods=(1.0, 10.0), open_ratio=0.5)
    model((torch.randint(5, (3, 6)), torch.rand(3, 6).cumsum(1))).square().mean().backward()
    for cell in model.cells:
        for parameter in (cell.period, cell.shift, cell.open_ratio):
            assert parameter.grad.abs().sum() > 0


def test_periods_are_drawn_between_their_bounds() -> None:
    torch.manual_seed(0)
    periods = PhasedLSTMCell(3, 1000, periods=(2.0, 200.0)).period.detach()
    assert 2 <= periods.min() < 4
    assert 100 < periods.max() <= 200
    assert 15 < periods.median() < 27


@pytest.mark.parametrize("periods", [(0.0, 1.0), (3.0, 2.0)])
def test_impossible_periods_are_refused(periods: tuple[float, float]) -> None:
    with pytest.raises(SettingError, match="periods must be positive and in ascending order"):
        PhasedLSTM(5, periods=periods)


@pytest.mark.parametrize("open_ratio", [0.0, 1.0, -0.5])
def test_impossible_open_ratios_are_refused(open_ratio: float) -> None:
    with pytest.raises(SettingError, match=f"open_ratio must lie between 0 and 1, got {open_ratio}"):
        PhasedLSTM(5, open_ratio=open_ratio)
