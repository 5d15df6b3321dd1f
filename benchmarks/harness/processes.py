"""Separate processes for cases, with a defined environment; they end with their parent."""

import contextlib
import functools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]  # the checkout
START_S = 120.0  # longest time to start
POLL_S = 0.05


class CaseError(RuntimeError):
    """A case in another process failed, does not answer, or its process ended."""


class LateError(CaseError):
    """There is no answer within the limit."""


class EndedError(CaseError):
    """The process has ended."""


class Remote:
    """Client of the process that serves an address; it serves one client at a time.

    Args:
        address: of the process.
        patience_s: longest time until it serves.

    Raises:
        CaseError: it does not serve in time, or its preparation failed; the message says why.
    """

    def __init__(self, address: Path, patience_s: float = START_S) -> None:
        deadline, failure = time.monotonic() + patience_s, address.with_suffix(".failed")
        while not address.exists():
            if failure.exists():
                raise CaseError(failure.read_text(encoding="utf-8"))
            if time.monotonic() > deadline:
                raise CaseError("was not ready in time")
            time.sleep(POLL_S)
        while True:
            try:
                self.connection: Connection[Any, Any] = Client(str(address), family="AF_UNIX")
                return
            except ConnectionRefusedError as error:  # its address is there before it listens
                if time.monotonic() > deadline:
                    raise CaseError("was not ready in time") from error
                time.sleep(POLL_S)

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Request the call of a function; `receive` returns the result."""
        try:
            self.connection.send_bytes(pickle.dumps((function, arguments)))
        except (EOFError, OSError) as error:
            raise EndedError("its process has ended") from error

    def receive(self, limit_s: float | None = None) -> Any:
        try:
            if not self.connection.poll(limit_s):
                raise LateError(f"does not answer within {limit_s:g} s")
            is_good, answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise EndedError("its process has ended") from error
        if not is_good:
            raise CaseError(str(answer))
        return answer

    def call(self, function: Callable[..., Any], *arguments: Any, limit_s: float | None = None) -> Any:
        """Call a function in the process, and return its result.

        Raises:
            CaseError: it raised, the process ended, or there is no answer within the limit.
        """
        self.send(function, *arguments)
        return self.receive(limit_s)

    def close(self) -> None:
        """Disconnect; the process then serves other clients."""
        self.connection.close()


# torch first: bow would set the wait policy of idle threads
SERVING = "import torch, runpy; runpy.run_module('benchmarks.harness.serving', run_name='__main__')"


class Host:
    """A separate process that serves calls: a fresh Python with torch's policy for idle threads, and with bytecode.

    Args:
        environment: changes of this process's variables; None: an unset variable.
        log: file for its output; None: the output of this process.
        prepare: a function and its arguments, called before the first request.
    """

    def __init__(
        self,
        environment: Mapping[str, str | None] | None = None,
        log: Path | None = None,
        prepare: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bow-"))
        self.address = self._folder / "calls"
        variables = environment_of({"OMP_WAIT_POLICY": None, "PYTHONDONTWRITEBYTECODE": None, **(environment or {})})
        with contextlib.ExitStack() as stack:
            output = None if log is None else stack.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVING, str(self.address), pickle.dumps(prepare).hex()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env=variables,
                process_group=0,
            )
        self._remote: Remote | None = None
        self._is_stopped = False

    @property
    def remote(self) -> Remote:
        """The client, connected on first use."""
        if self._remote is None:
            self._remote = Remote(self.address)
        return self._remote

    @property
    def is_settled(self) -> bool:
        """Whether it serves, or has ended."""
        return self.address.exists() or self._process.poll() is not None

    def call(self, function: Callable[..., Any], *arguments: Any, limit_s: float | None = None) -> Any:
        """Call a function in the process, which is resumed if it was stopped, and return its result."""
        self.resume()
        try:
            return self.remote.call(function, *arguments, limit_s=limit_s)
        except EndedError as error:
            raise EndedError(f"its process ended with status {self._process.wait()}") from error

    def stop(self) -> None:
        """Suspend it and its children until its next turn: their threads may spin on the cores."""
        if not self._is_stopped and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGSTOP)
            self._is_stopped = True

    def resume(self) -> None:
        if self._is_stopped:
            os.killpg(self._process.pid, signal.SIGCONT)
            self._is_stopped = False

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # it may not lead its group yet
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def environment_of(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables of a process that has to import this bow, with changes; None: unset."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = {**os.environ, "PYTHONPATH": path, **changes}
    return {name: value for name, value in found.items() if value is not None}


def apart(
    function: Callable[..., T],
    *arguments: Any,
    environment: Mapping[str, str | None] | None = None,
    limit_s: float | None = None,
) -> T:
    """Call a function in a separate process, and return its result.

    Raises:
        CaseError: it raised, the process ended, or it took too long.
    """
    with contextlib.closing(Host(environment)) as host:
        found: T = host.call(function, *arguments, limit_s=limit_s)
        return found


def in_concert(hosts: Sequence[Host], function: Callable[..., T], *arguments: Any, limit_s: float) -> T:
    """Call a function in several processes, with their rank as argument; returns the result of the first one.

    Raises:
        CaseError: it raised in one of them (the others may then wait for it), or there is no answer within the limit.
    """
    for rank, host in enumerate(hosts):
        host.remote.send(function, *arguments, rank)
    waiting, deadline = {host.remote.connection: host for host in hosts}, time.monotonic() + limit_s
    while True:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise CaseError("did not end in time")
        for each in ready:
            host = waiting.pop(each)  # type: ignore[call-overload]
            found: T = host.remote.receive()
            if host is hosts[0]:
                return found


def parallel(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[T]:
    """Yield the results of jobs in order, from `workers` single-threaded processes; 1: in this process."""
    if workers == 1:
        yield from (job() for job in jobs)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_one_thread) as pool:
        for future in [pool.submit(job) for job in jobs]:
            yield future.result()


def together(devices: int, function: Callable[[Any], T]) -> T:
    """Call a function of bow's world in several processes, and return the result of the first one.

    Raises:
        SettingError: there are fewer cores.
    """
    import torch

    from bow.cluster import WorkerJob, start
    from bow.devices import available_cores
    from bow.errors import SettingError

    if len(available_cores()) < devices:
        raise SettingError(f"{devices} processes need a core each, this one has {len(available_cores())}")
    with start(devices, torch.device("cpu"), WorkerJob(functools.partial(_elsewhere, function))) as world:
        return function(world)


def _elsewhere(function: Callable[[Any], object]) -> None:
    import torch

    from bow.cluster import join

    with join(torch.device("cpu")) as world:
        function(world)


def first_words(error: BaseException) -> str:
    """Return the type and the first line of an error; also the second line if the first introduces it."""
    first, second, *_ = [*str(error).splitlines(), "", ""]
    return f"{type(error).__name__}: {first}{' ' + second if first.endswith(':') else ''}".strip()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
