"""The process of a part: `python -m benchmarks.gpu.child JOB`."""

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import Allotment
from benchmarks.gpu.parts import PARTS, Context, Findings, Part
from benchmarks.gpu.serving import end_with, first_words
from benchmarks.gpu.settings import Config
from benchmarks.harness.bare import prepare


def job(part: Part, settings: Config, deadline: float, peers: Mapping[str, str]) -> str:
    """What the process of a part is told; the deadline is one of `time.monotonic`, which is one for the machine."""
    plain = asdict(settings) | {"out": str(settings.out)}
    return json.dumps({"part": part.name, "settings": plain, "deadline": deadline, "peers": dict(peers)})


def main(words: str) -> int:
    """Measure a part."""
    prepare()
    end_with(os.getppid())
    import torch

    from benchmarks.gpu.machine import open_machine

    given = json.loads(words)
    (part,) = (part for part in PARTS if part.name == given["part"])
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given["settings"].items()
    }
    plain["out"] = Path(plain["out"])
    settings = Config(**plain)
    torch.set_num_threads(1)  # what the host has to compute is little
    part.measure()
    gc.freeze()  # bow collects garbage before every capture, and need not look at all that was imported
    time_left = Allotment(given["deadline"] - time.monotonic())
    return (
        0
        if measure(part, settings, time_left, given["peers"], lambda: open_machine(settings.fake, settings.tf32))
        else 1
    )


def measure(part: Part, settings: Config, time_left: Allotment, peers: Mapping[str, str], open_machine: Any) -> bool:
    """Measure a part; whatever it has found is in its file, and why it ended early."""
    path = file_of(settings.out, part)

    def save(findings: Findings) -> None:
        write(path, findings)

    began = time.monotonic()
    findings: Findings = {}
    save(findings)
    try:
        machine = open_machine()
        findings["machine"] = machine.facts()
        context = Context(machine, settings, time_left, peers, settings.out, save, findings)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
