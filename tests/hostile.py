"""Calls and command lines with invalid arguments: each must have a result, or a one-sentence error.

`python -m tests.hostile [calls [command lines [seed]]]` runs them, each in a forked process that has imported bow
and computed nothing; memory, time and processes are limited. Other outcomes are printed, and make the exit status
1.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import torch
import torch.nn.functional as F
import yaml
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bow
from bow.cli import COMMANDS, main
from bow.compiling import cache_folder
from bow.observe.records import read_records
from bow.observe.report import write_report
from bow.schedule import FirstComeSchedule, OrderedSchedule
from bow.training.schedule import read_schedule
from tests.grouped import SECTIONS, grouped, of_replicas

LIMIT_S = 90.0
MEMORY = 6 * 2**30
MOST_PROCESSES = 8
LONG = 1000
"""Trainings of more epochs or steps may exceed the time limit."""

CALLS, LINES = 700, 300

# fmt: off
NASTY = (
    "", " ", "a", "auto", "1", "0.5", "nan", "-1", "é\u202e", "x" * 300, "a/b/../..", "/", "~/x", "/dev/null",
    "\0", "\ud800", "%s", "${x}", "[", "a\nb",
)
NUMBERS = (
    0, 1, 2, 3, -1, 7, 10**9, 10**30, -(10**30), 0.5, 1.5, -0.5, 1e308, float("nan"), float("inf"), -float("inf"),
)
OTHERS: tuple[Any, ...] = (
    None, True, False, b"x", [], {}, (), [1], {"a": 1}, {1: 2}, set(), range(3), 1j, object(), object, Path("x"), print,
    nn.Linear, nn.ReLU(), nn.Linear(4, 3), torch.ones(2), torch.ones(()), torch.tensor(2), torch.device("cpu"),
    torch.float32, np.int64(2), np.float32("nan"), np.ones(3), len, lambda: None, lambda *_: None, lambda *a: a[0],
    bow.SMA, bow.SMA(), bow.Tuner(), FirstComeSchedule((1,)), bow.Timeline(), bow.Accuracy(), [bow.Accuracy()] * 2,
)
VALUES = st.sampled_from([*NASTY, *NUMBERS, *OTHERS]) | st.integers() | st.floats() | st.text(max_size=5)


class Lying(torch.utils.data.Dataset[Any]):
    """Says what it is told to of its length."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> Any:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index >= 30:
            raise IndexError(index)
        return X[index], Y[index]


