"""Plain PyTorch whose idle threads spin: a process of its own, since torch's threads decide that when they start."""

import contextlib
import os
import signal
import subprocess
import sys

import torch

from bow.models.networks import NETWORKS

READY = b"."


class SpinningStep:
    """Forward and backward pass in a process whose OpenMP threads wait for work by spinning.

    With several threads that is PyTorch's best case: between operators nobody has to be woken. Outside of its turns the
    process is stopped, as its threads would go on spinning on everybody's cores.
    """

    def __init__(self, network: str, size: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.schedule_spinning", network, size, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_WAIT_POLICY": "ACTIVE"},
        )
        self._is_stopped = False
        self._wait()
        self.rest()

    def run(self) -> None:
        """One step."""
        if self._is_stopped:
            self._process.send_signal(signal.SIGCONT)
            self._is_stopped = False
        assert self._process.stdin is not None
        self._process.stdin.write(READY)
        self._process.stdin.flush()
        self._wait()

    def rest(self) -> None:
        """Stop the process until its next turn."""
        if not self._is_stopped and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            self._is_stopped = True

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.communicate()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.read(1) != READY:
            raise RuntimeError(f"the process that ran PyTorch ended with status {self._process.wait()}")


def _serve(name: str, size: str, threads: int) -> None:
    network = NETWORKS[name]
    model, (inputs, targets) = network.build(size), network.batch(size)
    torch.set_num_threads(threads)
    while True:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        if not sys.stdin.buffer.read(1):
            return
        model.zero_grad(set_to_none=True)
        network.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
