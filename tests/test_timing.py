"""Timing of cases in turns, on a simulated clock."""

import pytest

from bow.timing import WARM_UP, ratio_in_turns, time_in_turns


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Step:
    """Takes a number of seconds, and longer while the machine is busy."""

    def __init__(self, name: str, seconds: float, clock: Clock, log: list[str]) -> None:
        self._name, self._seconds, self._clock, self._log = name, seconds, clock, log

    def run(self) -> None:
        self._clock.now += self._seconds
        self._log.append(self._name)

    def rest(self) -> None:
        self._log.append(f"{self._name} rests")


def raced(turns: int, window_s: float, seconds: dict[str, float]) -> tuple[dict[str, tuple[float, ...]], list[str]]:
    clock, log = Clock(), list[str]()
    steps = {name: Step(name, own, clock, log) for name, own in seconds.items()}
    return time_in_turns(steps, turns=turns, window_s=window_s, clock=clock), log


def test_seconds_of_a_step_are_those_of_the_window_over_its_steps() -> None:
    found, _ = raced(3, 10.0, {"a": 3.0, "b": 40.0})
    assert found == {"a": (3.0, 3.0, 3.0), "b": (40.0, 40.0, 40.0)}


def test_all_have_their_turn_before_any_has_the_next_and_every_other_in_reverse() -> None:
    _, log = raced(2, 0.0, {"a": 1.0, "b": 1.0})
    first = [name for name in "ab" for _ in range(WARM_UP + 1)]
    assert [name for name in log if name in "ab"] == [*first, "b", "b", "a", "a"]


def test_no_case_is_awake_while_another_has_its_turn() -> None:
    _, log = raced(1, 0.0, {"a": 1.0, "b": 1.0})
    assert log.index("a rests") < log.index("b")
    assert log[-2:] == ["a rests", "b rests"]


def test_all_rest_where_one_fails() -> None:
    clock, log = Clock(), list[str]()

    class Failing(Step):
        def run(self) -> None:
            raise RuntimeError("no step")

    steps = {"good": Step("good", 1.0, clock, log), "bad": Failing("bad", 1.0, clock, log)}
    with pytest.raises(RuntimeError, match="no step"):
        time_in_turns(steps, turns=2, window_s=0.0, clock=clock)
    assert log[-2:] == ["good rests", "bad rests"]


def test_turns_are_told_of() -> None:
    told: list[str] = []
    time_in_turns({"a": Step("a", 1.0, Clock(), [])}, turns=2, window_s=0.0, progress=told.append)
    assert told == ["turn 1 of 2, 1 take part", "turn 2 of 2, 1 take part"]


def test_a_ratio_is_that_of_windows_of_the_same_turn() -> None:
    assert ratio_in_turns((1.0, 9.0, 3.0), (2.0, 18.0, 2.0)) == 0.5
