"""Records of a training: plain dictionaries that every logger accepts.

A record has a `kind` and `time_s`, the seconds since training began. The kinds, and their other fields:

| kind | when | fields |
| --- | --- | --- |
| `start` | once | `learners`, `engine`, `batch_size`, `epochs`, `steps`, `rounds`, `samples_per_epoch`, `device`, `sync`, `model`, `parameters`, `run_dir`, and the provenance: `began`, `command`, `commit`, `versions`, `machine` |
| `calibration` | once, if engine or learners were chosen automatically | `source` (`calibration`, `cache`, `pinned`, `rule` or `checkpoint`), `engine`, `learners`, `summary`, `rows` (the decision table: a mapping for each setting) |
| `rounds` | periodically | `round`, `epoch`, `samples`, `loss`, `samples_per_s`, `learners`, `lr` |
| `epoch` | once an epoch | `epoch`, `round`, `samples`, `train_loss`, `samples_per_s`, `learners`, `lr`; `loss` and each metric of the validation data by name; means of the step's metrics in training as `train_...`; `noise_scale` where the tuner's objective is goodput |
| `evaluation` | within an epoch, with `validation.every` below 1 | `epoch`, `round`, `samples`, `learners`, `lr`; `loss` and each metric of the validation data by name |
| `event` | when it happens | `round`, `event`, `message` |
| `end` | once | `round`, `samples`, `seconds`, `samples_per_s`, `time_to_target_s`, `learner_restarts`, `best_round` (of the best evaluation), and the last value of each metric; `stopped` for a member of a sweep that ended early |
| `members` | once, in a sweep's own records | `engine`, `at_once` |

`epoch` counts completed epochs, `round` completed rounds, and `samples` the samples seen so far.
"""  # noqa: E501

import functools
import json
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeGuard

from bow.errors import RunDirectoryError

Record = Mapping[str, Any]  # one JSON object: numbers, strings, None, and lists and mappings of them

SYNTHETIC = "synthetic data"  # the event of a training on synthetic data
SWITCHED, STAYED = "compiled", "not compiled"  # events that a resumed training repeats: how its learning task runs on

POSITION = ("epoch", "round", "samples")
SPEED = ("samples_per_s", "learners", "lr")
OUTCOME = ("seconds", "time_to_target_s", "learner_restarts", "best_round")
# Fields that are not metrics.
FIELDS = frozenset(
    ("kind", "time_s", "train_loss", "noise_scale", "event", "message", "stopped", "rows", *POSITION, *SPEED, *OUTCOME)
)

TEXTS = frozenset(("kind", "event", "message", "stopped", "model", "summary", "status", "why"))
# Fields with the same type in all kinds of records.
NUMBERS = (FIELDS - TEXTS - {"rows"}) | {"parameters", "low", "high", "compile_s"}

VALIDATION = ("epoch", "evaluation")  # kinds of records with values of the validation data


def metrics(record: Record) -> dict[str, float]:
    """Return the metrics of validation and of the step in an `epoch`, `evaluation` or `end` record, by name."""
    # JSON has no NaN, so it was written as null.
    values = {name: math.nan if value is None else value for name, value in record.items() if name not in FIELDS}
    return {name: value for name, value in values.items() if is_number(value) or isinstance(value, float)}


def scalars(record: Record) -> dict[str, float]:
    """Return the points that a `rounds`, `epoch` or `evaluation` record adds to series, by the series' name."""
    if record["kind"] not in ("rounds", *VALIDATION):
        return {}
    part = "validation" if record["kind"] in VALIDATION else "train"
    named = {"train/epoch_loss": record.get("train_loss")}
    for name, value in metrics(record).items():
        of_training = name.startswith("train_")
        named[f"train/{name.removeprefix('train_')}" if of_training else f"{part}/{name}"] = value
    named |= {f"run/{name}": record.get(name) for name in ("epoch", "samples", "noise_scale", *SPEED)}
    return {name: value for name, value in named.items() if is_number(value)}


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def plain(value: Any) -> Any:
    """Convert a value to numbers, strings, None, lists and dictionaries, as JSON and YAML need it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    if isinstance(shape := getattr(value, "shape", None), tuple):
        return f"{type(value).__name__}{list(shape)}" if shape else plain(value.item())
    if callable(value):
        return call_text(value)
    # A memory address differs between runs.
    text = str(value)
    return type(value).__qualname__ if " object at 0x" in text else text


def call_text(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        arguments = [repr(value) for value in function.args]
        arguments += [f"{name}={value!r}" for name, value in function.keywords.items()]
        return f"{call_text(function.func)}({', '.join(arguments)})"
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def read_records(path: str | Path, *, strict: bool = True) -> list[dict[str, Any]]:
    """Read the records of a `metrics.jsonl`, without lines cut off by a crash; unless `strict`, without wrong ones."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as lines:
            return list(_parsed(path, lines, strict))
    except RunDirectoryError:
        raise
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read ({error.strerror or error}); make it readable") from error


def _parsed(path: str | Path, lines: Iterator[str], strict: bool) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict) or "kind" not in record:
            continue
        if (wrong := _wrong_field(record)) is not None:
            if not strict:
                continue
            what = reprlib.repr(record[wrong])
            raise RunDirectoryError(f"{path}, line {number}: {wrong} cannot be {what}; correct or remove the line")
        yield record


def _wrong_field(record: Record) -> str | None:
    of_numbers = record.get("kind") in ("rounds", "end", *VALIDATION)
    texts = TEXTS & FIELDS if of_numbers else TEXTS  # a metric may have the name of another kind's text field
    for name, value in record.items():
        if name in texts:
            is_right = isinstance(value, str)
        elif name == "rows":
            is_right = isinstance(value, list) and all(isinstance(row, dict) and not _wrong_field(row) for row in value)
        elif name in ("time_s", "round"):
            is_right = is_number(value)
        else:
            is_any = not (of_numbers or name in NUMBERS)
            is_right = is_any or value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        if not is_right:
            return name
    return None
