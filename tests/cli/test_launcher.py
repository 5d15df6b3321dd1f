"""`bow train launcher=torchrun`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bow.cli import launcher
from bow.cli.launcher import agent_settings
from bow.errors import SettingError
from bow.observe.records import read_records

LAUNCHER = {"nproc_per_node": "auto", "nnodes": 1, "rdzv_endpoint": None, "rdzv_id": "bow", "max_restarts": 3}


def settings(devices: Any = "auto", run_dir: str | None = "runs/x", **launcher: Any) -> dict[str, Any]:
    return {"devices": {"count": devices}, "run": {"path": run_dir}, "launcher": {**LAUNCHER, **launcher}}


def test_the_agent_is_told_what_the_settings_say() -> None:
    config = agent_settings(settings(devices=4, nnodes="1:2", rdzv_endpoint="server:29400"))
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 2, 4)
    assert (config.rdzv_endpoint, config.rdzv_backend, config.max_restarts) == ("server:29400", "c10d", 3)


def test_the_machine_that_an_address_is_of_is_where_all_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "address_towards", lambda host, port: "10.0.0.2")
    for host, ours in (("10.0.0.1", False), ("127.0.0.1", True)):
        config = agent_settings(settings(nnodes=2, rdzv_endpoint=f"{host}:29400"))
        assert config.local_addr == "10.0.0.2"
        assert config.rdzv_configs.get("is_host", False) is ours


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            ({"nnodes": 2, "rdzv_endpoint": given}, f"launcher.rdzv_endpoint must be HOST:PORT.*got '{given}'")
            for given in ("server", "server:0", "server:99999", "server:²")
        ),
        ({"run_dir": None}, "launcher=torchrun needs a run directory, got run.path=null; name one"),
        ({"nnodes": "two"}, "launcher.nnodes must be a number of machines, or MIN:MAX, got 'two'"),
        ({"nnodes": "3:2"}, "launcher.nnodes must be a number of machines, or MIN:MAX, got '3:2'"),
        ({"nnodes": 2}, "launcher.nnodes=2 needs launcher.rdzv_endpoint, got null"),
        ({"nproc_per_node": 4, "devices": 2}, "launcher.nproc_per_node=4 contradicts devices=2; leave one of them out"),
        ({"nproc_per_node": 0}, "launcher.nproc_per_node must be a whole number .*, or auto, got 0"),
    ],
    ids=str,
)
def test_what_cannot_be_carried_out_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        agent_settings(settings(**given))


def test_processes_train_together_from_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        "launcher=torchrun",
        "model=logistic_regression",
        "devices=2",
        "learners=1",
        "engine=eager",
        "steps=8",
        f"run={folder}",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "bow", "train", *words, "run.progress=false"],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count("central model on ") == 1
    records = read_records(folder / "metrics.jsonl")
    assert [record["kind"] for record in records].count("end") == 1
    assert (folder / "model.safetensors").exists()
