"""`bow train launcher=torchrun`: run torchrun's agent, which starts and restarts the processes."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from bow.cluster.rendezvous import address_towards, is_ours
from bow.devices import available_cores
from bow.errors import ClusterError, SettingError, reason
from bow.terminal import say
from bow.values import processes, whole

FAILED = 1
HOSTS = "is_host"  # option of the c10d rendezvous: this agent hosts the store; without it torch compares host names
MOST_PORTS = 65535


def launch(settings: Mapping[str, Any], overrides: Sequence[str], command: Sequence[str]) -> int:
    config = agent_settings(settings)
    own = ("launcher", "devices=", "devices.count=") if isinstance(settings["devices"]["count"], int) else ("launcher",)
    words = ["-u", "-m", "bow", *command, *(word for word in overrides if not word.startswith(own))]
    if not any(word.startswith("run.resume=") for word in overrides):
        words.append("run.resume=auto")  # restarted processes resume
    # Else a surviving agent does not send the store's address to one that rejoins (torch 2.13).
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    try:
        try:
            elastic_launch(config, sys.executable)(*words)
        except RendezvousConnectionError:
            if not config.rdzv_configs.pop(HOSTS, False):
                raise
            elastic_launch(config, sys.executable)(*words)  # another agent on this machine hosts the store already
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        say(f"bow: rank {rank} ended with status {failure.exitcode}; see its output", sys.stderr)
        return FAILED
    except SignalException as error:
        say(f"bow: {signal.Signals(error.sigval).name}: all processes were stopped", sys.stderr)
        return 128 + int(error.sigval)
    except (RendezvousError, RuntimeError, ValueError, OSError) as error:
        raise ClusterError(
            f"the rendezvous of the machines failed ({reason(error)}); check launcher.rdzv_endpoint and the others"
        ) from error
    return 0


def agent_settings(settings: Mapping[str, Any]) -> LaunchConfig:
    own = settings["launcher"]
    if settings["run"]["path"] is None:
        raise SettingError(
            "launcher=torchrun needs a run directory, got run.path=null; name one, so that restarted processes "
            "find their checkpoints"
        )
    least, most = _nodes(own["nnodes"])
    endpoint = own["rdzv_endpoint"]
    if most > 1 and endpoint is None:
        raise SettingError(
            f"launcher.nnodes={own['nnodes']} needs launcher.rdzv_endpoint, got null; name one of the machines and a "
            "free port of it, HOST:PORT, the same on all machines"
        )
    host, port = ("localhost", 0) if endpoint is None else _meeting_place(str(endpoint))
    own_address = address_towards(host, port)
    return LaunchConfig(
        min_nodes=least,
        max_nodes=most,
        nproc_per_node=_processes(own["nproc_per_node"], settings["devices"]["count"]),
        run_id=str(own["rdzv_id"]),
        rdzv_backend="c10d",
        rdzv_endpoint=f"{host}:{port}",
        rdzv_configs={HOSTS: True} if own_address is not None and is_ours(host) else {},
        local_addr=own_address,
        max_restarts=own["max_restarts"],
        monitor_interval=0.2,
    )


def _meeting_place(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= MOST_PORTS:
        raise SettingError(f"launcher.rdzv_endpoint must be HOST:PORT, as in server:29400, got {endpoint!r}")
    return host, int(port)


def _nodes(given: Any) -> tuple[int, int]:
    least, _, most = str(given).partition(":")
    if not least.isdigit() or not (most or least).isdigit() or not 1 <= int(least) <= int(most or least):
        raise SettingError(f"launcher.nnodes must be a number of machines, or MIN:MAX, got {given!r}")
    return int(least), int(most or least)


def _processes(given: Any, devices: Any) -> int:
    gpus, name = torch.cuda.device_count(), "launcher.nproc_per_node"
    if given != "auto" and isinstance(devices, int) and devices != given:
        raise SettingError(f"launcher.nproc_per_node={given} contradicts devices={devices}; leave one of them out")
    if given == "auto":
        name, given = "devices", devices if isinstance(devices, int) else max(1, gpus)
    return whole(name, given, also="auto") if gpus else processes(name, given, len(available_cores()), also="auto")
