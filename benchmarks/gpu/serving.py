"""The process of a peer: `python -m benchmarks.gpu.serving SPEC`."""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from benchmarks.harness.bare import prepare


def main(words: str) -> None:
    """Make a contestant, and have it take turns for whoever asks, until it is told to end."""
    prepare()
    given = json.loads(words)
    end_with(os.getppid())
    failure = Path(f"{given['address']}.failed")
    try:
        contestant = make(given)
    except BaseException as error:
        traceback.print_exc()
        failure.write_text(first_words(error), encoding="utf-8")
        raise SystemExit(1) from error
    with Listener(given["address"], family="AF_UNIX") as listener:
        serve(listener, contestant)


def make(given: Mapping[str, Any]) -> Any:
    """The contestant of a spec, warm."""
    import torch

    from benchmarks.gpu.contestants import BowTraining, Contestant, GraphedTraining, PlainTraining, Training
    from benchmarks.gpu.machine import open_machine
    from benchmarks.gpu.workloads import workload

    torch.set_num_threads(1)  # of the host
    machine = open_machine(given["fake"], given["tf32"])
    subject = workload(given["model"], given["fake"])
    common = (subject, subject.data(given["samples"]), given["batch_size"])
    settings = given["settings"]
    makers: dict[str, Callable[[], Training]] = {
        "plain": lambda: PlainTraining(machine.device, *common, **settings),
        "graphed": lambda: GraphedTraining(machine, *common, **settings),
        "bow": lambda: BowTraining(machine.device, *common, **settings),
    }
    return Contestant(machine, makers[given["kind"]])


def serve(listener: Listener, contestant: Any) -> None:
    """Answer one caller after another."""
    while True:
        with listener.accept() as connection:
            try:
                while True:
                    what, seconds = connection.recv()
                    connection.send(_answer(contestant, what, seconds))
                    if what == "end":
                        return
            except (EOFError, OSError):
                continue


def first_words(error: BaseException) -> str:
    """The kind of an error and the first line of its message; the second as well where the first introduces it."""
    first, second, *_ = [*str(error).splitlines(), "", ""]
    return (
        f"{type(error).__name__}: {first} {second}".strip()
        if first.endswith(":")
        else (f"{type(error).__name__}: {first}")
    )


def _answer(contestant: Any, what: str, seconds: float) -> tuple[bool, Any]:
    try:
        if what == "about":
            return True, {"engine": contestant.engine, "first_call_s": contestant.first_call_s}
        if what == "turn":
            return True, contestant.turn(seconds)
        if what == "loss":
            return True, contestant.loss()
        return True, None
    except Exception as error:
        traceback.print_exc()
        return False, first_words(error)


def end_with(parent: int) -> None:
    """End when the process that has started this one has."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, name="end with the parent", daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
