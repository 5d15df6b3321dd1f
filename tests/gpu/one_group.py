"""The process of a group of tests: `python -m tests.gpu.one_group GROUP FILE FIRST DEADLINE FAKE`.

Of every test it writes a line when it begins and one when it ends, so that what ended the process is known.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.harness.bare import prepare

BROKEN = 3
"""The status of a process that cannot go on, because the device is in an error that stays."""


def main(group: str, path: str, first: int, deadline: float, fake: bool) -> int:
    prepare()
    import torch

    from benchmarks.gpu.machine import open_machine
    from tests.gpu.groups import cases

    torch.set_num_threads(1)
    with Path(path).open("a", encoding="utf-8") as file:

        def write(**values: Any) -> None:
            file.write(json.dumps(values) + "\n")
            file.flush()

        every = cases(group, fake)
        gc.freeze()  # bow collects garbage before every capture, and need not look at all that was imported
        write(total=len(every))
        for index, case in enumerate(every[first:], first):
            if time.monotonic() > deadline:
                write(index=index, case=case.name, state="not run", message="time ran out")
                continue
            write(index=index, case=case.name, state="begun")
            began = time.monotonic()
            state, message = result(case, lambda: open_machine(fake))
            print(f"{state}: {case.name}\n{message}".rstrip(), flush=True)
            write(index=index, case=case.name, state=state, message=message, seconds=round(time.monotonic() - began, 3))
            if state == "failed" and not fake and not still_works():
                return BROKEN
    return 0


def result(case: Any, machine: Any) -> tuple[str, str]:
    """What became of a test, and why."""
    from tests.gpu.case import Skipped

    try:
        case.run(machine())
    except Skipped as reason:
        return "skipped", str(reason)
    except Exception:
        return "failed", traceback.format_exc()
    finally:
        gc.collect()
    return "passed", ""


def still_works() -> bool:
    """Whether the device does what it is told; after an illegal access it never does again in this process."""
    import torch

    try:
        torch.cuda.synchronize()
        return bool(torch.ones(2, device="cuda").sum() == 2)
    except Exception:
        return False


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(words[0], words[1], int(words[2]), float(words[3]), words[4] == "True"))
