"""Times of tiles that several have measured."""

from benchmarks.tile_times import mean_times, median_times
from bow.planning.simulator.costs import TileTime, TileTimes


def test_mean_of_devices_leaves_out_what_not_all_have_measured() -> None:
    one = TileTimes({"a": TileTime(10, 20), "b": TileTime(1, 1)}, {"graph": 1.0, "other": 5.0})
    other = TileTimes({"a": TileTime(20, 40)}, {"graph": 2.0})
    assert mean_times([one, other]) == TileTimes({"a": TileTime(15, 30)}, {"graph": 1.5})


def test_median_of_turns_is_not_moved_by_one_of_them() -> None:
    turns = [TileTimes({"a": TileTime(time, 2 * time)}, {"graph": time / 10}) for time in (10, 12, 500)]
    assert median_times(turns) == TileTimes({"a": TileTime(12, 24)}, {"graph": 1.2})


def test_medians_add_up_to_what_a_turn_takes() -> None:
    """Each turn is interrupted for 90 ns, in another tile."""
    turns = [TileTimes({f"{tile}": TileTime(10, 10 + 90 * (tile == turn)) for tile in range(3)}) for turn in range(3)]
    assert median_times(turns).tiles == {f"{tile}": TileTime(25, 25) for tile in range(3)}
