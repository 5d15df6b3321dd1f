import pytest
import torch

from bow.data.randomness import PrivateRandom


def _draw(random: PrivateRandom, count: int) -> list[float]:
    with random.active():
        return torch.rand(count).tolist()


def test_goes_on_where_it_stopped() -> None:
    pieces, whole = PrivateRandom(1), PrivateRandom(1)
    assert _draw(pieces, 3) + _draw(pieces, 3) == _draw(whole, 3) + _draw(whole, 3)
    assert _draw(pieces, 3) != _draw(PrivateRandom(1), 3)


def test_leaves_the_global_random_numbers_untouched() -> None:
    before = torch.get_rng_state()
    _draw(PrivateRandom(1), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_error_leaves_the_global_random_numbers_untouched() -> None:
    before = torch.get_rng_state()
    with pytest.raises(TypeError), PrivateRandom(1).active():
        torch.rand("three")  # type: ignore[call-overload]
    assert torch.equal(torch.get_rng_state(), before)


def test_ignores_the_global_random_numbers() -> None:
    torch.manual_seed(1)
    first = _draw(PrivateRandom(5), 3)
    torch.manual_seed(2)
    assert _draw(PrivateRandom(5), 3) == first
