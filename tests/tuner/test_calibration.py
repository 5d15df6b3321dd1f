"""Calibration and its decision table."""

import dataclasses
import itertools
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bow.tuner import (
    Calibration,
    Candidate,
    DecisionRow,
    EngineSetting,
    StatisticalEfficiency,
    TrialResult,
)
from tests.tuner.simulated import (
    FAMILIES,
    HALF,
    RUNS,
    Curve,
    Disturbance,
    Machine,
    dipping,
    falling,
    kneed,
    lanes_of,
    saturating,
)

MOST = 32
TEN_MINUTES_S = 600.0


def slower(curve: Curve, factor: float) -> Curve:
    return lambda k: factor * curve(k)


def three_engines(curve: Curve) -> dict[str, Curve]:
    """One that scales, one that does not and is ahead with few learners, and one that is behind everywhere."""
    return {"eager": lambda k: 1.1 - 0.05 / k, "graph": curve, "streams": slower(curve, 0.6)}


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("family", "minutes"),
    [*((family, 10) for family in FAMILIES), ("flat peak", 4), ("twelve cores", 4), ("six cores in stairs", 4)],
)
def test_the_choice_is_within_five_percent_of_the_best(family: str, minutes: int) -> None:
    curves, good = three_engines(FAMILIES[family]), 0
    for seed in RUNS:
        machine = Machine(curves, Disturbance(seed=seed))
        calibration = machine.calibrate(Calibration(lanes_of(curves, MOST), 0.05 * 60 * minutes))
        assert calibration.spent_s <= calibration.budget_s + machine.longest_s
        assert calibration.choice is not None
        good += machine.truth(calibration.choice) >= 0.95 * machine.best(MOST)
    assert good >= 0.95 * len(RUNS)


def chosen_learners(curve: Curve, budget_s: float, noise: float = 0.03) -> list[int]:
    """On one engine, by seed; 0: there was no choice."""
    found = []
    for seed in RUNS:
        machine = Machine({"graph": curve}, Disturbance(noise, seed=seed))
        choice = machine.calibrate(Calibration(lanes_of(["graph"], MOST), budget_s)).choice
        found.append(0 if choice is None else choice.learners)
    return found


@pytest.mark.parametrize("cost", [0.02, 0.2])
def test_one_learner_is_chosen_where_more_cost_throughput(cost: float) -> None:
    assert chosen_learners(falling(cost), 10.0).count(1) >= 0.95 * len(RUNS)


def test_averaging_that_costs_something_is_not_mistaken_for_the_end() -> None:
    chosen = chosen_learners(dipping(0.55, kneed(8)), 20.0)
    assert sum(learners >= 8 for learners in chosen) >= 0.95 * len(RUNS)


def test_fewer_learners_are_chosen_among_equals() -> None:
    assert chosen_learners(kneed(4), 20.0, noise=0.02).count(4) >= 0.9 * len(RUNS)


def measured_once(machine: Machine, candidates: list[Candidate], **settings: Any) -> Calibration:
    return machine.calibrate(Calibration(candidates, 30.0, **settings))


def test_what_is_clear_is_measured_once() -> None:
    machine = Machine({"eager": falling(0.3), "graph": lambda k: 2 * kneed(4, 0.2)(k)}, Disturbance(0.01, 0.0))
    measured_once(machine, lanes_of(["eager", "graph"], 16))
    asked = [trial.setting for trial in machine.asked]
    assert len(asked) == len(set(asked))


def test_what_is_too_close_to_call_is_measured_again_in_turn() -> None:
    machine = Machine({"eager": lambda k: 1.06 * falling(0.2)(k), "graph": falling(0.2)}, Disturbance(0.06, 0.0))
    measured_once(machine, lanes_of(["eager", "graph"], 16))
    again = [trial.setting for trial in machine.asked if trial.why == "too close to call"]
    assert len(again) >= 4
    assert all(
        {a, b} == {EngineSetting("eager"), EngineSetting("graph")} for a, b in zip(again[::2], again[1::2], strict=True)
    )


def test_lanes_that_cannot_lead_are_left_early() -> None:
    curves = {"graph": kneed(8, 0.05), "streams": slower(saturating(0.5), 0.3)}
    machine = Machine(curves, Disturbance(0.02, 0.0))
    calibration = measured_once(machine, lanes_of(curves, 64))
    asked = [trial.setting.learners for trial in machine.asked if trial.setting.engine == "streams"]
    assert asked == sorted(asked)
    assert max(asked) <= 8
    assert any("diminishing" in row.why for row in calibration.rows if row.engine == "streams")


