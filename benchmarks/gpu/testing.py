"""A group of tests on the device, as a part: whatever ends its process, what was finished is known, and the rest runs.

A case leaves a row when it begins, and what became of it when it ends. `Program` calls the part again behind a case
that hung or ended the process.
"""

import contextlib
import faulthandler
import gc
import importlib
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.machine import open_machine
from benchmarks.gpu.parts import GRACE_S, Context, Findings

CASE_S = 60.0  # a test that takes longer hangs; what is compiled takes most of that
BEGUN, PASSED, SKIPPED, FAILED, ENDED, HUNG = "begun", "passed", "skipped", "failed", "ended the process", "hung"
BAD = (FAILED, ENDED, HUNG)


class DeviceBrokenError(RuntimeError):
    """The device is in an error that stays; another process can go on."""


def measure(context: Context, group: str) -> None:
    """Run the cases of a group that have not run, and then those that failed in an earlier run."""
    cases = importlib.import_module("tests.gpu.groups").cases(group, context.config.fake)
    rows: dict[str, dict[str, Any]] = {row["case"]: row for row in context.findings.get("cases", ())}
    todo = [case for case in cases if case.name not in rows]
    todo += [case for case in cases if rows.get(case.name, {}).get("is_old") and rows[case.name]["state"] in BAD]
    context.record(total=len(cases), cases=list(rows.values()))
    for index, case in enumerate(todo):
        if index and not context.time.left:
            context.cut(f"{len(todo) - index} of {len(cases)} cases not run")
            return
        limit_s, began = min(CASE_S, context.time.left + GRACE_S), time.monotonic()
        rows[case.name] = {"case": case.name, "state": BEGUN, "limit_s": limit_s, "until": began + limit_s}
        context.record(cases=list(rows.values()))
        with _ended_after(limit_s, context.config.processes):
            state, message = _result(case, context)
        seconds = round(time.monotonic() - began, 3)
        rows[case.name] = {"case": case.name, "state": state, "seconds": seconds, "message": message}
        context.record(cases=list(rows.values()))
        print(f"{state}: {case.name}\n{message}".rstrip(), flush=True)
        if state == FAILED and not context.machine.still_works():
            raise DeviceBrokenError(f"the device takes nothing any more behind {case.name}")


def ended(findings: Findings) -> bool:
    """Say what became of the case that ran when the process ended; whether the cases behind it can still run."""
    begun = [row for row in findings.get("cases", ()) if row["state"] == BEGUN]
    for row in begun:
        limit_s, is_late = row.pop("limit_s"), time.monotonic() >= row.pop("until")
        if is_late and limit_s < CASE_S:  # the time of the part was over: it has not run
            findings["cases"].remove(row)
        row |= {"state": HUNG if is_late else ENDED, "seconds": limit_s, "message": findings["failure"]}
    return bool(begun) or findings["failure"].startswith(DeviceBrokenError.__name__)


def kept(findings: Mapping[str, Any], is_old: bool = True) -> Findings:
    """What the next process goes on from: the cases that have ended."""
    rows = [row for row in findings.get("cases", ()) if row["state"] != BEGUN]
    return {"cases": [row | {"is_old": True} if is_old else row for row in rows]} if rows else {}


def failures(findings: Mapping[str, Any]) -> list[str]:
    """A line for every case that failed."""
    return [
        f"{row['state']}: {row['case']}: {(row['message'].strip().splitlines() or [''])[-1]}"
        for row in findings.get("cases", ())
        if row["state"] in BAD
    ]


def told(findings: Mapping[str, Any]) -> list[str]:
    """How many cases passed and so on, and those that failed."""
    if "total" not in findings:
        return []
    counts = Counter(row["state"] for row in findings["cases"])
    counts["not run"] = findings["total"] - len(findings["cases"])
    return [", ".join(f"{count} {state}" for state, count in counts.items() if count), *failures(findings)]


def _result(case: Any, context: Context) -> tuple[str, str]:
    skipped = importlib.import_module("tests.gpu.case").Skipped
    try:
        case.run(open_machine(context.config.fake))
    except skipped as reason:
        return SKIPPED, str(reason)
    except Exception:
        return FAILED, traceback.format_exc()
    finally:
        gc.collect()
    return PASSED, ""


@contextlib.contextmanager
def _ended_after(seconds: float, is_apart: bool) -> Iterator[None]:
    """End the process, with the stacks of all threads in its log, where this takes too long."""
    if is_apart:
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
