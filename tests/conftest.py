"""Fixtures of every test: tiers, shape checks, and a check for leaked threads."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import shape_checks
from tests import forked

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no compiler threads outlive a test

_GRACE_S = 120.0

# Deterministic examples; no deadlines, because test machines may be busy.
settings.register_profile("bow", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("by day", settings.get_profile("bow"), max_examples=40)
settings.load_profile("bow")

# Before the first test imports bow.
shape_checks.install("bow")

# Packages that compute with tensors; `--nightly` checks all.
_CHECKED = ("data", "devices", "kernels", "models", "replicas", "sync")

_LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="the tests that take long, too: wide tables and fuzzing")
    parser.addoption("--threads", type=int, default=1, help="of torch, in each process of the tests (1)")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("tx", None) or "PYTEST_XDIST_WORKER" in os.environ:  # those who run tests need torch
        import torch

        # Idle threads of a second OpenMP pool spin, which costs more than it gains on two busy cores.
        torch.set_num_threads(config.getoption("--threads"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; tests send it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # torch's graph interpreter uses tqdm if installed, whose thread would outlive a test.
    with contextlib.suppress(ImportError):
        importlib.import_module("tqdm").tqdm.monitor_interval = 0
    config.stash[_LEFT_OUT] = Counter()
    if not config.getoption("--nightly"):
        settings.load_profile("by day")
        if forked.PLACE not in os.environ:  # the processes of pytest-xdist share a server
            folder = forked.folder()
            os.environ[forked.PLACE] = f"{folder.name}/socket"
            config.add_cleanup(folder.cleanup)
        forked.install(os.environ[forked.PLACE])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what was imported and collected out of garbage collection, a full one of which would take half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000)  # the default, 700, takes 5 % of the time
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that cannot run here or are of another tier; skips would hide other skips."""
    import torch

    is_quick = config.option.markexpr == "quick"
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    reasons = {
        "nightly": None if config.getoption("--nightly") else "are for `pytest --nightly`",
        "sample": None if config.getoption("--nightly") else "are further cases of tables, for `pytest --nightly`",
        "quick": "are further cases of tables, for other tiers" if is_quick else None,
        "gpu": None if torch.cuda.is_available() else f"need a CUDA device, and this {build} build of torch sees none",
    }
    left_out = []
    if importlib.util.find_spec("lightning") is None:  # the example of that page cannot run
        items[:] = [item for item in items if not item.nodeid.endswith("bow.integrations.lightning.train")]
    for name, why in reasons.items():
        kept = []
        numbers: Counter[str] = Counter()  # remaining cases by table
        for item in items if why else []:
            mark, table = item.get_closest_marker(name), item.nodeid.partition("[")[0]
            (kept if mark is None or _is_sampled(mark, numbers[table]) else left_out).append(item)
            numbers[table] += 1
        if why:
            config.stash[_LEFT_OUT][why] = len(items) - len(kept)
            items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def _is_sampled(mark: pytest.Mark, number: int) -> bool:
    """Whether a case is part of the sample: with `one_in` and `first`, one in `one_in` is."""
    if not mark.args:
        return mark.name == "quick"
    one_in, first = (*mark.args, 0)[:2]
    return bool(number % one_in == first)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist, which reports to the controller
        session.config.workeroutput["left_out"] = dict(session.config.stash[_LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: pytest.Item) -> None:
    node.config.stash[_LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for why, count in config.stash[_LEFT_OUT].items():
        if count:
            terminalreporter.write_line(f"left out: {count} tests that {why}")


@pytest.fixture(autouse=True, scope="session")
def _alike_everywhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is the same for all tests."""
    import torch

    steps = tmp_path_factory.mktemp("steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bow.devices.cores.busy_cores", lambda: 0.0)  # nobody else is busy
        patch.setattr("bow.engines.captured.cache_folder", lambda: steps)  # shared by tests that train the same
        patch.setattr("bow.engines.fastest.fastest", lambda names, *_: names[-1])
        if not request.config.getoption("--nightly"):
            # Small trainings on several devices take as long as their processes look for each other.
            patch.setattr("bow.cluster.rendezvous.POLL_S", 0.01)
            patch.setattr("bow.cluster.launch.POLL_S", 0.02)
            # Before a capture libraries choose algorithms, but none does so on the fake device.
            for module in ("learner", "fused") if not torch.cuda.is_available() else ():
                patch.setattr(f"bow.engines.cuda.{module}.WARM_UP", 1)
        yield


@pytest.fixture(autouse=True)
def _no_choices_in_the_users_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached measurements of trainings are per test."""
    folder = functools.cache(lambda: tmp_path_factory.mktemp("choices"))
    monkeypatch.setattr(importlib.import_module("bow.training.tuning"), "cache_folder", folder)


@pytest.fixture
def _captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules of a test spread the same step: on devices with streams it is captured once for batches of a shape."""
    learner = importlib.import_module("bow.engines.cuda.learner")
    capture, kept = learner.capture_step, {}

    def capture_once(model: Any, batch: Any, *, step: Any) -> Any:
        shapes = tuple((each.shape, each.dtype) for each in batch)
        if shapes not in kept:
            kept[shapes] = capture(model, batch, step=step)
        return kept[shapes]

    monkeypatch.setattr(learner, "capture_step", capture_once)


@pytest.fixture
def _uncompiled() -> Iterator[None]:
    """Disable compilation in the compiled engine, which takes most of a minute."""
    import torch

    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "torch.compile with fullgraph=True found no compiled frames")  # torch 2.12
        yield


@pytest.fixture
def _one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners on threads have one place, so that the order of events, and so the trajectory, is known."""
    cores = importlib.import_module("bow.devices").available_cores()
    monkeypatch.setattr("bow.engines.streams.available_cores", lambda: cores[:1])


@pytest.fixture
def offline_wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """No setting of the machine's reaches wandb, and its service ends with the test."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb = pytest.importorskip("wandb")
    yield wandb
    wandb.teardown()


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the charts of reports, which take most of the time of a short training."""
    _disable_charts(monkeypatch)


def _disable_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("bow.observe.charts").Chart, "svg", lambda chart: "")


@pytest.fixture(autouse=True)
def _charts_of_reports_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.stem not in ("test_report", "test_charts") and not request.config.getoption("--nightly"):
        _disable_charts(monkeypatch)


@pytest.fixture(autouse=True)
def _shapes(request: pytest.FixtureRequest) -> Iterator[None]:
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with shape_checks.during(folder in _CHECKED or request.config.getoption("--nightly")):
        yield


@pytest.fixture(autouse=True)
def _no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _GRACE_S
    while (leaked := _started_since(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not leaked, f"threads outlived the test: {', '.join(thread.name for thread in leaked)}"


def _started_since(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]