def test_numbers_between_powers_of_two_are_found() -> None:
    for at in (3, 6, 12):
        machine = Machine({"graph": kneed(at, 0.1)}, Disturbance(0.01, 0.0, seed=at))
        assert measured_once(machine, lanes_of(["graph"], 32)).choice == EngineSetting("graph", at)


@pytest.mark.parametrize("wall", [2, 3, 6, 7, 13])
def test_a_wall_is_met_once_and_what_fits_below_it_is_used(wall: int) -> None:
    machine = Machine({"graph": saturating(0.01)}, Disturbance(0.01, 0.0), wall=wall)
    calibration = measured_once(machine, lanes_of(["graph"], 32))
    beyond = [trial.setting.learners for trial in machine.asked if trial.setting.learners >= wall]
    assert beyond == sorted(beyond, reverse=True)
    assert len(beyond) == len(set(beyond))
    assert calibration.choice is not None
    assert machine.truth(calibration.choice) >= 0.85 * machine.best(32)
    assert "failed" in {row.status for row in calibration.rows}


def test_an_engine_that_fails_with_more_learners_goes_on_with_fewer() -> None:
    curves = {"graph": lambda k: 3 * saturating(0.1)(k), "eager": falling(0.01)}
    machine = Machine(curves, Disturbance(0.01, 0.0), broken={"graph": 4})
    candidates = [*lanes_of(curves, 32), Candidate("graph", threads=2, counts=(4, 8), setup_s=0.3)]
    calibration = measured_once(machine, candidates)
    asked = [trial.setting for trial in machine.asked if trial.setting.engine == "graph"]
    assert [setting.learners for setting in asked].count(4) == 1
    assert all(setting.learners <= 4 for setting in asked)
    assert calibration.choice == EngineSetting("graph", 3)
    whys = {row.learners: row.why for row in calibration.rows if row.status == "not tried"}
    assert whys[4] == "graph failed with 4 learners: the model cannot be captured"


@pytest.mark.parametrize(
    ("kind", "why"), [("out_of_memory", "1 learner ran out of memory"), ("no_room", "not enough memory for 1 learner")]
)
def test_one_learner_without_memory_is_a_wall_for_all(kind: str, why: str) -> None:
    calibration = Calibration([Candidate("graph"), Candidate("graph", threads=2)], 10.0)
    assert calibration.next_trial() is not None
    calibration.report(TrialResult(EngineSetting("graph"), failure="it needs 9 GiB", **{kind: True}))
    assert calibration.next_trial() is None
    assert [row.why for row in calibration.rows] == ["it needs 9 GiB", why]


def test_an_engine_that_fails_is_not_tried_with_other_threads() -> None:
    machine = Machine({"graph": saturating(0.1), "eager": falling(0.1)}, broken={"graph": 1})
    candidates = [Candidate("graph"), Candidate("graph", threads=2), Candidate("eager")]
    calibration = measured_once(machine, candidates)
    assert [trial.setting.engine for trial in machine.asked].count("graph") == 1
    whys = [row.why for row in calibration.rows if row.engine == "graph"]
    assert whys == ["the model cannot be captured", "graph failed: the model cannot be captured"]


def test_what_ran_out_of_memory_since_is_not_chosen() -> None:
    one, two = Candidate("graph", counts=(1, 2, 4)), Candidate("graph", threads=2, counts=(1, 4, 8))
    calibration, ran = Calibration([one, two], 30.0), []
    while (trial := calibration.next_trial()) is not None:
        setting = trial.setting
        if setting == two.at(4):
            calibration.report(TrialResult(setting, failure="out of memory", out_of_memory=True))
        else:
            rate = 100.0 * setting.learners * (0.9 if setting.threads == 2 else 1.0)
            calibration.report(TrialResult(setting, [rate] * 5, seconds=0.5))
        ran.append(setting)
    assert ran.index(one.at(4)) < ran.index(two.at(4))
    assert calibration.choice == one.at(3)
    whys = {row.learners: row.why for row in calibration.rows if row.threads == 1}
    assert whys[4] == "4 learners ran out of memory"


