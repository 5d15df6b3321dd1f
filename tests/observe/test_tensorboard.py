import importlib.util

import pytest

from bow.errors import MissingDependencyError
from bow.observe import TensorBoardLogger

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
