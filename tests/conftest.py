"""What every test gets: checked shapes, no thread that outlives its test, `gpu` tests that skip with a reason."""

import functools
import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

import shape_checks

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compiling threads outlives a test

_GRACE_S = 30.0

# The same examples every time; machines where tests run are busy now and then, which is nobody's fault.
settings.register_profile("bow", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bow")

# Before the first test imports bow.
shape_checks.install("bow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="the tests that take long, too: wide tables and fuzzing")


def pytest_configure() -> None:
    # Idle threads of a second OpenMP pool spin, which on two busy cores costs more than they bring.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):
        long = [item for item in items if item.get_closest_marker("nightly") is not None]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item.get_closest_marker("nightly") is None]
    if torch.cuda.is_available():
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    skip = pytest.mark.skip(reason=f"needs a CUDA device; this {build} build of torch sees none")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _no_choices_in_the_users_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What trainings of a test find by measurement is kept for that test only."""
    folder = functools.cache(lambda: tmp_path_factory.mktemp("choices"))
    monkeypatch.setattr("bow.training.tuning.cache_folder", folder)


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