def test_where_nothing_runs_there_is_no_choice() -> None:
    machine = Machine({"graph": falling(0.1), "eager": falling(0.1)}, broken={"graph": 1}, wall=1)
    calibration = measured_once(machine, lanes_of(["graph", "eager"], 8))
    assert calibration.choice is None
    assert chosen_row(calibration) is None
    assert calibration.summary.startswith("no setting ran; ")


def test_a_budget_that_no_trial_fits_into_gives_no_choice() -> None:
    machine = Machine({"graph": saturating(0.1)})
    assert machine.calibrate(Calibration(lanes_of(["graph"], 8), 0.0)).choice is None
    assert machine.calibrate(Calibration(lanes_of(["graph"], 8), 0.01)).choice is None
    assert machine.asked == []
    assert machine.calibrate(Calibration(lanes_of(["graph"], 8), 0.5)).choice == EngineSetting("graph", 1)
    assert len(machine.asked) == 1


def test_the_budget_shrinks_to_a_share_of_the_training_that_faster_settings_leave() -> None:
    machine = Machine({"graph": saturating(0.01)}, Disturbance(0.01, 0.0))
    samples = 1000.0 * 16 * 100  # 100 s with 16 learners and a little more
    calibration = machine.calibrate(Calibration(lanes_of(["graph"], 16), 1000.0, samples=samples, share=0.05))
    assert 5.0 < calibration.budget_s < 7.0
    assert calibration.spent_s < 10.0  # what was spent before that was known


def compiling() -> dict[str, Curve]:
    """Compiled, everything is faster by half."""
    return {"graph": saturating(0.1), "graph+compiled": slower(saturating(0.1), 1.5)}


def compiled_lanes(**settings: Any) -> list[Candidate]:
    return lanes_of(["graph"], 8) + lanes_of(["graph+compiled"], 8, compile_s=15.0, **settings)


@pytest.mark.parametrize(("minutes", "pays"), [(10, True), (1, False)])
def test_compiling_is_tried_where_the_rest_of_the_training_pays_for_it(minutes: float, pays: bool) -> None:
    machine = Machine(compiling(), Disturbance(0.02, 0.0), compile_s={"graph+compiled": 15.0})
    samples = minutes * 60 * machine.best(8) / 1.5
    calibration = machine.calibrate(Calibration(compiled_lanes(), 30.0, samples=samples))
    assert machine.num_compilations("graph+compiled") == pays
    assert calibration.choice is not None
    assert (calibration.choice.engine == "graph+compiled") is pays
    assert machine.truth(calibration.choice) >= 0.95 * machine.best(8) / (1 if pays else 1.5)
    if not pays:
        assert any("compiling takes 15" in row.why for row in calibration.rows)


def test_compiling_that_brings_nothing_is_not_expected_to() -> None:
    machine = Machine(compiling(), compile_s={"graph+compiled": 15.0})
    candidates = compiled_lanes(expected_gain=1.0)
    machine.calibrate(Calibration(candidates, 30.0, samples=1e9))
    assert machine.num_compilations("graph+compiled") == 0


def test_compiling_that_would_take_most_of_the_budget_is_not_tried() -> None:
    machine = Machine(compiling(), compile_s={"graph+compiled": 15.0})
    calibration = machine.calibrate(Calibration(compiled_lanes(), 20.0, samples=1e9))
    assert machine.num_compilations("graph+compiled") == 0
    assert any("more than the budget leaves for it" in row.why for row in calibration.rows)


def test_behind_compilation_the_number_of_learners_goes_both_ways() -> None:
    for at in (2, 16):
        curves = {"graph": kneed(4, 0.1), "graph+compiled": slower(kneed(at, 0.1), 4.0 if at == 2 else 1.0)}
        machine = Machine(curves, Disturbance(0.02, 0.0), compile_s={"graph+compiled": 15.0})
        candidates = [*lanes_of(["graph"], 32), *lanes_of(["graph+compiled"], 32, compile_s=15.0)]
        calibration = machine.calibrate(Calibration(candidates, 30.0, samples=1e9))
        assert calibration.choice == EngineSetting("graph+compiled", at)
        assert machine.num_compilations("graph+compiled") == 1


def test_an_engine_is_compiled_once_whatever_its_threads() -> None:
    machine = Machine({"graph": kneed(4, 0.1), "fused": kneed(8)}, compile_s={"fused": 5.0})
    fused = [Candidate("fused", threads, compile_s=5.0, compiles_each=True) for threads in (1, 2)]
    calibration = machine.calibrate(Calibration([*lanes_of(["graph"], 8), *fused], 60.0, samples=1e9))
    assert machine.num_compilations("fused") == 1
    assert any("compiled once" in row.why for row in calibration.rows)


