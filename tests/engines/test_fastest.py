from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bow.engines import fastest

CPU = torch.device("cpu")
MEASURED = fastest.fastest
"""Which all tests replace."""


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """What is chosen of ways by the seconds that they take, and what has run for it."""
    monkeypatch.setattr(fastest, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(fastest, "_time", lambda run, device: run())

    def choose(**seconds: float | None) -> tuple[str, list[str]]:
        ran = []

        def case(name: str) -> Callable[[], float]:
            def run() -> float:
                ran.append(name)
                if (found := seconds[name]) is None:
                    raise RuntimeError("out of memory")
                return found

            return run

        return MEASURED([*seconds], case, CPU, "a product"), ran

    return choose


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"first": 1.0, "second": 0.3, "third": 0.35}, "second"),
        ({"first": 1.0, "second": 0.8}, "first"),
        ({"first": 1.0, "second": None, "third": 0.1}, "third"),
        ({"first": 1.0, "second": None}, "first"),
        ({"first": None, "second": None}, "first"),
    ],
)
def test_the_fastest_is_chosen_and_the_first_unless_another_is_clearly_faster(
    choose: Callable[..., tuple[str, list[str]]], seconds: dict[str, float | None], chosen: str
) -> None:
    assert choose(**seconds)[0] == chosen


def test_what_was_measured_is_kept(choose: Callable[..., tuple[str, list[str]]]) -> None:
    assert choose(first=1.0, second=0.3)[0] == "second"
    assert choose(first=0.3, second=1.0) == ("second", [])
    assert choose(first=0.3, third=1.0)[0] == "first"


def test_without_a_place_to_keep_it_the_choice_counts_nevertheless(
    choose: Callable[..., tuple[str, list[str]]], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file")
    assert choose(first=1.0, second=0.3)[0] == "second"


def test_what_is_far_behind_runs_twice_at_most(choose: Callable[..., tuple[str, list[str]]]) -> None:
    assert choose(first=0.1, second=2.0)[1].count("second") == 2


def test_nothing_that_surrounds_the_question_reaches_the_measurement(
    choose: Callable[..., tuple[str, list[str]]],
) -> None:
    def ask(given: torch.Tensor) -> torch.Tensor:
        def case(name: str) -> Callable[[], float]:
            ones = torch.ones(2)
            assert not torch._C._functorch.is_functorch_wrapped_tensor(ones + 1)
            return lambda: {"first": 1.0, "second": 0.3}[name]

        assert MEASURED(["first", "second"], case, CPU) == "second"
        return given

    torch.vmap(torch.func.grad(lambda given: ask(given).sum()))(torch.ones(2, 3))
