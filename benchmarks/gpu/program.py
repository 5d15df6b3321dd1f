"""Runs the parts of `python -m benchmarks gpu` one after another and writes down what they found."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import allocators, compiling, throughput
from benchmarks.gpu.aims import MISSED, judge
from benchmarks.gpu.budget import Allotment
from benchmarks.gpu.child import file_of, job, measure, write
from benchmarks.gpu.machine import Machine, check_gpu, nvidia_smi, open_machine
from benchmarks.gpu.parts import EIGHT_QUEUES, PARTS, Findings, Part
from benchmarks.gpu.peers import Peers, child_environment, room_for_peers
from benchmarks.gpu.report import markdown
from benchmarks.gpu.settings import Config
from benchmarks.harness import prepare_output, result, write_json, write_text

COMPILING_S = 110.0  # So long everything waits at most for what compiles

COMPILING_SHARE = 0.25  # And no more than this of the time

GRACE_S = 15.0  # A part that goes on for so long behind its time is ended


def run(settings: Config, command: str) -> int:
    """Measure, print what came of it, and write it down behind every part."""
    settings = settings.reduced()
    for folder in (settings.out, settings.out / "parts", settings.out / "logs"):
        prepare_output(folder)
    if not settings.fake:
        settings = _checked(settings)
    program = Program(settings, command)
    program.run()
    return program.status


def _checked(settings: Config) -> Config:
    """Refuse to begin without a GPU, and do with one process where no other may use it."""
    check_gpu()
    if settings.processes and nvidia_smi().get("compute_mode", "").startswith("Exclusive"):
        print("the GPU serves one process at a time: no processes for parts and for what is compiled", flush=True)
        return replace(settings, processes=False)
    return settings


class Program:
    """One run of the benchmark."""

    def __init__(self, settings: Config, command: str) -> None:
        self._settings = settings
        self._command = command
        self._began = time.monotonic()
        self._time = Allotment(settings.budget_s)
        self._found: dict[str, Findings] = {}
        self._aims: list[dict[str, Any]] = []

    @property
    def status(self) -> int:
        """1 where an aim was missed."""
        return int(any(aim["verdict"] == MISSED for aim in self._aims))

    def run(self) -> None:
        """All parts that were asked for."""
        parts = [part for part in PARTS if part.name in self._settings.parts]
        for old in (*(self._settings.out / "parts").glob("*.json"), *(self._settings.out / "logs").glob("peers_of_*")):
            old.unlink()
        with self._peers() as peers:
            for index, part in enumerate(parts):
                if part.module != "launches":
                    peers.start()  # they compile while what is not timed is done
                if part.is_timed:
                    peers.settle(min(COMPILING_S, COMPILING_SHARE * self._settings.budget_s))
                weights = sum(other.weight for other in parts[index:])
                self._measure(part, self._time.share(part.weight, weights), peers.addresses(part.name))
                peers.end(part.name)
                self._write()
        for aim in self._aims:
            print(f"{aim['verdict']}: {aim['aim']}: {aim['found']}", flush=True)

    def _measure(self, part: Part, time_left: Allotment, peers: Mapping[str, str]) -> None:
        print(f"{part.name}: up to {time_left.seconds:.0f} s", flush=True)
        began = time.monotonic()
        if not self._settings.processes:
            if part.name == EIGHT_QUEUES:  # CUDA has started in this process
                return
            measure(part, self._settings, time_left, {}, self._opened)
        elif time_left.seconds < 1:
            write(file_of(self._settings.out, part), {"failure": "left out, because time ran out"})
        else:
            self._spawn(part, time_left, peers)
        self._found[part.name] = findings = json.loads(file_of(self._settings.out, part).read_text(encoding="utf-8"))
        trouble = [*findings.get("notes", []), *filter(None, [findings.get("failure")])]
        for line in (f"  took {time.monotonic() - began:.1f} s", *(f"  {line}" for line in trouble)):
            print(line, flush=True)

    def _spawn(self, part: Part, time_left: Allotment, peers: Mapping[str, str]) -> None:
        words = job(part, self._settings, time_left.deadline, peers)
        path = file_of(self._settings.out, part)
        write(path, {})
        with (self._settings.out / "logs" / f"{part.name}.txt").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.child", words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(part.environment),
            )
            failure = None
            try:
                status = process.wait(time_left.left + GRACE_S)
                if status not in (0, 1):
                    failure = f"its process ended with status {status}"
            except subprocess.TimeoutExpired:
                failure = f"was ended after {time_left.seconds + GRACE_S:.0f} s"
            finally:
                process.kill()
                process.wait()
        if failure is not None:
            write(path, json.loads(path.read_text(encoding="utf-8")) | {"failure": failure})

    def _opened(self) -> Machine:
        return open_machine(self._settings.fake, self._settings.tf32)

    @contextlib.contextmanager
    def _peers(self) -> Iterator[Peers]:
        settings = self._settings
        named = [part.name for part in PARTS if part.name in settings.parts and settings.processes]
        every = [*throughput.peers(settings), *allocators.peers(settings), *compiling.peers(settings)]
        specs = [spec for name in named for spec in every if spec.part == name]
        folder = Path(tempfile.mkdtemp(prefix="bow"))
        common = {"fake": settings.fake, "tf32": settings.tf32, "samples": settings.samples}
        peers = Peers(specs, folder, settings.out / "logs", common, room_for_peers())
        try:
            yield peers
        finally:
            peers.end()
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self) -> None:
        """What there is so far."""
        self._aims = judge(self._found, self._settings.fake)
        seconds = time.monotonic() - self._began
        facts: dict[str, Any] = next((found["machine"] for found in self._found.values() if "machine" in found), {})
        parts = {name: found | {"machine": _own_facts(found)} for name, found in self._found.items()}
        found = {"machine": facts, "aims": self._aims, "parts": parts}
        values = result("gpu", self._command, self._settings, seconds, found)
        write_json(self._settings.out / "gpu.json", values)
        write_text(self._settings.out / "gpu.md", markdown(values))


def _own_facts(found: Findings) -> dict[str, Any]:
    """What may be another in every part: clocks, temperature, variables."""
    facts = found.get("machine", {})
    return {name: facts[name] for name in ("nvidia_smi", "environment_variables") if name in facts}