X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3
PAIRS = TensorDataset(X, Y)
DATA: tuple[Any, ...] = (
    (X, Y), (X[:0], Y[:0]), (X, Y[:9]), (X * float("nan"), Y), (X, Y + 9), (X.double(), Y), (X.to("meta"), Y), X, [],
    (X.numpy(), Y.numpy()), (X.tolist(), Y.tolist()), {"x": X, "y": Y}, PAIRS, DataLoader(PAIRS, batch_size=9), None,
    (X[0, 0], Y[0]), (X, Y.float()), "digits", iter([]), *map(Lying, (-5, 0, 6.5, 20, 40, 2**40, 2**62, 2**70, "3")),
    DataLoader(Lying(40), batch_size=9), DataLoader(Lying(2**40), batch_size=9, shuffle=True),
)
MODELS: tuple[Any, ...] = (
    nn.Linear(4, 3), lambda: nn.Linear(4, 3), nn.Linear(5, 3), nn.Linear(4, 3).half(), nn.Linear(4, 3, device="meta"),
    nn.Linear, nn.LazyLinear(3), nn.Identity(), nn.Sequential(), nn.Linear(4, 3).requires_grad_(False), nn.Dropout(),
    lambda: 3, "lenet", torch.compile(nn.Linear(4, 3)), nn.Linear(4, 3, dtype=torch.cfloat),
    nn.DataParallel(nn.Linear(4, 3)), torch.jit.script(nn.Linear(4, 3)),
    nn.Sequential(torch.jit.script(nn.Linear(4, 3))), nn.Sequential(torch.jit.trace(nn.Linear(4, 3), X)),
)
LOSSES: tuple[Any, ...] = (
    F.cross_entropy, nn.CrossEntropyLoss(), nn.CrossEntropyLoss, F.mse_loss, lambda o, t: o, lambda o, t: 1.0,
    lambda o, t: o.sum().detach(), lambda o, t: None,
)
SGD, STEP_LR = torch.optim.SGD, torch.optim.lr_scheduler.StepLR
OPTIMIZERS: tuple[Any, ...] = (
    *(functools.partial(SGD, lr=lr) for lr in (0.1, float("nan"), 1e308, -1, 0, "a")), torch.optim.Adam,
    torch.optim.LBFGS, SGD(nn.Linear(1, 1).parameters()), lambda p: None,
)
USUAL: dict[str, tuple[Any, ...]] = {
    "model": MODELS, "data": DATA, "validation": DATA, "example": DATA,
    "batch": tuple((x[:4], y[:4]) for x, y in DATA[:7:2]) + DATA,
    "loss": LOSSES, "step": LOSSES, "optimizer": OPTIMIZERS,
    "engine": ("eager", "streams", "graph", "fused", "whole_round", "warp"),
    "sync": (bow.SMA(alpha=0.1), bow.SSGD(), bow.LocalSGD(2), bow.DiLoCo(), bow.ASGD(), bow.Independent(), bow.EASGD()),
    "scheduler": tuple(functools.partial(STEP_LR, step_size=size) for size in (0, 1, -1)),
    "devices": ("cpu", "cuda", "auto", 1, 2, 999), "learners": (1, 2, "auto", 3, 10**6, np.int64(2), 2.0, "4"),
    "device": ("cpu", "cuda", "cuda:7", "meta", torch.device("cpu")), "dispatch": ("fixed", "first_come", "last"),
    "target": ({"accuracy": 2}, {"accuracy": 0.1}, {"f1": 1}, {"loss": float("nan")}, {}),
    "metrics": ([bow.Accuracy()], [bow.Accuracy], [len], [nn.L1Loss()]), "memory": ("device", "swap"),
    "precision": ("bfloat16", "float16", "float64"), "buffers": ("average", "recalibrate", "first"),
    "on_nan": ("restart", "error", "ignore"), "topology": ("two_cores", "p100_cluster", "nowhere.yaml"),
    "strategy": ("auto", "nowhere.json", FirstComeSchedule((1, 1))), "settings": (bow.Tuner(),), "costs": ("roofline",),
    "budget_s": (0, -1, 1, 0.1, float("nan")), "name": ("lenet", "resnet32", "none", "x"),
    "callbacks": ([bow.TraceRounds()], [bow.TraceRounds], [bow.TraceRounds(first=0, rounds=1)]),
    "threads": ((1, 2), (0,), (1,) * 99),
}
# fmt: on


class Stop(bow.Callback):
    """Stops every training early."""

    def on_round_end(self, run: Any) -> None:
        if run.round > 3:
            run.stop()


def one_training(**settings: Any) -> Any:
    return bow.train(**grouped(**settings))


def one_round(*arguments: Any, **settings: Any) -> Any:
    with contextlib.closing(bow.Replicas(*arguments, **of_replicas(**settings))) as replicas:
        return replicas.round([(X[:4], Y[:4])] * replicas.learners)


def records() -> list[Any]:
    result = bow.train(**grouped(**STEP, **TRAIN, validation=(X, Y), learners=2, run_dir="trained"))
    return read_records(result.run_dir / "metrics.jsonl")


def reported(made: Any) -> None:
    Path("run").mkdir()
    lines = made if isinstance(made, list) else [made]
    Path("run/metrics.jsonl").write_text("\n".join(json.dumps(line, default=str) for line in lines))
    write_report(Path("run"))


def state() -> Any:
    with contextlib.closing(bow.Replicas(**of_replicas(**STEP, learners=2, engine="eager"))) as replicas:
        replicas.round([(X[:4], Y[:4])] * 2)
        return replicas.training_state()


def resumed(state: Any) -> None:
    with contextlib.closing(bow.Replicas(**of_replicas(**STEP, learners=2, engine="eager"))) as replicas:
        replicas.load_training_state(state)


def loaded(path_or_text: Callable[[Any], Any], is_path: bool) -> Callable[[Any], Any]:
    def read(made: Any) -> Any:
        text = json.dumps(made, default=str)
        Path("file").write_text(text)
        return path_or_text(Path("file") if is_path else text)

    return read


