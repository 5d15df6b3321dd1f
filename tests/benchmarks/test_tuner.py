from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import main
from benchmarks.environment import inspect_environment
from benchmarks.tuner.comparison import Calibrated, Comparison, calibrated_from
from benchmarks.tuner.exhaustive import Tried, everything, try_all
from benchmarks.tuner.pairs import MOST_LEARNERS, PAIRS
from benchmarks.tuner.report import as_dict, line, markdown, reached
from benchmarks.tuner.turns import median_interval, ratio, take_turns
from bow.engines.choice import MIN_ROUNDS_PER_EPOCH
from bow.errors import SettingError
from bow.training.tuning import Tuned
from bow.tuner import EngineSetting, Trial, TrialResult

ONE, TWO, THREE = EngineSetting("graph", 1), EngineSetting("graph", 2), EngineSetting("graph", 3)
EQUAL = [100.0] * 10
VALUES = {
    "command": "python -m benchmarks tuner",
    "date": "2026-01-02",
    "seconds": 1.0,
    "settings": {
        "run_s": 600.0,
        "passes": 3,
        "first_s": 0.2,
        "stint_s": 0.4,
        "compile_s": 40.0,
        "turns": 10,
        "threads": 2,
        "most": 8,
        "cold": True,
    },
}


class FakeTrials:
    """Settings have the throughput that a table says; those with none fail."""

    def __init__(self, speeds: dict[EngineSetting, float], compile_s: float = 0.0) -> None:
        self.speeds = speeds
        self.compile_s = compile_s
        self.asked: list[EngineSetting] = []

    def run(self, trial: Trial) -> TrialResult:
        self.asked.append(trial.setting)
        speed = self.speeds.get(trial.setting)
        if speed is None:
            return TrialResult(trial.setting, failure="it does not run")
        return TrialResult(trial.setting, [speed] * trial.repeats, compile_s=self.compile_s)


def comparison(
    choice: EngineSetting | None = TWO, speeds: list[float] | None = None, seconds: float = 20.0
) -> Comparison:
    """The choice ran at these speeds in turn with `TWO`, which ran at 100; or it is `TWO`."""
    rows = [
        {"engine": "graph", "learners": 1, "threads": 1, "status": "measured", "why": "50.0%", "repeats": 5},
        {"engine": "graph", "learners": 2, "threads": 1, "status": "chosen", "why": "the highest", "repeats": 5},
    ]
    rates = {ONE: [100.0, 110.0, 90.0], TWO: [200.0, 190.0, 210.0]}
    turns = {ONE: [80.0] * 10, TWO: EQUAL}
    if choice is not None and speeds is not None:
        turns[choice] = speeds
    tried = Tried(
        rates, {EngineSetting("fused", 2): "it runs as eager"}, {EngineSetting("fused", 8): "compiling took 50 s"}
    )
    return Comparison("lenet_16", 600.0, tried, Calibrated(choice, seconds, "took 20.0 s", rows), turns, {})


def test_there_are_eight_pairs_with_data_for_eight_learners_each() -> None:
    assert len(PAIRS) == 8
    for pair in PAIRS.values():
        assert pair.num_samples // (pair.batch_size * MIN_ROUNDS_PER_EPOCH) >= MOST_LEARNERS


def test_everything_is_every_engine_with_every_number_of_learners_and_threads() -> None:
    found = everything(most=8, threads=2, cores=2)
    assert len(set(found)) == len(found)
    for engine in ("eager", "streams", "fused"):
        learners = {(each.learners, each.threads) for each in found if each.engine == engine}
        assert learners == {(count, threads) for count in (1, 2, 3, 4, 6, 8) for threads in (1, 2)}
    for engine in ("graph", "graph+compiled"):  # with two learners on two cores, each has one thread anyway
        learners = {(each.learners, each.threads) for each in found if each.engine == engine}
        assert learners == {(1, 2), *((count, 1) for count in (1, 2, 3, 4, 6, 8))}
    assert EngineSetting("streams", 5) in everything(most=5, threads=2, cores=2)


def test_a_comparison_without_numbers_of_learners_is_refused() -> None:
    with pytest.raises(SettingError, match="at least 2 learners"):
        everything(most=1, threads=2)


def test_only_what_comes_close_is_tried_again() -> None:
    trials = FakeTrials({ONE: 100.0, TWO: 130.0, THREE: 90.0})
    settings = [ONE, TWO, THREE, EngineSetting("eager")]
    tried = try_all(trials, settings, passes=3, first_s=0.1, stint_s=0.1, compile_s=1.0)  # type: ignore[arg-type]
    assert [len(tried.rates[setting]) for setting in (ONE, TWO, THREE)] == [4, 4, 2]
    assert tried.by_speed == [TWO, ONE, THREE]
    assert tried.failures == {EngineSetting("eager"): "it does not run"}


def test_compiling_every_number_of_learners_has_a_limit_that_is_shown() -> None:
    settings = [EngineSetting("fused", count) for count in (1, 2, 3, 4)]
    trials = FakeTrials(dict.fromkeys(settings, 1.0), compile_s=25.0)
    tried = try_all(trials, settings, passes=1, first_s=0.1, stint_s=0.1, compile_s=40.0)  # type: ignore[arg-type]
    assert list(tried.rates) == settings[:2]
    assert list(tried.left_out) == settings[2:]


