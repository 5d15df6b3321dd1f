"""Two machines, each started with one command, average in two levels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bow.cluster import rendezvous
from bow.cluster.rendezvous import address_towards, interface_of, is_ours
from bow.observe.records import read_records

Machines = tuple[list[list[str]], str]


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Two network namespaces with a cable between them, or twice this machine where they cannot be made.

    What a command is to begin with on each, and the address of the first.
    """
    names = [f"bow-{os.getpid()}-{which}" for which in "ab"]
    made = [_ip(f"netns add {name}") for name in names]
    ends = list(zip(names, ("wire0", "wire1"), ("10.77.0.1", "10.77.0.2"), strict=True))
    try:
        if all(made) and _ip(f"link add wire0 netns {names[0]} type veth peer name wire1 netns {names[1]}"):
            for name, wire, address in ends:
                commands = (f"addr add {address}/24 dev {wire}", f"link set {wire} up", "link set lo up")
                assert all(_ip(f"-n {name} {command}") for command in commands)
            yield [["ip", "netns", "exec", name] for name in names], "10.77.0.1"
        else:
            yield [[], []], "127.0.0.1"
    finally:
        for name, there in zip(names, made, strict=True):
            if there:
                _ip(f"netns del {name}")


def _ip(arguments: str) -> bool:
    if shutil.which("ip") is None:
        return False
    return subprocess.run(["ip", *arguments.split()], check=False, capture_output=True).returncode == 0


@pytest.mark.nightly
def test_two_machines_train_together(machines: Machines, tmp_path: Path) -> None:
    prefixes, address = machines
    folder = tmp_path / "run"
    launcher = ["launcher=torchrun", "launcher.nnodes=2", f"launcher.rdzv_endpoint={address}:29417"]
    recipe = ["recipe=lenet", "sync=two_level", "sync.outer.every=6", f"run={folder}"]
    small = ["devices=1", "learners=2", "epochs=4", "engine=eager", "run.progress=false"]
    command = [sys.executable, "-m", "bow", "train", *recipe, *launcher, *small]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*prefix, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for prefix in prefixes
    ]
    try:
        said = [process.communicate(timeout=600) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], said
    assert "".join(out for out, _ in said).count("central model on ") == 1
    records = read_records(folder / "metrics.jsonl")
    assert [record["kind"] for record in records].count("start") == 1
    epochs = [record for record in records if record["kind"] == "epoch"]
    assert len(epochs) == 4
    assert epochs[-1]["accuracy"] > 0.5  # of ten digits


def test_the_way_to_this_machine_does_not_leave_it() -> None:
    assert address_towards("127.0.0.1", 29400) is None
    assert address_towards("no.such.machine.invalid", 29400) is None
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None


def test_an_address_is_ours_that_can_be_listened_at() -> None:
    assert is_ours("127.0.0.1")
    assert not is_ours("203.0.113.7")


def test_gloo_uses_the_way_to_the_others_unless_the_user_says_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(rendezvous.INTERFACE, raising=False)
    monkeypatch.setattr(rendezvous, "address_towards", lambda host, port: "127.0.0.1")
    with rendezvous.reachable_by("server", 29400):
        assert os.environ[rendezvous.INTERFACE] == "lo"
    assert rendezvous.INTERFACE not in os.environ
    monkeypatch.setenv(rendezvous.INTERFACE, "eth7")
    with rendezvous.reachable_by("server", 29400):
        assert os.environ[rendezvous.INTERFACE] == "eth7"
    assert os.environ[rendezvous.INTERFACE] == "eth7"
