"""Start Python processes of tests by forking one that has imported torch and bow, which takes seconds.

`install` makes `subprocess` start commands with `FORKED`, and the processes that bow itself starts, in this way. Each
has its own arguments, environment, folder, cores, input and output, and ends like a new interpreter. Settings that take
effect before imports (`PYTHONPATH`, unless `AFTERWARDS` is set, and loaded modules) need a real process, which
`pytest --nightly` starts everywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# An option that Python ignores: without a server such a command starts a normal interpreter.
OPTION = "forked"
FORKED = (sys.executable, "-X", OPTION)

# Started by bow itself, and by torchrun for it.
MODULES = (
    "bow",
    "bow.cluster.worker",
    "tests.cluster.job",
    "torch.distributed.run",
)
SCRIPTS = (
    "from bow.planning.search.processes import main; main()",
    "import torch, runpy; runpy.run_module('benchmarks.harness.serving', run_name='__main__')",
)

PLACE = "BOW_TESTS_FORKED"  # the server's socket, for processes started by forked ones
AFTERWARDS = "BOW_TESTS_PATHS"  # set: `PYTHONPATH` and its `sitecustomize` need not come before the imports
LIMIT = 2**20  # maximum size of a request
POLL_S = 0.05
STILL_WANTED_S = 2.0  # interval between checks that tests are still running

_real = subprocess.Popen


def _added_paths(environment: Mapping[str, str]) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(ROOT))]


_first = dict(os.environ)
"""Original environment of the tests, and so of the server."""


class Forked(_real):  # type: ignore[type-arg, valid-type, misc]
    """A child process of the server, or an ordinary one for other commands."""

    _connection: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        _, _, cwd, env, _, _, shell, *pipes = rest[:13]
        words = request_of(args) if executable is None and not shell and PLACE in os.environ else None
        env = dict(os.environ if env is None else env)
        if words is None or (AFTERWARDS not in env and _added_paths(env) != _added_paths(_first)):
            super()._execute_child(args, executable, preexec_fn, *rest)
            return
        request = {
            **words,
            "environment": env,
            "folder": os.fspath(cwd or Path.cwd()),
            "cores": sorted(os.sched_getaffinity(0)),
            "session": rest[18],
            "group": rest[19],
        }
        self._connection = _connect(os.environ[PLACE])
        files = [own if own != -1 else inherited for inherited, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        socket.send_fds(self._connection, [json.dumps(request).encode()], files)
        self.pid = int(self._connection.recv(LIMIT))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*args, **options)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None and self._try_wait(os.WNOHANG)[0] == self.pid:
                    self._handle_exitstatus(self._status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)
        try:
            said = self._connection.recv(LIMIT, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._connection.close()
        self._status = int(said or 255 << 8)  # the server has ended
        return self.pid, self._status


def request_of(args: Any) -> dict[str, Any] | None:
    """Return the request for a command, or None if the server does not run it."""
    if isinstance(args, (str, bytes, os.PathLike)):
        return None
    program, *words = map(os.fspath, args)
    if program != sys.executable:
        return None
    wanted, unbuffered = False, False
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        option = words.pop(0)
        if option == "-X" and words[:1] == [OPTION]:
            wanted = bool(words.pop(0))
        elif option == "-u":
            unbuffered = True
        elif option != "-B":
            return None
    if wanted and words and words[0].endswith(".py"):
        words.insert(0, "file")
    if len(words) < 2 or not (wanted or words[1] in (MODULES if words[0] == "-m" else SCRIPTS)):
        return None
    return {"kind": words[0], "what": words[1], "words": words[2:], "unbuffered": unbuffered}


def folder() -> tempfile.TemporaryDirectory[str]:
    """Create the folder of the socket; its name includes this process, with which the server ends."""
    return tempfile.TemporaryDirectory(prefix=f"bow-forked-{os.getpid()}-")


def install(place: str) -> None:
    """Fork from now on; the server starts with the first process, and ends with the tests that own `place`."""
    os.environ[PLACE] = place
    subprocess.Popen = Forked  # type: ignore[misc]


def _connect(place: str) -> socket.socket:
    """Connect to the server, and start it if necessary."""
    with contextlib.suppress(FileExistsError):
        Path(place).with_name("started").touch(exist_ok=False)
        command = [sys.executable, "-m", __name__, place]
        nothing = subprocess.DEVNULL
        own = {"env": _first, "cwd": ROOT, "start_new_session": True}
        server = _real(command, stdin=nothing, stdout=nothing, stderr=nothing, **own)
        server.returncode = 0  # it outlives this process; no warning
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        try:
            connection.connect(place)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(POLL_S)
        else:
            return connection


def load() -> None:
    """Import the modules that processes of the tests need."""
    for name in ("pytest", "hypothesis", "torch.export", "torch._dynamo", "torch.distributed.run", "hydra"):
        importlib.import_module(name)
    import bow

    for found in pkgutil.walk_packages(bow.__path__, "bow."):
        if not found.name.endswith(("__main__", ".worker", ".sklearn")):  # the last takes more than a second
            try:
                importlib.import_module(found.name)
            except ImportError:
                continue


def serve(listener: socket.socket, place: Path) -> dict[str, Any]:
    """Fork on request while the tests that own `place` are running; returns in the children."""
    waiting: dict[int, socket.socket] = {}
    wakeup, wake = socket.socketpair()
    for end in (wakeup, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    for source in (listener, wakeup):
        selector.register(source, selectors.EVENT_READ)
    while place.exists() and _is_alive(int(place.parent.name.split("-")[-2])):
        ready = {key.fileobj for key, _ in selector.select(STILL_WANTED_S)}
        if wakeup in ready:
            wakeup.recv(LIMIT)
            _report(waiting)
        if listener in ready:
            connection = listener.accept()[0]
            message, files, _, _ = socket.recv_fds(connection, LIMIT, 3)
            pid = os.fork() if message else 0
            if pid == 0 and message:
                for number, file in enumerate(files):
                    os.dup2(file, number)
                signal.set_wakeup_fd(-1)
                selector.close()
                for other in (listener, wakeup, wake, connection, *waiting.values()):
                    other.close()
                for file in files:
                    os.close(file)
                return json.loads(message)  # type: ignore[no-any-return]
            for file in files:
                os.close(file)
            waiting[pid] = connection
            connection.send(str(pid).encode())
    os._exit(0)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _report(waiting: dict[int, socket.socket]) -> None:
    """Report children that have ended."""
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with waiting.pop(pid) as connection:
            try:
                connection.send(str(status).encode())
            except OSError:
                continue  # no one waits for it


def become(request: dict[str, Any]) -> None:
    """Set up this process like a new one."""
    import numpy as np
    import torch
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    from bow.cluster import rendezvous
    from bow.observe.charts import Chart

    for number, handler in ((signal.SIGCHLD, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        signal.signal(number, handler)
    if request["session"]:
        os.setsid()
    elif request["group"] != -1:
        os.setpgid(0, request["group"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(request["cores"]))))
    random.seed()
    np.random.seed()
    is_file = request["kind"] == "file"
    sys.argv = [request["what"] if is_file else "-c", *request["words"]]
    sys.path[0] = {"-m": request["folder"], "-c": "", "file": str(Path(request["what"]).parent)}[request["kind"]]
    if AFTERWARDS in os.environ:
        sys.path[1:1] = _added_paths(os.environ)
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    if request["unbuffered"]:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    subprocess.Popen = Forked  # type: ignore[misc]
    subprocess_handler.Popen = Forked  # type: ignore[attr-defined,misc]  # torchrun imports it by name
    Chart.svg = lambda chart: ""  # type: ignore[method-assign]  # as `no_charts` of the tests does
    rendezvous.POLL_S = 0.01  # as `_alike_everywhere` does


def main(place: str) -> None:
    """Serve, and run the requests in the children."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(place)
    listener.listen(64)
    load()
    gc.freeze()
    request = serve(listener, Path(place))
    become(request)
    status = 1
    try:
        run(request)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        leave(status)


def run(request: dict[str, Any]) -> None:
    """Run the requested module or code."""
    if request["kind"] == "-m":
        runpy.run_module(request["what"], run_name="__main__", alter_sys=True)
    elif request["kind"] == "file":
        runpy.run_path(request["what"], run_name="__main__")
    else:
        exec(compile(request["what"], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})


def leave(status: int) -> None:
    """End like an interpreter, but without deleting all modules, which often takes longer than the process."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
