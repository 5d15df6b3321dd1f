"""Loggers to files."""

import importlib.util
import json
import warnings

import pytest
import torch

from bow.errors import MissingDependencyError, RunDirectoryError
from bow.observe import JsonLinesLogger, Logger, SafeLogger, TensorBoardLogger, read_records


class Recorder:
    def __init__(self, fails_at=(), fails_to_close=False):
        self.records, self.closed = [], 0
        self.fails_at, self.fails_to_close = fails_at, fails_to_close

    def log(self, record):
        self.records.append(record["kind"])
        if record["kind"] in self.fails_at:
            raise OSError("no space left on device")

    def close(self):
        self.closed += 1
        if self.fails_to_close:
            raise RuntimeError("connection lost")


def test_records_arrive():
    recorder = Recorder()
    logger = SafeLogger(recorder)
    logger.log({"kind": "start"})
    logger.close()
    assert (recorder.records, recorder.closed) == (["start"], 1)


def test_a_logger_that_raises_is_dropped_with_one_warning():
    recorder = Recorder(fails_at=("start",), fails_to_close=True)
    logger = SafeLogger(recorder)
    with pytest.warns(UserWarning, match=r"Recorder failed .*no space left on device.*training continues"):
        logger.log({"kind": "start"})
    with warnings.catch_warnings(action="error"):
        logger.log({"kind": "epoch"})
        logger.close()
    assert (recorder.records, recorder.closed) == (["start"], 1)


def test_a_logger_that_cannot_be_closed_warns():
    with pytest.warns(UserWarning, match="connection lost"):
        SafeLogger(Recorder(fails_to_close=True)).close()


def test_an_interrupt_is_not_swallowed():
    class Interrupted(Recorder):
        def log(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SafeLogger(Interrupted()).log({"kind": "start"})


def test_loggers_are_known_by_their_methods(tmp_path):
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    logger.close()
    assert isinstance(logger, Logger)
    assert isinstance(Recorder(), Logger)
    assert not isinstance(print, Logger)


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


needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)


@needs_tensorboard
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_series_arrive_in_the_run_directory(tmp_path, records):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger()
    start, *others = records(3)
    for record in [{**start, "run_dir": str(tmp_path)}, *others]:
        logger.log(record)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    accuracy = [(event.step, event.value) for event in events.Scalars("validation/accuracy")]
    assert accuracy == [(23, 0.5), (46, 0.75), (69, 0.875)]
    assert len(events.Scalars("train/loss")) == 6
    assert {"run/start/text_summary", "run/end/text_summary"} <= set(events.Tags()["tensors"])


def test_a_missing_package_is_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install tensorboard"):
        TensorBoardLogger()


@needs_tensorboard
def test_nothing_is_written_before_the_first_record(tmp_path):
    TensorBoardLogger(tmp_path / "logs").close()
    assert list(tmp_path.iterdir()) == []
