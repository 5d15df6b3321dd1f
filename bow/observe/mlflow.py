"""MLflow: the only file that imports mlflow, and only when a run uses it."""

import importlib.util
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from bow.errors import MissingDependencyError
from bow.observe.records import Record, scalars
from bow.observe.weights_and_biases import run_config, run_dir_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

MOST_PARAMETERS, MOST_CHARACTERS = 100, 6000  # MLflow's limits per request, and per value


class MlflowLogger:
    """Logs to MLflow: settings as parameters, everything else as metrics whose step is the round.

    Uses a separate run and client: your open runs are not affected.

    Args:
        experiment: the experiment; created if it does not exist.
        name: the name of the run; None: the name of the run directory. Members of a sweep get separate names.
        uri: tracking server, such as `"http://localhost:5000"` or `"sqlite:///mlflow.db"`; None: the one set by
            `mlflow.set_tracking_uri` or the environment variable MLFLOW_TRACKING_URI.

    Raises:
        MissingDependencyError: mlflow is not installed.
    """

    def __init__(self, experiment: str = "bow", name: str | None = None, uri: str | None = None) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise MissingDependencyError("logger mlflow needs the package mlflow; pip install 'bow-trainer[mlflow]'")
        self.experiment, self.name, self.uri = experiment, name, uri
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._status = "KILLED"
        self._events: Counter[str] = Counter()

    def for_member(self, name: str, group: str) -> "MlflowLogger":
        """Return a logger for a member's run, named after the sweep and the member."""
        return MlflowLogger(self.experiment, f"{self.name or group}/{name}", self.uri)

    def log(self, record: Record) -> None:
        """Log one record; the first opens the run, the `end` record marks it as finished."""
        from mlflow.entities import Metric

        if self._client is None:
            self._client = self._open(record)
        values = scalars(record)
        if record["kind"] == "event":
            self._events[record["event"]] += 1
            values = {f"events/{record['event']}": self._events[record["event"]]}
        now = int(1000 * time.time())
        if values:
            metrics = [Metric(name, value, now, record["round"]) for name, value in values.items()]
            self._client.log_batch(self._run_id, metrics)
        if record["kind"] == "end":
            self._status = "FINISHED"

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._run_id, self._status)

    def _open(self, record: Record) -> "MlflowClient":
        from mlflow import MlflowClient
        from mlflow.entities import Param

        from bow.observe.report import flat

        client = MlflowClient(self.uri)
        found = client.get_experiment_by_name(self.experiment)
        experiment = client.create_experiment(self.experiment) if found is None else found.experiment_id
        name = self.name or run_dir_of(record).resolve().name
        self._run_id = client.create_run(experiment, run_name=name).info.run_id
        settings: dict[str, Any] = run_config(record)
        given = [Param(key.replace(" ", "_"), value[:MOST_CHARACTERS]) for key, value in flat(settings)]
        for start in range(0, len(given), MOST_PARAMETERS):
            client.log_batch(self._run_id, params=given[start : start + MOST_PARAMETERS])
        return client
