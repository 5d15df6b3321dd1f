import json

import pytest
import torch

from bow.errors import RunDirectoryError
from bow.observe import JsonLinesLogger, read_records


def test_every_record_is_there_before_the_file_is_closed(tmp_path, records):
    path = tmp_path / "metrics.jsonl"
    logger = JsonLinesLogger(path)
    for number, record in enumerate(records(), start=1):
        logger.log(record)
        assert len(path.read_text().splitlines()) == number
    logger.close()
    assert read_records(path) == records()


def test_lines_are_strict_json(tmp_path):
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    logger.log({"kind": "epoch", "loss": float("nan"), "accuracy": torch.tensor(0.5), "name": "a\nb"})
    logger.close()
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"kind": "epoch", "loss": None, "accuracy": 0.5, "name": "a\nb"}


def test_a_line_that_was_cut_off_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "start"}\n{"kind": "rou')
    logger = JsonLinesLogger(path)
    logger.log({"kind": "end"})
    logger.close()
    assert [record["kind"] for record in read_records(path)] == ["start", "end"]


def test_a_file_that_cannot_be_written_is_an_error_in_one_sentence(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"missing/metrics\.jsonl cannot be written \(No such file"):
        JsonLinesLogger(tmp_path / "missing" / "metrics.jsonl")