def test_what_trials_take_is_learned() -> None:
    for seed in range(10):
        machine = Machine({"graph": saturating(0.02)}, Disturbance(0.02, 0.0, seed), setup_s=5.0)
        calibration = machine.calibrate(Calibration(lanes_of(["graph"], 32), 16.0))
        assert calibration.spent_s <= 16.0  # the next trial is known to take as long as the last, and not 0.2 s
        assert len(machine.asked) in (1, 2)


def test_compiled_code_in_a_cache_costs_nothing() -> None:
    machine = Machine(compiling(), Disturbance(0.02, 0.0))
    candidates = [Candidate("graph", counts=(1, 2, 4, 8)), Candidate("graph+compiled", counts=(1, 2, 4, 8))]
    choice = machine.calibrate(Calibration(candidates, 10.0)).choice
    assert choice == EngineSetting("graph+compiled", 8)


def test_an_engine_that_compiles_for_every_number_is_compiled_once_with_the_best_so_far() -> None:
    curves = {"graph": kneed(4, 0.1), "fused": lambda k: 2 * saturating(0.2)(k)}
    machine = Machine(curves, Disturbance(0.02, 0.0), compile_s={"fused": 12.0})
    candidates = [*lanes_of(["graph"], 16), *lanes_of(["fused"], 16, compile_s=12.0, compiles_each=True)]
    calibration = machine.calibrate(Calibration(candidates, 30.0, samples=1e7))
    assert machine.num_compilations("fused") == 1
    assert calibration.choice == EngineSetting("fused", 4)
    assert calibration.spent_s <= 30.0


@pytest.mark.parametrize(("start", "counts", "compiled"), [(4, (1, 2, 4, 8), 4), (8, (1, 2, 3), 3), (None, (1, 2), 1)])
def test_without_a_measurement_an_engine_that_compiles_for_every_number_begins_where_it_is_told(
    start: int | None, counts: tuple[int, ...], compiled: int
) -> None:
    machine = Machine({"fused": saturating(0.05)}, Disturbance(0.02, 0.0), compile_s={"fused": 12.0})
    candidate = Candidate("fused", counts=counts, compile_s=12.0, compiles_each=True, start=start)
    assert machine.calibrate(Calibration([candidate], 30.0, samples=1e9)).choice == EngineSetting("fused", compiled)
    assert machine.num_compilations("fused") == 1


def test_what_is_built_for_an_engine_is_set_aside_once() -> None:
    machine = Machine({"eager": falling(0.1), "graph": kneed(4)}, Disturbance(0.02, 0.0), compile_s={"graph": 60.0})
    graph = [Candidate("graph", threads, (1, 2, 4), compile_s=60.0) for threads in (1, 2)]
    calibration = machine.calibrate(Calibration([*lanes_of(["eager"], 1), *graph], 100.0, samples=1e9))
    assert {trial.setting.threads for trial in machine.asked if trial.setting.engine == "graph"} == {1, 2}
    assert calibration.choice == EngineSetting("graph", 4)
    assert calibration.spent_s < 100.0


def test_what_was_spent_before_the_first_trial_counts() -> None:
    spent = []
    for before_s in (0.0, 6.0):
        machine = Machine({"graph": saturating(0.02)}, Disturbance(0.02, 0.0))
        calibration = machine.calibrate(Calibration(lanes_of(["graph"], 32), 8.0, spent_s=before_s))
        assert calibration.spent_s == pytest.approx(before_s + machine.clock_s)
        assert calibration.spent_s <= 8.0
        spent.append(machine.clock_s)
    assert spent[1] < spent[0]
    machine = Machine({"graph": saturating(0.02)})
    assert machine.calibrate(Calibration(lanes_of(["graph"], 32), 8.0, spent_s=8.0)).choice is None


def test_a_rival_that_cannot_be_tried_again_does_not_end_the_comparison() -> None:
    """The best becomes too costly to be measured again; others that are close still can."""
    calibration, asked = Calibration([Candidate(name, counts=(1,)) for name in ("a", "b", "slow to set up")], 10.0), []
    rates = {"slow to set up": 108.0, "a": 103.0, "b": 103.0}
    while (trial := calibration.next_trial()) is not None:
        asked.append((trial.setting.engine, trial.why))
        seconds = trial.seconds + (4.0 if trial.setting.engine == "slow to set up" else 0.0)
        calibration.report(TrialResult(trial.setting, [rates[trial.setting.engine]] * 5, seconds))
    again = [engine for engine, why in asked if why == "too close to call"]
    assert again.count("slow to set up") == 1
    assert again.count("a") > 2