def test_turns_alternate_and_who_fails_drops_out() -> None:
    trials = FakeTrials({ONE: 100.0, TWO: 130.0})
    rates, dropped = take_turns(trials, [ONE, TWO, THREE], turns=2, stint_s=0.1)  # type: ignore[arg-type]
    assert trials.asked == [ONE, TWO, THREE, TWO, ONE]
    assert rates == {ONE: [100.0, 100.0], TWO: [130.0, 130.0]}
    assert dropped == {THREE: "it does not run"}


@pytest.mark.parametrize(
    ("n", "low", "high", "confidence"), [(20, 6, 15, 0.959), (10, 2, 9, 0.979), (6, 1, 6, 0.969), (2, 1, 2, 0.5)]
)
def test_intervals_are_those_of_order_statistics(n: int, low: int, high: int, confidence: float) -> None:
    found = median_interval([float(value) for value in range(n, 0, -1)])
    assert (found.low, found.high, round(found.confidence, 3)) == (low, high, confidence)


def test_ratios_are_taken_turn_by_turn() -> None:
    assert ratio([50.0, 200.0, 100.0], [100.0, 400.0, 200.0]).high == 0.5


@pytest.mark.parametrize(
    ("choice", "speeds", "seconds", "expected"),
    [
        (TWO, None, 20.0, "reached"),
        (ONE, [96.0] * 10, 20.0, "reached"),
        (ONE, [90.0] * 4 + [96.0] * 6, 20.0, "reached"),
        (ONE, [90.0] * 6 + [96.0] * 4, 20.0, "undecided"),
        (ONE, [90.0] * 10, 20.0, "missed"),
        (TWO, None, 31.0, "missed"),
        (None, None, 1.0, "missed"),
    ],
    ids=["the best itself", "close", "the median counts", "undecided", "too slow", "too expensive", "no choice"],
)
def test_targets_are_throughput_and_cost(choice, speeds, seconds: float, expected: str) -> None:
    found = comparison(choice, speeds, seconds)
    assert found.verdict == expected
    assert reached(found) is (expected == "reached")


def test_the_best_is_the_one_that_is_fastest_in_turn() -> None:
    found = comparison(ONE, [120.0] * 10)
    assert (found.best, found.next_best) == (ONE, TWO)
    assert found.ratio is None
    assert found.margin is not None
    assert found.margin.median == 1.2
    assert "the same; over the next 1.200 (1.200 to 1.200)" in line(found)


def test_a_tuner_that_falls_back_to_the_rule_has_missed_for_a_reason() -> None:
    tuned = Tuned("auto", 2, None, False, "rule", "graph, 2 learners, by rule of thumb: no trial fits into 1 s")
    calibrated = calibrated_from(tuned, 1.0)
    assert calibrated.choice is None
    found = comparison()
    found = Comparison(found.pair, found.run_s, found.tried, calibrated, found.turns, found.dropped)
    assert found.verdict == "missed"
    assert "no trial fits into 1 s" in line(found)
    assert "no trial fits into 1 s" in markdown([found], VALUES, inspect_environment())
    assert as_dict(found)["choice"] is None


def test_a_choice_that_fails_in_turn_has_missed() -> None:
    found = comparison()
    found = Comparison(found.pair, 600.0, found.tried, found.calibrated, {ONE: EQUAL}, {TWO: "out of memory"})
    assert found.verdict == "missed"
    assert "out of memory" in line(found)


def test_the_page_shows_ratio_cost_and_everything_that_was_tried() -> None:
    found = comparison(ONE, [96.0, 98.0] * 5)
    page = markdown([found, comparison(), comparison(ONE, [90.0] * 6 + [96.0] * 4)], VALUES, inspect_environment())
    for part in (
        "0.970 (0.960 to 0.980)",
        "the same",
        "20.0 s",
        "3.3%",
        "2 of 3 pairs; undecided: 1; missed: 0",
        "it runs as eager",
        "left out: compiling took 50 s",
        "2 settings ran, 1 did not, 1 were left out",
        "vector instructions",
        "took 20.0",
    ):
        assert part in page
    assert page.index("| graph, 2 learners | 200") < page.index("| graph, 1 learner | 100")
    values = json.loads(json.dumps(as_dict(found)))
    assert values["ratio"]["median"] == values["one_learner"]["median"] == 0.97
    assert [len(entry["rates"]) for entry in values["turns"]] == [10, 10]


def test_it_runs_end_to_end(tmp_path: Path) -> None:
    main("tuner", ["quick=true", "pairs=lenet_4", f"out={tmp_path}"])
    (pair,) = json.loads((tmp_path / "tuner.json").read_text())["pairs"]
    tried = {entry["setting"] for entry in pair["exhaustive"]}
    assert {pair["best"], "graph, 1 learner", "graph, 2 learners", "eager, 2 learners"} <= tried
    assert pair["calibration_s"] > 0
    assert pair["share"] > 0
    assert (pair["choice"] or "none") in (tmp_path / "tuner.md").read_text()


@pytest.mark.parametrize("setting", ["pairs=", "pairs=alexnet", "passes=0", "most=1"])
def test_wrong_settings_are_refused(setting: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=setting.partition("=")[0]):
        main("tuner", [setting, f"out={tmp_path}"])