DAMAGED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "records": (records, reported),
    "state": (state, resumed),
    "schedule": (
        lambda: json.loads(OrderedSchedule((1, 1), ((0,), (1,))).to_json()),
        loaded(bow.Schedule.from_json, False),
    ),
    "graph": (lambda: json.loads(bow.capture(**BATCH).to_json()), loaded(bow.StepGraph.from_json, False)),
    "strategy": (lambda: json.loads(strategy().to_json()), loaded(read_schedule, True)),
}
"""Objects that can be saved, and the functions that load them."""


def strategy() -> Any:
    return bow.plan(**BATCH, budget_s=None, proposals=1, progress=False).partition


def damaged(kind: str, place: int, value: Any) -> Any:
    """Load a saved object in which one value was replaced."""
    make, read = DAMAGED[kind]
    made = [copy.deepcopy(make())]
    places = [(made, 0)]
    for holder, key in places:
        inner = holder[key]
        if isinstance(inner, dict | list):
            places += [(inner, each) for each in (inner if isinstance(inner, dict) else range(len(inner)))]
    holder, key = places[place % len(places)]
    holder[key] = value
    return read(made[0])


# fmt: off
STEP: dict[str, Any] = {"model": nn.Linear(4, 3), "loss": F.cross_entropy}
BATCH: dict[str, Any] = {**STEP, "batch": (X[:4], Y[:4])}
TRAIN: dict[str, Any] = {"data": (X, Y), "batch_size": 8, "callbacks": [Stop()], "engine": "eager", "progress": False}
CALLED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "train": (one_training, {**STEP, **TRAIN, "learners": 2}),
    "Replicas": (one_round, {**STEP, "learners": 2, "engine": "eager"}),
    "capture": (bow.capture, BATCH),
    "plan": (bow.plan, {**BATCH, "budget_s": None, "proposals": 2, "progress": False}),
    "profile": (bow.profile, {**BATCH, "repeats": 1, "cache": False}),
    "recipe": (bow.recipe, {"name": "lenet"}),
    "Schedule": (OrderedSchedule, {"threads": (1,), "order": ((0,),)}),
    "TwoLevel": (bow.TwoLevel, {"inner": bow.SMA(), "outer": bow.SMA()}),
    **{each.__name__: (each, {}) for each in (bow.SMA, bow.EASGD, bow.LocalSGD, bow.DiLoCo, bow.Tuner, bow.Accuracy)},
    **{each.__name__: (each, {}) for each in (bow.EarlyStopping, bow.Halving, bow.WarmupCosine)},
    "TraceRounds": (bow.TraceRounds, {}), "damaged": (damaged, {"kind": "state", "place": 0}),
}
# fmt: on
WEIGHTS = {"train": 14, "damaged": 14, "Replicas": 8, "capture": 3, "plan": 4}


def parameters(name: str) -> list[str]:
    """Names of the parameters of a call."""
    function = {"Replicas": bow.Replicas, "train": bow.train}.get(name) or CALLED[name][0]
    kinds = inspect.signature(function).parameters.values()
    own = [
        each.name for each in kinds if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL, each.POSITIONAL_ONLY)
    ]
    of_sections = {section: list(names) for section, (_, _, names) in SECTIONS.items()}
    more = {
        "plan": ["budget_s", "proposals", "seed", "learners", "starts", "method"],
        "train": [each for names in of_sections.values() for each in names],
        "Replicas": of_sections["engine"],
    }
    return own + more.get(name, [])


@st.composite
def calls(draw: Any) -> tuple[str, dict[str, Any]]:
    """A call with one to three unusual arguments."""
    name = draw(st.sampled_from([name for name in CALLED for _ in range(WEIGHTS.get(name, 1))]))
    if name == "damaged":
        return name, {
            "kind": draw(st.sampled_from(list(DAMAGED))),
            "place": draw(st.integers(0, 999)),
            "value": draw(VALUES),
        }
    names = draw(st.lists(st.sampled_from(parameters(name)), min_size=1, max_size=3, unique=True))
    usual = {each: st.sampled_from(USUAL[each]) if each in USUAL else VALUES for each in names}
    return name, {each: draw(st.one_of(usual[each], VALUES)) for each in names}