def test_compilation_leaves_room_for_measuring() -> None:
    curves = {**three_engines(kneed(6, 0.03)), "graph+compiled": slower(kneed(6, 0.03), 1.4)}
    good = 0
    for seed in HALF:
        machine = Machine(curves, Disturbance(seed=seed), compile_s={"graph+compiled": 18.0})
        candidates = lanes_of(["eager", "graph", "streams"], 16) + lanes_of(["graph+compiled"], 16, compile_s=18.0)
        samples = TEN_MINUTES_S * machine.best(16)
        calibration = machine.calibrate(Calibration(candidates, 0.05 * TEN_MINUTES_S, samples=samples))
        compiled_s = sum(row.compile_s for row in calibration.rows)
        assert calibration.spent_s <= calibration.budget_s + machine.longest_s - min(compiled_s, 18.0)
        assert calibration.choice is not None
        good += machine.truth(calibration.choice) >= 0.94 * machine.best(16)
    assert good >= 0.93 * len(HALF)


def test_goodput_stops_where_learners_do_not_help_learning() -> None:
    machine = Machine({"graph": kneed(16)}, Disturbance(0.02, 0.0))
    noisy = StatisticalEfficiency(noise_scale=1e5, batch_size=16)
    clean = StatisticalEfficiency(noise_scale=16.0, batch_size=16)
    many = measured_once(machine, lanes_of(["graph"], 32), efficiency=noisy).choice
    few = measured_once(machine, lanes_of(["graph"], 32), efficiency=clean).choice
    assert many == EngineSetting("graph", 16)
    assert few is not None
    # k (phi + b) / (phi + k b) is 2 k / (1 + k): within 3% of its limit only from 32 on, and growing little from 8 on
    assert 8 <= few.learners <= 16
    harmful = measured_once(machine, lanes_of(["graph"], 32), efficiency=lambda k: k**-1.5).choice
    assert harmful == EngineSetting("graph", 1)


