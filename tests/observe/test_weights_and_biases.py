import importlib.util
import json
import os
import socket
import struct
import subprocess
import sys

import pytest

from bow.errors import MissingDependencyError, SettingError
from bow.observe import WandbLogger
from tests.forked import FORKED

wandb = pytest.importorskip("wandb")
pytestmark = [
    pytest.mark.usefixtures("offline_wandb"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb"),
]

BLOCK, FILE_HEADER, HEADER, FULL, LAST = 32768, 7, 7, 1, 4


def offline_records(path):
    """The records of a .wandb file: LevelDB's log format, which is what `wandb sync` reads."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, record = path.read_bytes(), FILE_HEADER, b""
    assert data.startswith(b":W&B")
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        record += data[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (FULL, LAST):
            yield Record.FromString(record)
            record = b""


def items(values):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in values}


def log(directory, records, **options):
    logger = WandbLogger(**options)
    start, *others = records
    for record in [{**start, "run_dir": str(directory)}, *others]:
        logger.log(record)
    logger.close()
    # The last bytes reach the disk a moment after the run has ended; the end of the service waits for them.
    wandb.teardown()
    return sorted(directory.glob("wandb/offline-run-*"))


def test_without_a_network_a_run_is_left_that_wandb_sync_accepts(run, records, capfd):
    directory = run("digits")
    [offline] = log(directory.path, records(3))
    assert capfd.readouterr() == ("", "")
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(offline)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Would sync 1 run(s)" in said.stdout + said.stderr


def test_offline_nothing_is_sent_to_a_network_that_never_answers(tmp_path):
    code = (
        "from bow.observe import WandbLogger; logger = WandbLogger();"
        f"logger.log({{'kind': 'start', 'time_s': 0.0, 'run_dir': {str(tmp_path)!r}}});"
        "logger.log({'kind': 'rounds', 'time_s': 1.0, 'round': 3, 'loss': 0.5}); logger.close()"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        subprocess.run([*FORKED, "-c", code], env=environment | {"WANDB_BASE_URL": address}, check=True)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1


def test_the_run_that_is_left_holds_everything(run, records):
    directory = run("digits")
    [offline] = log(directory.path, records(3))
    [file] = offline.glob("*.wandb")
    left = list(offline_records(file))
    [about] = [record.run for record in left if record.HasField("run")]
    assert (about.project, about.display_name) == ("bow", "digits")
    config = items(about.config.update)
    assert (config["engine"], config["learners"], config["settings"]["optimizer"]) == ("eager", 2, {"lr": 0.1})
    rows = [items(record.history.item) for record in left if record.HasField("history")]
    assert [(row["_step"], row["train/loss"]) for row in rows if "train/loss" in row] == [
        (record["round"], record["loss"]) for record in records(3) if record["kind"] == "rounds"
    ]
    accuracy = [(row["_step"], row["validation/accuracy"]) for row in rows if "validation/accuracy" in row]
    assert accuracy == [(23, 0.5), (46, 0.75), (69, 0.875)]
    assert [row["_step"] for row in rows if "events/learners changed" in row] == [23]
    summary = {}
    for record in left:
        if record.HasField("summary"):
            summary |= items(record.summary.update)
    assert (summary["final/accuracy"], summary["final/samples_per_s"]) == (0.875, 1234.5)


def test_events_that_come_early_or_late_do_not_hide_the_series(tmp_path):
    """A resumed training tells at once of a decision that it will repeat; events of other devices come late."""
    start, first, second, third = ({"kind": "rounds", "time_s": 1.0, "round": 10 * n, "loss": 0.5} for n in range(4))
    early, late, own = ({"kind": "event", "time_s": 1.0, "round": n, "event": "e", "message": "m"} for n in (25, 5, 22))
    [offline] = log(tmp_path, [start, early, first, late, second, own, third])
    [file] = offline.glob("*.wandb")
    rows = [items(record.history.item) for record in offline_records(file) if record.HasField("history")]
    assert [row["_step"] for row in rows if "train/loss" in row] == [0, 10, 20, 30]
    assert [(row["_step"], row["events/e"]) for row in rows if "events/e" in row] == [(10, 1), (22, 2), (25, 3)]


def test_runs_of_one_process_do_not_mix(tmp_path, records):
    for name in ("first", "second"):
        assert len(log(tmp_path / name, records(1))) == 1
    assert wandb.run is None


@pytest.mark.parametrize(
    ("variable", "argument", "mode"),
    [(None, None, "offline"), ("", None, "offline"), ("online", None, "online"), ("online", "disabled", "disabled")],
)
def test_the_argument_goes_before_the_environment(monkeypatch, variable, argument, mode):
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    assert WandbLogger(mode=argument).mode == mode


def test_disabled_leaves_nothing(tmp_path, records):
    assert log(tmp_path, records(1), mode="disabled") == []


def test_a_mode_that_does_not_exist_is_an_error(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "ofline")
    with pytest.raises(SettingError, match="online, offline, disabled, shared, got 'ofline'"):
        WandbLogger()


def test_a_missing_package_is_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install wandb"):
        WandbLogger()
