"""Worker processes of a search: fresh interpreters that call a function and exchange messages with the parent."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import cloudpickle

COMMAND = "from bow.planning.search.processes import main; main()"

Send: TypeAlias = Callable[[Any], None]  # sends to the parent process

Inbox: TypeAlias = "queue.SimpleQueue[Any]"  # messages from the parent process


class SearchProcess:
    """A fresh interpreter with this process's import path; it does not re-import the main script."""

    def __init__(self, messages: queue.Queue[tuple[SearchProcess, Any]]) -> None:
        self._messages = messages
        self._process = subprocess.Popen([sys.executable, "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdin as stdin, self._process.stdout as stdout:
            self._to_child = Connection(os.dup(stdin.fileno()), readable=False)
            self._from_child = Connection(os.dup(stdout.fileno()), writable=False)
        self._listening = threading.Thread(target=self._listen, name="bow search", daemon=True)
        self._listening.start()
        self.pid = self._process.pid

    def begin(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function(send, inbox, *arguments)` in the process."""
        self.send(sys.path)
        self.send((function, arguments))

    def send(self, message: Any) -> None:
        # Serialised here: the connection's own pickling would put tensors into shared memory.
        with contextlib.suppress(OSError):  # it has exited: `_listen` reports that
            self._to_child.send_bytes(cloudpickle.dumps(message))

    def end(self, within_s: float | None = 0.0) -> int:
        """Return the exit status; kill the process if it has not exited within this time (None: wait indefinitely)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        self._process.kill()
        self._listening.join()
        self._to_child.close()
        self._from_child.close()
        return self._process.wait()

    def _listen(self) -> None:
        """Queue received messages; None at the end."""
        # In a thread, so that Ctrl-C does not interrupt a half-received message.
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._messages.put((self, pickle.loads(self._from_child.recv_bytes())))
        self._messages.put((self, None))


def main() -> None:
    """Call the function received on standard input; its own output goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    there, back = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    inbox: Inbox = queue.SimpleQueue()
    sys.path[:] = pickle.loads(there.recv_bytes())
    function, arguments = pickle.loads(there.recv_bytes())
    threading.Thread(target=_listen, args=(there, inbox), name="bow-listen", daemon=True).start()
    function(lambda message: back.send_bytes(pickle.dumps(message)), inbox, *arguments)


def _listen(there: Connection, inbox: Inbox) -> None:
    """Queue received messages; exit immediately once the parent is gone."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            inbox.put(pickle.loads(there.recv_bytes()))
    os._exit(0)