def keys(prefix: str = "", values: Any = None) -> Iterable[str]:
    """Yield all keys of `bow train`, including groups."""
    values = (
        yaml.safe_load(Path(bow.__file__).parents[1].joinpath("conf/config.yaml").read_text())
        if values is None
        else values
    )
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from keys(f"{prefix}{name}.", value)


# fmt: off
KEYS = sorted({
    *keys(), "model", "data", "optimizer", "sync", "engine", "logger", "launcher", "recipe", "optimizer.lr", "lr",
    "optimizer.momentum", "data.limit", "model.classes", "sync.mu", "sync.alpha", "x", "x.y", "hydra.run.dir",
})
WORDS = [
    *NASTY, *map(str, NUMBERS), "null", "true", "[a]", "{a: 1}", "${epochs}", "1,2", "lenet", "sgd", "eager", "cpu",
    "metrics.jsonl", "torch.nn.Linear", "torch.nn.functional.mse_loss", "{_target_: builtins.int}",
    "{_target_: torch.optim.lr_scheduler.StepLR, step_size: 0}",
]
FLAGS = ["--help", "-h", "-m", "--version", "--lr", "-", "--", "=", "==", "a=b=c", "'", "@x"]
FIRST = {
    "train": [
        "model=logistic_regression", "recipe=none", "engine=eager", "learners=1", "data.limit=64", "steps=3",
        "run.progress=false", "callbacks=[{_target_: tests.hostile.Stop}]",
    ],
    "plan": ["recipe=lenet", "budget_s=0.2"],
    "doctor": ["recipe=lenet"],
}
# fmt: on


@st.composite
def lines(draw: Any) -> list[str]:
    """A command line. Usual words remain, unless the same key is given again."""
    command = draw(
        st.sampled_from(["train"] * 12 + [name for name in COMMANDS if name != "bench"] + ["tarin", "", "--help"])
    )
    key = st.sampled_from(KEYS)
    sign = st.sampled_from(["", "", "", "", "+", "++", "~"])
    override = st.builds("{}{}={}".format, sign, key, st.sampled_from(WORDS) | st.text(max_size=4))
    word = st.one_of(
        override, override, override, st.sampled_from(FLAGS), st.sampled_from(WORDS), st.builds("~{}".format, key)
    )
    words = draw(st.lists(word, min_size=1, max_size=3))
    given = {each.lstrip("+~").split("=")[0] for each in words}
    if draw(st.booleans()) or command == "train":
        words = [each for each in FIRST.get(command, []) if each.split("=")[0] not in given] + words
    return [command, *words]


def call(name: str, changes: dict[str, Any]) -> str:
    """Return the outcome of a call: "result", or the error message."""
    function, usual = CALLED[name]
    try:
        function(**{**usual, **changes})
    except bow.BowError as error:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, MemoryError):
            return "MemoryError: "
        frames = traceback.extract_tb(error.__traceback__)
        if (
            any(frame.name == "step" and frame.filename.endswith("graph/learning_step.py") for frame in frames)
            and name != "train"
        ):
            return "result"  # exceptions of the user's own model or loss
        where = next(
            (
                f"{frame.filename.split('/bow/')[-1]}:{frame.lineno}"
                for frame in frames[::-1]
                if "/bow/" in frame.filename
            ),
            "",
        )
        return f"wrong: {type(error).__name__} at {where}: {error}"
    return "result"


def run(action: Callable[[], Any], folder: Path) -> tuple[str, str, str]:
    """Run an action in a separate process in an empty folder; returns its outcome, and its output on both streams."""
    home = folder / "home"
    work = folder / "work"
    for each in (home, work):
        each.mkdir()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        limited(action, folder)
    began, crowd = time.monotonic(), 0
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        crowd = max(crowd, processes(child))
        if crowd > MOST_PROCESSES or time.monotonic() - began > LIMIT_S:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    printed = [(folder / name).read_text(errors="replace") for name in ("out", "err")]
    if crowd > MOST_PROCESSES:
        return f"wrong: {crowd} processes", *printed
    if time.monotonic() - began > LIMIT_S:
        return "hang", *printed
    made = folder / "made"
    return (made.read_text(errors="replace") if made.exists() else f"wrong: ended with status {status}"), *printed


