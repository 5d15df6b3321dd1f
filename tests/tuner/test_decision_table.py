"""The decision table: everything that was considered, once, with what became of it and why."""

import json

from bow.tuner import Calibration, DecisionTable, Lane, Row
from tests.tuner.simulated import Disturbance, Machine, falling, kneed, lanes_of


def calibrated() -> Calibration:
    curves = {"eager": falling(0.1), "graph": kneed(4, 0.1), "streams": falling(0.1), "fused": kneed(8)}
    machine = Machine(curves, Disturbance(0.01, 0.0), wall=8, broken={"streams": 1}, compile_s={"fused": 60.0})
    lanes = [*lanes_of(["eager", "graph", "streams"], 16), Lane("fused", compile_s=60.0, compiles_each=True)]
    return machine.calibrate(Calibration(lanes, 30.0, samples=1e6))


def rows() -> dict[tuple[str, int], Row]:
    return {(row.engine, row.learners): row for row in calibrated().table.rows}


def test_every_setting_stands_there_once_with_its_reason() -> None:
    table = calibrated().table
    names = [(row.engine, row.threads, row.learners) for row in table.rows]
    assert len(names) == len(set(names))
    assert all(row.why for row in table.rows)
    tried = [row.status != "not tried" for row in table.rows]
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
    table = calibrated().table
    assert [Row(**values) for values in json.loads(json.dumps(table.as_dicts()))] == list(table.rows)


def test_the_text_is_a_table() -> None:
    table = calibrated().table
    heading, *lines = str(table).splitlines()
    assert heading.split()[:4] == ["engine", "learners", "threads", "samples/s"]
    assert len(lines) == len(table.rows)
    at = heading.index("decision")
    assert [line[at:].split(":")[0] for line in lines if "chosen" in line] == ["chosen"]
    assert all(line[at - 2 : at] == "  " for line in lines)


def test_fewer_learners_that_do_as_well_say_so() -> None:
    machine = Machine({"graph": lambda k: min(k, 4) * (1 + 0.01 * (k > 4))}, Disturbance(0.002, 0.0))
    chosen = machine.calibrate(Calibration(lanes_of(["graph"], 8), 30.0)).table.chosen
    assert chosen is not None
    assert chosen.learners == 4
    assert chosen.why == "fewer learners or threads, 98.8% of the highest throughput"


def test_goodput_is_called_by_its_name() -> None:
    machine = Machine({"graph": kneed(4)}, Disturbance(0.002, 0.0))
    table = machine.calibrate(Calibration(lanes_of(["graph"], 4), 30.0, efficiency=lambda k: k**-0.5)).table
    assert table.chosen is not None
    assert table.chosen.why == "the highest goodput"
    assert table.chosen.efficiency == 0.5


def test_goodput_is_called_by_its_name_where_one_learner_is_best() -> None:
    machine = Machine({"graph": kneed(4)}, Disturbance(0.002, 0.0))
    table = machine.calibrate(Calibration(lanes_of(["graph"], 4), 30.0, efficiency=lambda k: k**-1.5)).table
    assert table.chosen is not None
    assert (table.chosen.learners, table.chosen.efficiency) == (1, 1.0)
    assert table.chosen.why == "the highest goodput"
    assert all("throughput" not in row.why for row in table.rows)


def test_small_rates_keep_their_digits() -> None:
    row = Row("eager", 1, 1, "chosen", "the highest throughput", 1.2345, 1.2, 1.3, 5)
    assert "1.23   1.2-1.3" in str(DecisionTable((row,)))


def test_the_summary_states_the_cost() -> None:
    calibration = calibrated()
    assert "% of a training of" in calibration.summary
    assert calibration.summary.endswith("(budget 30.0 s); chosen: graph, 4 learners")
