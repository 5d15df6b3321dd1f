"""The executors under a thread sanitizer, on random graphs; `make stress` runs many more of them."""

import shutil
import subprocess
from pathlib import Path

import pytest

import bow.kernels

SOURCE = Path(__file__).with_name("race.cpp")
KERNELS = Path(next(iter(bow.kernels.__path__)))
GRAPHS = 2000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs g++ or clang++")
    target = tmp_path_factory.mktemp("race") / "race"
    flags = ["-std=c++20", "-O1", "-g", "-pthread", "-fsanitize=thread", f"-I{KERNELS}"]
    done = subprocess.run([compiler, *flags, str(SOURCE), "-o", str(target)], capture_output=True, text=True)
    if "cannot find" in done.stderr:
        pytest.skip("this compiler has no thread sanitizer")
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.nightly
def test_executors_have_no_data_race_and_compute_what_one_thread_does(program: Path) -> None:
    done = subprocess.run([str(program), str(GRAPHS), "1"], capture_output=True, text=True, timeout=600)
    assert "ThreadSanitizer" not in done.stderr, done.stderr[:4000]
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(f"{GRAPHS} graphs")
