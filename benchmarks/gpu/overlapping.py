"""Whether kernels of two learners run at the same time, by the profiler's own timestamps."""

import functools
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import Context
from benchmarks.gpu.racing import Race
from benchmarks.gpu.trace import overlap, save_small
from benchmarks.harness import first_words
from benchmarks.trainings import BowTraining

ENGINES: tuple[str, ...] = ("graph", "graph+round", "streams")
LEARNERS = 2
CALLS = 3
MODEL, BATCH = "lenet", 16


def measure(context: Context) -> None:
    """Trace some rounds of two learners in every engine that has a stream for each."""
    rows: list[dict[str, Any]] = []
    for engine in ENGINES:
        if rows and not context.time.allows(3):
            context.cut(f"{engine}: left out")
            continue
        try:
            rows.append(traced(context, engine))
        except Exception as error:
            context.note(f"{engine}: left out, {first_words(error)}")
        context.record(model=MODEL, batch_size=BATCH, learners=LEARNERS, rows=rows)


def traced(context: Context, engine: str) -> dict[str, Any]:
    """Trace some rounds of an engine."""
    machine = context.machine
    with machine.around():
        training = Race(context, MODEL, BATCH).subject.bow(LEARNERS, engine, most_rounds=4)
        with machine.device.issuing():
            for _ in range(CALLS):
                training()
            whole = Path(context.out) / f".whole_trace_{engine}.json"
            try:
                runs = machine.trace(functools.partial(_calls, training), whole)
            finally:
                whole.unlink(missing_ok=True)  # tens of megabytes, most of it about Python
        training.close()
    small = Path(context.out) / f"trace_{engine}.json.gz"
    save_small(runs, small)
    if not runs:
        context.note(f"{engine}: the profiler saw no kernels")
    found = overlap(runs)
    return {
        "engine": training.engine,
        "kernels": len(runs),
        "streams": len({run.stream for run in runs}),
        "busy_us": round(found.busy_us, 1),
        "shared_us": round(found.shared_us, 1),
        "together_us": round(found.together_us, 1),
        "most_at_once": found.most,
        "trace": small.name,
    }


def _calls(training: BowTraining) -> None:
    for _ in range(CALLS):
        training()
