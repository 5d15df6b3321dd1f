import warnings

import pytest

from bow.observe import JsonLinesLogger, Logger, SafeLogger


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
    with pytest.warns(UserWarning, match=r"Recorder failed .*no space left on device.*training goes on"):
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