def limited(action: Callable[[], Any], folder: Path) -> None:
    """Run in the child; does not return."""
    try:
        os.setsid()
        os.chdir(folder / "work")
        os.environ.update(HOME=str(folder / "home"), XDG_CACHE_HOME=str(folder / "cache"), TMPDIR=str(folder))
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compiler processes
        (folder / "cache" / "bow").mkdir(parents=True)
        for built in libraries():
            (folder / "cache" / "bow" / built.name).symlink_to(built)
        tempfile.tempdir = str(folder)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), number)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        warnings.simplefilter("ignore")
        made = str(action())
        sys.stdout.flush()
        sys.stderr.flush()
        (folder / "made").write_text(made, errors="replace")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


@functools.cache
def libraries() -> list[Path]:
    """Build the compiled libraries, which would take most of a call's time, or all of it under load."""
    code = "from bow.runtime import loading; from bow.planning.simulator import simulation"
    subprocess.run([sys.executable, "-c", f"{code}; loading.native(), simulation.library()"], check=True)
    return [*cache_folder().glob("runtime-*"), *cache_folder().glob("planner-*")]


def processes(session: int) -> int:
    """Return the number of processes of a session."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            count += int(entry.read_text().rpartition(")")[2].split()[3]) == session
    return count


def judged(kind: str, given: Any, made: str, out: str, err: str, left: list[str]) -> str:
    """Classify an outcome in a word or two; "wrong: ..." is a failure."""
    if made == "hang":
        numbers = [
            abs(float(each)) for each in re.findall(r"-?\d+(?:\.\d+)?(?:e\d+)?", re.sub(r"'\w*\d\w*'", "", repr(given)))
        ]
        return "long" if max(numbers, default=0) >= LONG else "wrong: hang"
    if made.startswith("wrong"):
        return made
    if kind == "call":
        if made == "result":
            return "result"
        name, _, message = made.partition(": ")
        return f"sentence: {name}" if is_sentence(message) else f"wrong: no sentence: {made}"
    if "Traceback" in err:
        return f"wrong: traceback: {err[-300:]}"
    if made == "0":
        return "result"
    said = [line for line in err.splitlines() if line]
    if made == "2" and left:
        return f"wrong: status 2, and left {left[:3]}"
    if made in ("1", "2"):
        return (
            f"sentence: status {made}"
            if len(said) == 1 or said[-1].startswith("bow: ")
            else f"wrong: {len(said)} lines: {err[:300]}"
        )
    return f"wrong: status {made}"


def is_sentence(text: str) -> bool:
    return 10 < len(text) < 1500 and "\n" not in text.strip()


def shown(kind: str, given: Any) -> str:
    """Format a call or a command line as source code."""
    if kind == "line":
        return f"bow {given!r}"
    name, changes = given
    return f"{name}({', '.join(f'{key}={repr(value)[:80]}' for key, value in changes.items())})"


def attempt(kind: str, given: Any) -> str:
    """Make a call, or run a command line, and classify the outcome."""
    with tempfile.TemporaryDirectory(prefix="hostile", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        action = functools.partial(call, *given) if kind == "call" else functools.partial(main, given)
        made, out, err = run(action, folder)
        left = [str(path.relative_to(folder)) for place in ("work", "home") for path in (folder / place).rglob("*")]
        return judged(kind, given, made, out, err, [each for each in left if not each.startswith("home/.cache")])


def fuzz(kind: str, count: int, seed: int) -> collections.Counter[str]:
    """Make `count` calls, or run as many command lines; prints failures."""
    counts: collections.Counter[str] = collections.Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(calls() if kind == "call" else lines())
    def attempts(given: Any) -> None:
        what = attempt(kind, given)
        what, whole = (what[:60] if what.startswith("wrong") else what), what
        counts[what] += 1
        if what.startswith("wrong") and counts[what] < 4:
            print(f"{shown(kind, given)}\n    {whole[:400]}", flush=True)

    attempts()
    return counts


def report(num_calls: int = CALLS, num_lines: int = LINES, seed: int = 0) -> int:
    libraries()  # before the processes that use them
    found = {"call": fuzz("call", num_calls, seed), "line": fuzz("line", num_lines, seed)}
    for kind, counts in found.items():
        print(kind, json.dumps(dict(counts.most_common()), indent=1))
    return int(any(what.startswith("wrong") for counts in found.values() for what in counts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(report(*map(int, sys.argv[1:])))
