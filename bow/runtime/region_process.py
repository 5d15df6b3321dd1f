"""A process of low priority that compiles a step graph into the cache, beside a training."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import NoReturn

from bow.compiling import SCRATCH, cache_folder
from bow.errors import BowError, reason
from bow.graph import StepGraph
from bow.runtime.region import compile_region

COMMAND = (
    "import json, sys; given = json.load(sys.stdin); sys.path[:] = given['path']; "
    "from bow.runtime.region_process import main; main(given['graph'], given['parent'], given['nice'])"
)
NICE = 19
PARENT_S = 1.0  # between two looks whether the training still runs
GRACE_S = 5.0  # for the process to remove its temporary files


class RegionProcess:
    """Calls `compile_region` in a fresh interpreter, in a session of its own, which Ctrl-C does not reach."""

    def __init__(self, graph: StepGraph, nice: int = NICE) -> None:
        path = [each for each in sys.path if isinstance(each, str)]  # others are ignored by imports
        sent = {"path": path, "graph": graph.to_json(), "parent": os.getpid(), "nice": nice}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(sent).encode())
            given.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND],
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def failure(self) -> str | None:
        """Why it failed, in one line; None if it has compiled the graph."""
        if not self._process.returncode:
            return None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"exit {self._process.returncode}")

    def close(self) -> None:
        """End the process, and the compilers that it has started."""
        if not self.has_ended:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            # What is left by SIGKILL, or by a signal before the interpreter was ready for it.
            for left in cache_folder().glob(f"*/{SCRATCH}{self._process.pid}-*"):
                shutil.rmtree(left, ignore_errors=True)
        self._errors.close()


def main(graph: str, parent: int, nice: int) -> None:
    """Compile the graph that the parent process has sent."""
    signal.signal(signal.SIGTERM, _end)
    os.nice(nice)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        compile_region(StepGraph.from_json(graph))
    except BowError as error:
        sys.exit(reason(error))


def _end(number: int, _: object) -> NoReturn:
    """Unwind the stack, so that temporary files are removed."""
    sys.exit(128 + number)


def _end_with(parent: int) -> None:
    """End this process and its compilers if the parent was killed."""
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os.killpg(0, signal.SIGTERM)
