import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bow.observe.records import metrics, plain, read_records, scalars
from bow.observe.report import continuous


class NoText:
    pass


def test_metrics_are_what_is_left_of_a_record():
    record = {"kind": "end", "time_s": 1, "round": 5, "samples": 80, "seconds": 1.0, "accuracy": 0.9, "f1": 0.8}
    assert metrics(record) == {"accuracy": 0.9, "f1": 0.8}


def test_metrics_that_are_not_finite_are_there():
    values = metrics({"kind": "epoch", "loss": float("inf"), "accuracy": None, "name": "a text"})
    assert {name: str(value) for name, value in values.items()} == {"loss": "inf", "accuracy": "nan"}


def test_training_and_validation_are_different_series(records):
    names = {name for record in records() for name in scalars(record)}
    assert {"train/loss", "train/epoch_loss", "validation/loss", "validation/accuracy"} <= names
    assert {"run/learners", "run/samples_per_s", "run/lr", "run/epoch", "run/samples"} <= names


@pytest.mark.parametrize("kind", ["start", "event", "end"])
def test_other_records_add_no_point(kind):
    assert scalars({"kind": kind, "round": 1, "learners": 2, "accuracy": 0.5}) == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(2), 2),
        (torch.tensor(float("inf")), None),
        (np.float32(0.5), 0.5),
        (np.arange(3), "ndarray[3]"),
        (torch.zeros(2, 3), "Tensor[2, 3]"),
        (torch.float64, "torch.float64"),
        (Path("a/b"), "a/b"),
        ({1: {"x"}}, {"1": ["x"]}),
        (torch.optim.SGD, "SGD"),
        (functools.partial(torch.optim.SGD, lr=0.1), "SGD(lr=0.1)"),
        (torch.nn.Linear(2, 2), "Linear"),
        (NoText(), "NoText"),
        (True, True),
        (None, None),
    ],
)
def test_everything_becomes_plain(value, expected):
    got = plain(value)
    assert got == expected
    assert type(got) is type(expected)
    json.dumps(got, allow_nan=False)


def test_damaged_lines_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "start"}\n\xff\xfe{\n[1]\n{"no": "kind"}\n{"kind": "end"}\n{"kind": "epo')
    assert read_records(path) == [{"kind": "start"}, {"kind": "end"}]


def test_an_unbroken_run_is_left_as_it_is(records):
    assert continuous(records()) == records()


def test_rounds_done_twice_count_once(records):
    crashed = [record for record in records(3) if record["time_s"] <= 2.5]
    resumed = [records(3)[0], *(record for record in records(3) if record.get("round", 0) > 23)]
    joined = continuous([*crashed, *resumed])
    assert [record["epoch"] for record in joined if record["kind"] == "epoch"] == [1, 2, 3]
    assert [record["round"] for record in joined if record["kind"] == "rounds"] == [13, 18, 36, 41, 59, 64]


def test_an_event_of_the_start_leaves_the_epoch_that_it_follows(records):
    first = [record for record in records(2) if record["kind"] != "end"]
    last = max(record["round"] for record in first if record["kind"] == "epoch")
    event = {"kind": "event", "time_s": 2.5, "round": last, "event": "engine changed", "message": ""}
    joined = continuous([*first, records(1)[0], event])
    assert [record["epoch"] for record in joined if record["kind"] == "epoch"] == [1, 2]


def test_events_behind_the_last_round_stay_once(records):
    """Rounds of an engine's events are indices, those of others counts."""

    def event(name, time_s):
        return {"kind": "event", "time_s": time_s, "round": last, "event": name, "message": ""}

    first = [record for record in records(2) if record["kind"] != "end"]
    last = max(record["round"] for record in first if record["kind"] == "epoch")
    joined = continuous([*first, event("data", 2.0), event("interrupted", 2.0), records(1)[0], event("data", 2.5)])
    assert [record["event"] for record in joined if record["kind"] == "event"][-2:] == ["interrupted", "data"]
    assert sum(record.get("event") == "data" for record in joined) == 1


def test_a_clock_that_began_again_goes_on(records):
    first = [record for record in records(2) if record["kind"] != "end"]
    second = [records(1)[0]]
    second += [{"kind": "rounds", "time_s": 0.5, "round": 60}, {"kind": "end", "time_s": 1.0, "round": 69}]
    assert [record["time_s"] for record in continuous([*first, *second])[-3:]] == [2.0, 2.5, 3.0]


def test_a_clock_that_was_kept_is_not_moved(records):
    first = [record for record in records(2) if record["kind"] != "end"]
    second = [records(1)[0], {"kind": "end", "time_s": 2.5, "round": 69}]
    assert [record["time_s"] for record in continuous([*first, *second])[-2:]] == [2.0, 2.5]


def test_only_the_last_end_counts(records):
    longer = [{**record, "round": record.get("round", 0) + 69} for record in records(1)[1:]]
    joined = continuous([*records(3), records(3)[0], *longer])
    assert [record["kind"] for record in joined].count("end") == 1


def test_an_evaluation_within_an_epoch_adds_to_the_series_of_the_validation_data(evaluation):
    assert scalars(evaluation) == {
        "validation/loss": 0.7,
        "validation/accuracy": 0.4,
        "run/epoch": 0.5,
        "run/samples": 704,
        "run/learners": 2,
        "run/lr": 0.1,
    }


def test_a_calibration_is_no_series(calibration):
    assert scalars(calibration) == {}
