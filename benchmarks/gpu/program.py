"""The parts one after another, each in a process of its own; behind each, what has been found is written down."""

import gc
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import comparisons, throughput
from benchmarks.gpu.aims import MISSED, judge
from benchmarks.gpu.floors import Floors
from benchmarks.gpu.machine import Machine, check_gpu, nvidia_smi, open_machine
from benchmarks.gpu.parts import EIGHT_QUEUES, PARTS, Allotment, Context, Findings, Part
from benchmarks.gpu.peers import ENVIRONMENT, Peers
from benchmarks.gpu.racing import PLAIN, one_graphed
from benchmarks.gpu.workloads import WORKLOADS
from benchmarks.harness import (
    CaseError,
    Host,
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

COMPILING_S = 110.0  # so long everything waits at most for what compiles
COMPILING_SHARE = 0.25  # and no more than this of the time
GRACE_S = 15.0  # a part that goes on for so long behind its time is ended


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
    program.run()
    return int(any(aim["verdict"] == MISSED for aim in program.aims))


class Program:
    """One run of the benchmark."""

    def __init__(self, config: "Config", command: str) -> None:
        self._config = config
        self._command = command
        self._began = time.monotonic()
        self._time = Allotment(config.budget_s)
        self._found: dict[str, Findings] = {}
        self.aims: list[dict[str, Any]] = []

    def run(self) -> None:
        """All parts that were asked for."""
        parts = [part for part in PARTS if part.name in self._config.parts]
        for old in (*(self._config.out / "parts").glob("*.json"), *(self._config.out / "logs").glob("peers_of_*")):
            old.unlink()
        with self._peers() as peers:
            for index, part in enumerate(parts):
                if part.function != "launches":
                    peers.start()  # they compile while what is not timed is done
                if part.is_timed:
                    peers.settle(min(COMPILING_S, COMPILING_SHARE * self._config.budget_s))
                weights = sum(other.weight for other in parts[index:])
                self._measure(part, self._time.share(part.weight, weights), peers.addresses(part.name))
                peers.end(part.name)
                self._write()
        for aim in self.aims:
            say(f"{aim['verdict']}: {aim['aim']}: {aim['found']}")

    def _measure(self, part: Part, time_left: Allotment, peers: Mapping[str, str]) -> None:
        say(f"{part.name}: up to {time_left.seconds:.0f} s")
        began, path = time.monotonic(), file_of(self._config.out, part)
        if not self._config.processes:
            if part.name == EIGHT_QUEUES:  # CUDA has started in this process
                return
            measure(part, self._config, time_left, {}, lambda: open_machine(self._config.fake, self._config.tf32))
        elif time_left.seconds < 1:
            write(path, {"failure": "left out, because time ran out"})
        else:
            write(path, {})
            try:
                self._measure_apart(part, time_left, peers)
            except CaseError as error:
                write(path, json.loads(path.read_text(encoding="utf-8")) | {"failure": str(error)})
        self._found[part.name] = findings = json.loads(path.read_text(encoding="utf-8"))
        trouble = [*findings.get("notes", []), *filter(None, [findings.get("failure")])]
        for line in (f"took {time.monotonic() - began:.1f} s", *trouble):
            say(f"  {line}")

    def _measure_apart(self, part: Part, time_left: Allotment, peers: Mapping[str, str]) -> None:
        log = self._config.out / "logs" / f"{part.name}.txt"
        log.unlink(missing_ok=True)
        with closing(Host({**ENVIRONMENT, **part.environment}, log)) as host:
            words = part.name, self._config, time_left.deadline, peers
            host.call(measure_here, *words, limit_s=time_left.left + GRACE_S)

    @contextmanager
    def _peers(self) -> Iterator[Peers]:
        config = self._config
        named = [part.name for part in PARTS if part.name in config.parts and config.processes]
        every = [*throughput.peers(config), *comparisons.uncached(), *comparisons.compiled(config)]
        peers = Peers([spec for name in named for spec in every if spec.part == name], config.out / "logs", config)
        try:
            yield peers
        finally:
            peers.end()

    def _write(self) -> None:
        """What there is so far."""
        self.aims = judge(self._found, self._config.fake)
        seconds = time.monotonic() - self._began
        facts: dict[str, Any] = next((found["machine"] for found in self._found.values() if "machine" in found), {})
        parts = {name: found | {"machine": _own_facts(found)} for name, found in self._found.items()}
        found = {"machine": facts, "aims": self.aims, "parts": parts}
        values = result("gpu", self._command, self._config, seconds, found)
        write_json(self._config.out / "gpu.json", values)
        write_text(self._config.out / "gpu.md", render("gpu", {**values, **page(values)}))


def measure_here(name: str, config: "Config", deadline: float, peers: Mapping[str, str]) -> None:
    """What the process of a part does; the deadline is one of `time.monotonic`, which is one for the machine."""
    import torch

    (part,) = (part for part in PARTS if part.name == name)
    torch.set_num_threads(1)  # what the host has to compute is little
    part.measure()
    gc.freeze()  # bow collects garbage before every capture, and need not look at all that was imported
    time_left = Allotment(deadline - time.monotonic())
    measure(part, config, time_left, peers, lambda: open_machine(config.fake, config.tf32))


def measure(
    part: Part, config: "Config", time_left: Allotment, peers: Mapping[str, str], opened: Callable[[], Machine]
) -> bool:
    """Measure a part; whatever it has found is in its file, and why it ended early."""
    path = file_of(config.out, part)

    def save(findings: Findings) -> None:
        write(path, findings)

    began = time.monotonic()
    findings: Findings = {}
    save(findings)
    try:
        machine = opened()
        findings["machine"] = machine.facts()
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


def write(path: Path, findings: Findings) -> None:
    """Write findings as a whole or not at all."""
    made = path.with_name(f".{path.name}.made")
    made.write_text(json.dumps(findings, allow_nan=False), encoding="utf-8")
    made.replace(path)


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the page needs besides."""
    return {
        "floors": Floors(values["parts"], values["machine"]),
        "workloads": WORKLOADS,
        "plain_of": lambda rows: next((row for row in rows if row["name"] == PLAIN), None),
        "one_graphed": one_graphed,
        "ratio": _ratio,
        "ran_as": _ran_as,
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
