"""`bow predict`: outputs of a run's model for given data."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from bow.cli.arguments import check_values, loss_or_step, metrics_of, model_and_data
from bow.cli.composition import recompose
from bow.data import evaluation_batches
from bow.engines import Engine, autocast
from bow.errors import DataError, ModelError, RunDirectoryError, SettingError, disk_reason, reason
from bow.observe import RunDirectory, read_records
from bow.observe.run_directory import readable
from bow.observe.text import metric_text
from bow.terminal import say
from bow.training.evaluation import evaluate
from bow.values import given_path

USAGE = """\
usage: bow predict RUN DATA [model=best] [out=FILE]

  bow predict runs/first inputs.npy             writes runs/first/predictions.npy
  bow predict runs/first inputs.npy model=best  with the model at its best evaluation
  bow predict runs/first validation             for the run's validation data

RUN is the directory of a run of bow train; its config.yaml defines the model.
DATA is a .npy file with inputs [samples, ...], preprocessed as in training.
Writes the model's outputs [samples, ...].
"""
OPTIONS = {"model": "last", "out": ""}
VALIDATION = "validation"


def run(words: Sequence[str]) -> int:
    pairs = [word.split("=", 1) for word in words if word.split("=", 1)[0] in OPTIONS and "=" in word]
    options = {**OPTIONS, **dict(pairs)}
    given = [word for word in words if word.split("=", 1) not in pairs]
    if len(given) != 2 or options["model"] not in ("last", "best"):
        raise SettingError(
            f"bow predict takes a run directory, data, model=last or best and out=FILE, got {' '.join(words)!r}; "
            "write bow predict RUN inputs.npy"
        )
    directory = RunDirectory(given_path("the run directory", given[0], RunDirectoryError))
    with readable(directory.path):
        has_config = directory.config_path.is_file()
    if not has_config:
        raise RunDirectoryError(
            f"{directory.path} is not the directory of a run (it has no {directory.config_path.name}); name one of "
            "bow train"
        )
    composition = recompose(directory.config_path, [])
    check_values(composition)
    make, splits = model_and_data(composition)
    with readable(directory.path):
        model = _loaded(make(), directory, options["model"])
    inputs = splits.validation[0] if given[1] == VALIDATION else _read(given_path("data", given[1], DataError), model)
    precision = Engine(**composition.settings["engine"]).precision  # as evaluations of the run have computed
    outputs = _outputs(model, inputs, precision)
    path = given_path("out", options["out"] or directory.path / "predictions.npy")
    try:
        with path.open("wb") as file:
            np.save(file, outputs.numpy())
    except OSError as error:
        raise SettingError(f"out={path} cannot be written ({disk_reason(error)}); name another file") from error
    measured: dict[str, float] = {}
    if given[1] == VALIDATION:  # the same metrics as in the run's training
        validation = composition.settings["validation"]
        how = {**loss_or_step(composition, splits), "batch_size": validation["batch_size"], "precision": precision}
        measured = evaluate(model, splits.validation, metrics_of(validation["metrics"]), **how)
    values = "".join(f", {name} {metric_text(name, value)}" for name, value in measured.items())
    say(f"outputs {list(outputs.shape)}{values}: {path}")
    return 0


def _best(directory: RunDirectory) -> Path:
    """Return the file of the best model; that of the last model, if the records say that it was the best."""
    if directory.best_path.exists():
        return directory.best_path
    records = read_records(directory.metrics_path) if directory.metrics_path.is_file() else []
    ends = [record for record in records if record["kind"] == "end"]
    if not ends or ends[-1].get("best_round") is None or ends[-1]["best_round"] != ends[-1].get("round"):
        raise RunDirectoryError(
            f"{directory.path} has no best model ({directory.best_path.name}): trainings without validation data "
            "keep the last one; use model=last"
        )
    return directory.model_path


def _loaded(model: nn.Module, directory: RunDirectory, which: str) -> nn.Module:
    path = _best(directory) if which == "best" else directory.model_path
    try:
        load_model(model, path)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise RunDirectoryError(
            f"{path} cannot be loaded into the model of {directory.config_path} ({reason(error)}); give the directory "
            "of a run of bow train that has ended"
        ) from error
    return model.eval()


def _read(path: Path, model: nn.Module) -> Tensor:
    try:
        inputs = torch.as_tensor(np.load(path, allow_pickle=False))
    except (OSError, ValueError, TypeError, EOFError, RuntimeError) as error:
        raise DataError(
            f"data {path} cannot be read ({reason(error)}); give a file that numpy.save wrote, or {VALIDATION!r}"
        ) from error
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Tensor, precision: str | None) -> Tensor:
    made = []
    for batch in evaluation_batches(inputs):
        try:
            with autocast(inputs.device, precision):
                outputs = model(batch)
        except Exception as error:
            raise DataError(
                f"the model fails on inputs of shape {tuple(inputs.shape)} ({reason(error)}); scale them as in training"
            ) from error
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"the model returns {type(outputs).__name__}, but only a tensor can be written; use Python"
            )
        made.append(outputs.float())
    return torch.cat(made)
