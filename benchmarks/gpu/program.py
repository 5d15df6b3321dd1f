"""The parts one after another, each in a process of its own, until the time is over; a second run goes on behind it."""

import contextlib
import gc
import io
import json
import shutil
import signal
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import comparisons, members, testing, throughput
from benchmarks.gpu.aims import MISSED, judge
from benchmarks.gpu.machine import check_gpu, nvidia_smi, open_machine
from benchmarks.gpu.parts import GRACE_S, NAMES, PARTS, USUAL_S, Allotment, Context, Findings, Part
from benchmarks.gpu.peers import ENVIRONMENT, Peers
from benchmarks.gpu.racing import PLAIN, one_graphed
from benchmarks.gpu.workloads import WORKLOADS
from benchmarks.harness import (
    CaseError,
    Host,
    LateError,
    first_words,
    prepare_output,
    ratios,
    render,
    result,
    say,
    spread,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    from benchmarks.gpu import Config

COMPILING_S = 110.0  # so long everything waits at most for what compiles, from when it was started
START_S = 25.0  # what a process may take until its device is open
END_S = 3.0  # what is kept for the last page and the last archive
RENEWED_S = 20.0  # so often the archive is made anew

UNENDED, CUT, FAILED, COMPLETE = range(4)


def run(config: "Config", command: str) -> int:
    """Measure, print what came of it, and write it down behind every part; 1 where an aim was missed."""
    for folder in (config.out, config.out / "parts", config.out / "logs"):
        prepare_output(folder)
    if not config.fake:
        check_gpu()
        if config.processes and nvidia_smi().get("compute_mode", "").startswith("Exclusive"):
            say("the GPU serves one process at a time: no processes for parts and for what is compiled")
            config = replace(config, processes=False)
    program = Program(config, command)
    with archived(config.out, config.archive):
        program.run()
    for aim in program.aims:
        say(f"{aim['verdict']}: {aim['aim']}: {aim['found']}")
    return int(any(aim["verdict"] == MISSED for aim in program.aims))


class Program:
    """One run of the benchmark."""

    def __init__(self, config: "Config", command: str) -> None:
        self._config = config
        self._command = command
        self._began = time.monotonic()
        self._time = Allotment(config.budget_s - END_S)
        self._found = {part.name: found for part in PARTS if (found := read(file_of(config.out, part)))}
        self.aims: list[dict[str, Any]] = []

    def run(self) -> None:
        """All parts that were asked for; by default those that no earlier run has finished."""
        parts, left_out = self._todo(), []
        with members.sharing(self._config) as shared, closing(self._peers(parts, shared)) as peers:
            peers.start()  # they compile while what is not timed is done
            for part in parts:
                least_s = part.least_s + START_S if self._config.processes else 0.0
                if not self._time.allows(least_s):
                    left_out.append(part.name)
                    continue
                if part.is_timed:
                    peers.settle(part.name, min(COMPILING_S, self._time.left - least_s - part.most_s))
                self._measure(part, peers.addresses(part.name))
                peers.end(part.name)
                self._write()
        if left_out:
            say(f"left out, because time ran out: {', '.join(left_out)}")
        self._write()

    def _todo(self) -> list[Part]:
        """First what never ended, then what was cut short by its own clock, then what failed."""
        parts = [part for part in PARTS if part.name in self._config.parts]
        states = {part.name: progress(self._found.get(part.name, {})) for part in parts}
        if self._config.parts == NAMES:
            parts = [part for part in parts if states[part.name] != COMPLETE]
            if not parts:
                say(f"all has been measured; to measure it again remove {self._config.out}, or name it by parts=")
        return sorted(parts, key=lambda part: states[part.name])

    def _measure(self, part: Part, peers: Mapping[str, str]) -> None:
        config, path = self._config, file_of(self._config.out, part)
        most_s = part.most_s * max(1.0, config.budget_s / USUAL_S)
        say(f"{part.name}: up to {min(most_s, self._time.left):.0f} s")
        began, before = time.monotonic(), self._found.get(part.name, {})
        if before:  # this run may come less far
            shutil.copy(path, path.with_suffix(".before"))
        write(path, testing.kept(before))
        if config.processes:
            self._measure_apart(part, most_s, peers)
        else:
            measure(part, config, most_s, self._time.deadline, {})
        self._found[part.name] = findings = read(path)
        trouble = [*findings.get("notes", []), *filter(None, [findings.get("failure")]), *testing.told(findings)]
        for line in (f"took {time.monotonic() - began:.1f} s", *trouble):
            say(f"  {line}")

    def _measure_apart(self, part: Part, most_s: float, peers: Mapping[str, str]) -> None:
        """In a process of its own; the cases behind a test that ended it run in another one."""
        path, log = file_of(self._config.out, part), self._config.out / "logs" / f"{part.name}.txt"
        ends, goes_on = min(self._time.deadline, time.monotonic() + START_S + most_s + GRACE_S), True
        words = part.name, self._config, most_s, min(self._time.deadline - END_S, ends - GRACE_S), peers
        while goes_on:
            with closing(Host({**ENVIRONMENT, **part.environment}, log)) as host:
                try:
                    host.call(measure_here, *words, limit_s=max(1.0, ends - time.monotonic()))
                    findings = read(path)
                except LateError:
                    findings = read(path) | {"is_cut": True, "notes": ["ended, because time ran out"]}
                except CaseError as error:
                    findings = read(path) | {"failure": str(error)}
            goes_on = "failure" in findings and testing.ended(findings) and time.monotonic() < ends - START_S
            if goes_on:
                del findings["failure"]
            write(path, findings)

    def _peers(self, parts: list[Part], shared: Mapping[str, str]) -> Peers:
        config = self._config
        every = [*throughput.peers(config), *comparisons.uncached(), *comparisons.compiled(config)]
        every += members.peers(config, shared)
        named = [part.name for part in parts if config.processes]
        return Peers([spec for name in named for spec in every if spec.part == name], config.out / "logs", config)

    def _write(self) -> None:
        """What there is so far."""
        found = {part.name: self._found[part.name] for part in PARTS if part.name in self._found}
        self.aims = judge(found, self._config.fake)
        facts: dict[str, Any] = next((each["machine"] for each in found.values() if "machine" in each), {})
        parts = {name: each | {"machine": _own_facts(each)} for name, each in found.items()}
        findings = {"machine": facts, "aims": self.aims, "parts": parts}
        values = result("gpu", self._command, self._config, time.monotonic() - self._began, findings)
        write_json(self._config.out / "gpu.json", values)
        write_text(self._config.out / "gpu.md", render("gpu", {**values, **page(values)}))


def progress(findings: Findings) -> int:
    """How far a part has come, by what it has left."""
    if "failure" in findings or testing.failures(findings):
        return FAILED
    if "is_cut" in findings:
        return CUT
    return COMPLETE if "seconds" in findings else UNENDED


def measure_here(name: str, config: "Config", most_s: float, deadline: float, peers: Mapping[str, str]) -> None:
    """What the process of a part does; the deadline is one of `time.monotonic`, which is one for the machine."""
    import torch

    (part,) = (part for part in PARTS if part.name == name)
    torch.set_num_threads(1)  # what the host has to compute is little
    part.measure()
    gc.freeze()  # bow collects garbage before every capture, and need not look at all that was imported
    measure(part, config, most_s, deadline, peers)


def measure(part: Part, config: "Config", most_s: float, deadline: float, peers: Mapping[str, str]) -> bool:
    """Measure a part, whose clock begins when its device is open; all that it has found is in its file."""
    path = file_of(config.out, part)
    began, findings = time.monotonic(), testing.kept(read(path), is_old=False)

    def save(findings: Findings) -> None:
        write(path, findings)

    try:
        machine = open_machine(config.fake, config.tf32)
        findings |= {"machine": machine.facts(), "start_s": round(time.monotonic() - began, 1)}
        save(findings)
        time_left = Allotment(min(most_s, deadline - time.monotonic()))
        context = Context(machine, config, time_left, peers, config.out, save, findings)
        part.measure()(context, **part.arguments)
        findings["peak_gib"] = round(machine.peak_bytes() / 2**30, 3)
        return True
    except Exception as error:
        traceback.print_exc()
        findings["failure"] = first_words(error)
        return False
    finally:
        findings["seconds"] = round(time.monotonic() - began, 1)
        save(findings)


def file_of(out: Path, part: Part) -> Path:
    """Where a part's findings are."""
    return out / "parts" / f"{part.name}.json"


def read(path: Path) -> Findings:
    """What is in a file; nothing where there is none."""
    found: Findings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(path: Path, findings: Findings) -> None:
    """Write findings as a whole or not at all."""
    write_text(path, json.dumps(findings, allow_nan=False))


@contextlib.contextmanager
def archived(out: Path, archive: str) -> Iterator[None]:
    """Keep a folder in one file as well, which is made anew again and again, and when the program is told to end."""
    over, target = threading.Event(), Path(archive)

    def renew() -> None:
        while not over.wait(RENEWED_S):
            pack(out, target)

    if not archive:
        yield
        return
    prepare_output(target.parent)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    thread = threading.Thread(target=renew, name="archive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        over.set()
        thread.join()
        pack(out, target)


def pack(out: Path, target: Path) -> None:
    """Put a folder into an archive, as a whole or not at all; its files may change or go meanwhile."""
    made = target.with_name(f".{target.name}.made")
    with tarfile.open(made, "w:gz") as archive:
        for path in sorted(out.rglob("[!.]*")):
            with contextlib.suppress(OSError):  # a folder, or it has gone
                data = path.read_bytes()
                member = tarfile.TarInfo(str(Path(out.name) / path.relative_to(out)))
                member.size, member.mtime = len(data), int(time.time())
                archive.addfile(member, io.BytesIO(data))
    made.replace(target)


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "workloads": WORKLOADS,
        "plain_of": lambda rows: next((row for row in rows if row["name"] == PLAIN), None),
        "one_graphed": one_graphed,
        "ratio": _ratio,
        "ran_as": _ran_as,
        "tests_told": testing.told,
    }


def _ratio(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Turn by turn."""
    if base is None or len(row["rates"]) != len(base["rates"]):
        return None
    return spread(ratios(row["rates"], base["rates"]), 3)


def _ran_as(row: Mapping[str, Any]) -> str:
    """A contestant's name, and what really ran where that is something else."""
    engine, ran = row["name"].partition(",")[0], row.get("engine")
    is_other = ran and engine in ("graph", "graph+round", "streams", "fused") and ran != engine
    return f"{row['name']} (ran as {ran})" if is_other else str(row["name"])


def _own_facts(found: Findings) -> dict[str, Any]:
    """What may be another in every part: clocks, temperature, variables."""
    facts = found.get("machine", {})
    return {name: facts[name] for name in ("nvidia_smi", "environment_variables") if name in facts}
