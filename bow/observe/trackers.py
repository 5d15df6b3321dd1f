"""Weights & Biases and MLflow: the only file that imports wandb or mlflow, and only when a run uses them."""

import importlib.util
import math
import operator
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bow.errors import MissingDependencyError, SettingError
from bow.observe.records import Record, is_number, metrics, plain, scalars
from bow.observe.report import flat
from bow.observe.run_directory import RunDirectory
from bow.values import given_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from wandb import Run


Mode = Literal["online", "offline", "disabled"]
MODES = ("online", "offline", "disabled", "shared")


class WandbLogger:
    """Logs to Weights & Biases, offline by default.

    Offline, nothing is printed or sent: the run is stored under `dir/wandb/offline-run-*`, and `wandb sync DIR` uploads
    it later. The step of every series is the round.

    Args:
        project: the project on the server.
        name: the name of the run; None: the name of the run directory. Members of a sweep get separate names.
        dir: directory of wandb's files; None: the run directory.
        mode: "offline", "online" or "disabled"; None: the environment variable WANDB_MODE, else offline.
        group: the group of the run; None: no group, or for members of a sweep its name or that of its run directory.

    Raises:
        MissingDependencyError: wandb is not installed.
        SettingError: the mode is not one of wandb's.
    """

    def __init__(
        self,
        project: str = "bow",
        name: str | None = None,
        dir: str | Path | None = None,
        mode: Mode | None = None,
        group: str | None = None,
    ) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise MissingDependencyError("logger wandb needs the package wandb; pip install wandb")
        self.mode = mode or os.environ.get("WANDB_MODE") or "offline"
        if self.mode not in MODES:
            raise SettingError(f"the mode of wandb must be one of {', '.join(MODES)}, got {self.mode!r}")
        self.project, self.name, self.group = project, name, group
        self.dir = None if dir is None else given_path("dir", dir)
        self._run: Run | None = None
        self._events: Counter[str] = Counter()
        self._step = 0
        self._waiting: list[Record] = []  # events

    def for_member(self, name: str, group: str) -> "WandbLogger":
        """Return a logger for a member's run, in the group of the sweep."""
        return WandbLogger(self.project, name, self.dir, self.mode, self.group or self.name or group)  # type: ignore[arg-type]

    def log(self, record: Record) -> None:
        """Log one record; the first opens the run, the `end` record becomes its summary."""
        if self._run is None:
            self._run = self._open(record)
        self._waiting += [record] if "round" in record else []
        if record["kind"] != "event":
            self._write(up_to=record.get("round", 0))
        if record["kind"] == "end":
            names = ("round", "samples", "seconds", "samples_per_s", "time_to_target_s", "learner_restarts")
            final = {name: record.get(name) for name in names} | metrics(record)
            self._run.summary.update({f"final/{name}": value for name, value in final.items() if is_number(value)})

    def close(self) -> None:
        if self._run is not None:
            self._write(up_to=math.inf)
            self._run.finish()

    def _write(self, up_to: float) -> None:
        # wandb drops points whose step is before the last one. Events may come late, from other devices, or early: a
        # resumed training tells at once of the later round in which it will repeat a decision.
        assert self._run is not None
        due = [record for record in self._waiting if record["round"] <= up_to]
        self._waiting = [record for record in self._waiting if record["round"] > up_to]
        for record in sorted(due, key=operator.itemgetter("round")):
            self._step = max(self._step, record["round"])
            if values := _series(record, self._events):
                self._run.log(values, step=self._step)

    def _open(self, record: Record) -> "Run":
        if self.mode == "offline":
            # wandb sends error reports even then, and where a network drops them it delays the end of the process by
            # 10 s (wandb 0.31). It reads this variable on import.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        directory = Path(self.dir or run_dir_of(record))
        # wandb silently uses the system's temporary directory if this one does not exist.
        directory.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=self.mode != "online",
            # Otherwise wandb intercepts the progress bar's output to the terminal.
            console="off",
            # Do not reuse a run that the user has open in this process.
            reinit="create_new",
        )
        return wandb.init(
            project=self.project,
            name=self.name or run_dir_of(record).resolve().name,
            group=self.group,
            dir=str(directory),
            mode=self.mode,  # type: ignore[arg-type]
            config=run_config(record),
            settings=settings,
        )


def _series(record: Record, events: Counter[str]) -> dict[str, float]:
    """Return the points that a record adds to series; an event adds the number of its kind so far."""
    if record["kind"] != "event":
        return scalars(record)
    events[record["event"]] += 1
    return {f"events/{record['event']}": events[record["event"]]}


def run_dir_of(record: Record) -> Path:
    return Path(record.get("run_dir") or ".")


def run_config(record: Record) -> dict[str, Any]:
    decided = {name: plain(value) for name, value in record.items() if name not in ("kind", "time_s")}
    asked = RunDirectory(run_dir_of(record)).read_config()
    return ({"settings": dict(asked)} if asked else {}) | decided


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
        now = int(1000 * time.time())
        if values := _series(record, self._events):
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

        client = MlflowClient(self.uri)
        found = client.get_experiment_by_name(self.experiment)
        experiment = client.create_experiment(self.experiment) if found is None else found.experiment_id
        name = self.name or run_dir_of(record).resolve().name
        self._run_id = client.create_run(experiment, run_name=name).info.run_id
        given = [Param(key.replace(" ", "_"), value[:MOST_CHARACTERS]) for key, value in flat(run_config(record))]
        for start in range(0, len(given), MOST_PARAMETERS):
            client.log_batch(self._run_id, params=given[start : start + MOST_PARAMETERS])
        return client