@given(
    peak=st.integers(1, 40),
    budget_s=st.floats(0.05, 40.0),
    wall=st.integers(1, 40),
    noise=st.floats(0.0, 0.2),
    compile_s=st.floats(0.0, 20.0),
    samples=st.one_of(st.none(), st.floats(1.0, 1e8)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_whatever_the_machine_the_promises_are_kept(peak, budget_s, wall, noise, compile_s, samples, seed):
    curves = {"eager": falling(0.01), "graph": kneed(peak, 0.05), "fused": kneed(peak)}
    machine = Machine(curves, Disturbance(noise, 0.1, seed), compile_s={"fused": compile_s}, wall=wall)
    candidates = lanes_of(["eager", "graph"], 32) + lanes_of(["fused"], 32, compile_s=compile_s, compiles_each=True)
    calibration = Calibration(candidates, budget_s, samples=samples)
    machine.calibrate(calibration)
    asked = [trial.setting for trial in machine.asked]
    assert calibration.spent_s == pytest.approx(machine.clock_s)
    assert calibration.spent_s <= budget_s + machine.longest_s
    for engine in curves:
        beyond = [setting.learners for setting in asked if setting.engine == engine and setting.learners >= wall]
        assert all(later < earlier for earlier, later in itertools.pairwise(beyond))
    assert machine.num_compilations("fused") <= 1 or compile_s == 0.0
    ran = {setting for setting in asked if setting.learners < wall}
    choice = calibration.choice
    assert choice in ran if ran else choice is None
    assert len(calibration.rows) >= len(set(asked))
    assert sum(row.status == "chosen" for row in calibration.rows) == bool(ran)


def test_trials_say_how_long_to_measure() -> None:
    for budget_s, seconds in ((1.0, 0.1), (30.0, 0.5), (3600.0, 2.0), (math.inf, 2.0)):
        trial = Calibration(lanes_of(["graph"], 8), budget_s).next_trial()
        assert trial is not None
        assert trial.seconds == seconds
        assert trial.repeats == 5


def test_trials_that_agree_within_themselves_are_not_trusted_by_that_alone() -> None:
    """Repeats of a trial share what slows the machine down at the time: two trials 6% apart are to be seen again."""
    machine = Machine({"eager": lambda k: 1.06 * falling(0.2)(k), "graph": falling(0.2)}, Disturbance(0.0, 0.0))
    measured_once(machine, lanes_of(["eager", "graph"], 16))
    again = {trial.setting for trial in machine.asked if trial.why == "too close to call"}
    assert again == {EngineSetting("eager"), EngineSetting("graph")}


def chosen_row(calibration: Calibration) -> DecisionRow | None:
    return next((row for row in calibration.rows if row.status == "chosen"), None)


def calibrated() -> Calibration:
    curves = {"eager": falling(0.1), "graph": kneed(4, 0.1), "streams": falling(0.1), "fused": kneed(8)}
    machine = Machine(curves, Disturbance(0.01, 0.0), wall=8, broken={"streams": 1}, compile_s={"fused": 60.0})
    candidates = [*lanes_of(["eager", "graph", "streams"], 16), Candidate("fused", compile_s=60.0, compiles_each=True)]
    return machine.calibrate(Calibration(candidates, 30.0, samples=1e6))


def rows() -> dict[tuple[str, int], DecisionRow]:
    return {(row.engine, row.learners): row for row in calibrated().rows}


def test_every_setting_stands_there_once_with_its_reason() -> None:
    rows = calibrated().rows
    names = [(row.engine, row.threads, row.learners) for row in rows]
    assert len(names) == len(set(names))
    assert all(row.why for row in rows)
    tried = [row.status != "not tried" for row in rows]
    assert tried == sorted(tried, reverse=True)


def test_reasons_say_what_happened() -> None:
    found = rows()
    assert found["graph", 4].status == "chosen"
    assert found["graph", 4].why == "the highest throughput"
    assert found["graph", 2].status == "measured"
    assert found["graph", 2].why.endswith("% of the throughput of the choice")
    assert found["graph", 8].why == "out of memory"
    assert found["streams", 1].status == "failed"
    assert found["streams", 1].why == "the model cannot be captured"
    (fused,) = [row for row in found.values() if row.engine == "fused"]
    assert fused.status == "not tried"
    assert fused.why == "compiling takes 60.0 s, more than the budget leaves for it"


def test_measured_rows_have_their_spread_and_cost() -> None:
    row = rows()["graph", 2]
    assert row.samples_per_s is not None
    assert row.low is not None
    assert row.high is not None
    assert row.low <= row.samples_per_s <= row.high
    assert row.repeats == 5
    assert row.seconds > 0.0
    assert row.efficiency == 1.0


def test_what_did_not_run_has_no_throughput() -> None:
    row = rows()["graph", 8]
    assert (row.samples_per_s, row.low, row.high, row.repeats) == (None, None, None, 0)
    assert row.seconds > 0.0


def test_plain_values_survive_json() -> None:
    rows = calibrated().rows
    dicts = json.loads(json.dumps([dataclasses.asdict(row) for row in rows]))
    assert [DecisionRow(**values) for values in dicts] == list(rows)


def test_fewer_learners_that_do_as_well_say_so() -> None:
    machine = Machine({"graph": lambda k: min(k, 4) * (1 + 0.01 * (k > 4))}, Disturbance(0.002, 0.0))
    chosen = chosen_row(machine.calibrate(Calibration(lanes_of(["graph"], 8), 30.0)))
    assert chosen is not None
    assert chosen.learners == 4
    assert chosen.why == "fewer learners or threads, 98.8 % of the highest throughput"


@pytest.mark.parametrize(("power", "learners", "efficiency"), [(-0.5, 4, 0.5), (-1.5, 1, 1.0)])
def test_goodput_is_called_by_its_name(power: float, learners: int, efficiency: float) -> None:
    machine = Machine({"graph": kneed(4)}, Disturbance(0.002, 0.0))
    calibration = machine.calibrate(Calibration(lanes_of(["graph"], 4), 30.0, efficiency=lambda k: k**power))
    chosen = chosen_row(calibration)
    assert chosen is not None
    assert (chosen.learners, chosen.efficiency) == (learners, efficiency)
    assert chosen.why == "the highest goodput"
    assert all("throughput" not in row.why for row in calibration.rows)


def test_the_summary_states_the_cost() -> None:
    calibration = calibrated()
    assert calibration.summary.startswith("graph, 4 learners; ")
    assert re.search(r"; \d+ tried in [\d.]+ s, [\d.]+ % of training$", calibration.summary)
