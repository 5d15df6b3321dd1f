"""What MLflow has of a run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from bow.cli.arguments import build
from bow.cli.composition import compose
from bow.errors import MissingDependencyError
from bow.observe import MlflowLogger

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"needs the package mlflow; pip install 'bow-trainer\[mlflow\]'"):
        MlflowLogger()


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def logged(uri: str, directory: Path, records: list[dict[str, Any]], **given: Any) -> Any:
    """The run that a logger leaves."""
    from mlflow import MlflowClient

    logger = MlflowLogger(uri=uri, **given)
    start, *others = records
    for record in [{**start, "run_dir": str(directory)}, *others]:
        logger.log(record)
    logger.close()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(logger.experiment)
    return client, client.search_runs([experiment.experiment_id])[0]


def test_settings_are_parameters_and_values_are_metrics(uri: str, run: Any, records: Any) -> None:
    directory = run("digits")
    client, found = logged(uri, directory.path, records(3))
    assert (found.info.status, found.info.run_name) == ("FINISHED", directory.path.name)
    assert found.data.params["learners"] == "2"
    assert found.data.params["model"] == "LeNet"
    losses = client.get_metric_history(found.info.run_id, "validation/loss")
    epochs = [record for record in records(3) if record["kind"] == "epoch"]
    assert [(each.step, each.value) for each in losses] == [
        (each["round"], pytest.approx(each["loss"])) for each in epochs
    ]
    assert found.data.metrics["events/learners changed"] == 1


def test_a_run_that_does_not_end_is_killed(uri: str, run: Any, records: Any) -> None:
    _, found = logged(uri, run("digits").path, records(3)[:4], experiment="mine", name="own")
    assert (found.info.status, found.info.run_name) == ("KILLED", "own")


def test_a_member_has_a_run_of_its_own(uri: str) -> None:
    made = MlflowLogger("mine", uri=uri).for_member("seed=1", "sweep")
    assert (made.experiment, made.name, made.uri) == ("mine", "sweep/seed=1", uri)


def test_the_configuration_has_it(uri: str) -> None:
    [made] = build(compose(["logger=mlflow", f"run.loggers.mlflow.uri='{uri}'"]))["run"].loggers
    assert (type(made), made.experiment, made.uri) == (MlflowLogger, "bow", uri)
