"""Compiled code is made once, by one process at a time, and says what is missing where it cannot be made."""

import contextlib
import os
import resource
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import NoReturn

import pytest
import torch

import bow
from bow.compiling import CACHE, built, cached_files, trim_cache
from bow.errors import RuntimeUnavailableError
from bow.files import JsonCache
from bow.runtime import loading
from bow.runtime.loading import compile_extension, content_hash, native
from bow.runtime.local import LocalRuntime
from bow.seeds import derive_seed
from bow.tuner import ChoiceCache, EngineSetting
from tests.forked import FORKED

SLOW = "#include <torch/extension.h>\n"  # takes seconds to compile


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_there_is_not_made_again(cache: Path) -> None:
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        target.write_text("content")

    for _ in range(2):
        path = built("thing-1", "thing.so", make)
        assert path == cache / "thing-1" / "thing.so"
        assert path.read_text() == "content"
    assert len(made) == 1


def test_a_file_that_was_damaged_is_made_again(cache: Path) -> None:
    def make(target: Path) -> None:
        target.write_text("content")

    path = built("thing-1", "thing.so", make)
    path.write_text("con")
    assert built("thing-1", "thing.so", make).read_text() == "content"
    path.unlink()
    assert built("thing-1", "thing.so", make).read_text() == "content"


def test_what_was_not_used_for_longest_goes_first(cache: Path) -> None:
    for number in range(4):
        path = cache / f"thing-{number}" / "thing.so"
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (number, number))
    measured = JsonCache(cache / "measured")
    measured.store("one", 1)
    os.utime(measured.path("one"), (0, 0))
    assert measured.find("one") == 1
    os.utime(cache / "thing-0" / "thing.so")  # which are used again
    size = measured.path("one").stat().st_size
    assert trim_cache(2000 + size) == 2000
    assert sorted(path.parent.name for _, _, path in cached_files()) == ["measured", "thing-0", "thing-3"]
    assert trim_cache(0) == 2000 + size
    assert cached_files() == []


USER = textwrap.dedent(
    """
    from pathlib import Path
    from bow.compiling import built
    built("thing-1", "thing.so", lambda target: target.write_text("content") and None)
    print("built", flush=True)
    input()
    print(built("thing-1", "thing.so", lambda target: target.write_text("again") and None).read_text())
    """
)


def test_what_a_process_uses_and_what_is_pinned_stays(cache: Path) -> None:
    choices = ChoiceCache(cache / "choices")
    choices.pin({"model": "mlp"}, EngineSetting("graph", 2))
    start = [*FORKED, "-c", USER]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "built\n"
        trim_cache(0)
        assert [path.name for _, _, path in cached_files()] == ["thing.so"]
        assert user.communicate("\n")[0] == "content\n"
    assert trim_cache(0) > 0
    assert cached_files() == []
    assert choices.find({"model": "mlp"}) is not None


def test_what_went_meanwhile_is_made_again(cache: Path) -> None:
    built("thing-1", "thing.so", lambda target: target.touch())
    assert trim_cache(0) == 64  # the checksum
    (cache / "thing-1" / "thing.so").unlink()
    assert built("thing-1", "thing.so", lambda target: target.write_text("again") and None).read_text() == "again"
    trim_cache(0)
    assert (cache / "thing-1" / "thing.so").exists()


def test_what_fails_leaves_nothing_and_is_tried_again(cache: Path) -> None:
    def fail(target: Path) -> None:
        target.write_text("half")
        raise RuntimeUnavailableError("no")

    with pytest.raises(RuntimeUnavailableError):
        built("thing-1", "thing.so", fail)
    assert [path.suffix for path in (cache / "thing-1").iterdir()] == [".lock"]
    assert built("thing-1", "thing.so", lambda target: target.touch()).exists()


BUILDER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from bow.compiling import built
    def make(target):
        with open(os.environ["LOG"], "a") as log:
            log.write("made\\n")
        target.write_text("ha")
        time.sleep(float(sys.argv[1]))
        target.write_text("half and half")
    print(built("thing-1", "thing.so", make).read_text())
    """
)


def test_of_several_processes_one_makes_it_and_the_others_wait(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    start = [*FORKED, "-c", BUILDER, "0.3"]
    builders = [subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [builder.communicate()[0].strip() for builder in builders] == ["half and half"] * 3
    assert (tmp_path / "log").read_text().splitlines() == ["made"]


def test_a_process_that_is_killed_while_it_builds_blocks_nobody_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("LOG", str(log))
    with subprocess.Popen([*FORKED, "-c", BUILDER, "60"]) as first:
        while not log.exists():
            time.sleep(0.05)
        first.kill()
    done = subprocess.run([*FORKED, "-c", BUILDER, "0"], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "half and half"
    assert sorted(path.name for path in (cache / "thing-1").iterdir()) == ["thing.sha256", "thing.so"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE, str(tmp_path / "file"))
    with pytest.raises(RuntimeUnavailableError, match="set BOW_CACHE to a folder that can be written to"):
        built("thing-1", "thing.so", Path.touch)


def test_other_content_has_another_name() -> None:
    assert content_hash("a", "b") != content_hash("ab", "")
    assert content_hash("a") == content_hash("a")


def test_without_a_compiler_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeUnavailableError, match=r"needs a C\+\+ compiler, .* apt install g\+\+"):
        compile_extension(tmp_path / "source.cpp", tmp_path / "target.so", "name")


def test_what_the_compiler_says_is_passed_on(tmp_path: Path) -> None:
    source = tmp_path / "source.cpp"
    source.write_text("#error nothing works today\n")
    with pytest.raises(RuntimeUnavailableError, match="nothing works today"):
        compile_extension(source, tmp_path / "target.so", "name")


COMPILED_IN_A_SWEEP = textwrap.dedent(
    """
    import signal, sys
    from pathlib import Path
    from bow.interruption import Interruption
    from bow.compiling import built
    from bow.runtime.loading import compile_extension
    watched = Interruption([signal.SIGINT])
    with watched.watched() if sys.argv[2] == "sweep" else open(sys.argv[1]):
        built("thing-1", "thing.so", lambda target: compile_extension(Path(sys.argv[1]), target, "name"))
    """
)


@pytest.mark.parametrize(
    ("where", "number"),
    [("sweep", signal.SIGINT), ("train", signal.SIGINT), ("train", signal.SIGTERM), ("train", signal.SIGHUP)],
)
def test_a_signal_ends_the_compiler_and_its_files(
    where: str, number: signal.Signals, cache: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source.cpp"
    source.write_text(SLOW)
    with subprocess.Popen([*FORKED, "-c", COMPILED_IN_A_SWEEP, str(source), where], stderr=subprocess.PIPE) as made:
        while not list(cache.rglob("*.s")):
            assert made.poll() is None
            time.sleep(0.05)
        made.send_signal(number)
        told = made.communicate(timeout=600)[1].decode()
    if number == signal.SIGINT:
        assert ("was not built: interrupted" if where == "sweep" else "KeyboardInterrupt") in told
    else:
        assert made.returncode == 128 + number
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["thing.lock"]


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> NoReturn:
        raise RuntimeUnavailableError("there is no compiler")

    monkeypatch.setattr(loading, "_load", unavailable)


@pytest.mark.usefixtures("without_compiler")
def test_setting_up_without_a_compiler_says_so_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert loading.build() == 1
    assert capsys.readouterr().err == (
        "bow: the native runtime is not available; engine eager is used instead of graph: there is no compiler\n"
    )


def test_setting_up_builds_what_trainings_look_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(source: Path, target: Path, name: str) -> None:
        target.touch()

    monkeypatch.setattr(loading, "compile_extension", make)
    assert not loading.is_built()
    with contextlib.suppress(RuntimeUnavailableError):  # an empty file cannot be loaded
        loading._load.__wrapped__()
    assert loading.is_built()


@pytest.mark.nightly
def test_building_takes_at_most_a_minute_of_one_core(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    compile_extension(loading._sources() / loading.MAIN_SOURCE, tmp_path / "bow_native.so", loading.MODULE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 60


@pytest.mark.usefixtures("without_compiler")
def test_without_a_native_runtime_schedules_run_in_python() -> None:
    batch = torch.randn(4, 3), torch.randn(4, 1)
    model = torch.nn.Linear(3, 1)
    graph = bow.capture(model, batch, torch.nn.functional.mse_loss)
    parameters = dict(model.named_parameters())
    with LocalRuntime(graph) as runtime:
        assert torch.equal(runtime.run(parameters, {}, batch).loss, graph.run(parameters, {}, batch).loss)
    with pytest.raises(RuntimeUnavailableError, match="there is no compiler"):
        LocalRuntime(graph, use_native=True)


def test_the_native_runtime_derives_the_seeds_that_python_does() -> None:
    seeds = [0, 1, 12345, 2**63 - 1]
    assert [native().derive_seed(seed, index) for seed in seeds for index in (0, 7)] == [
        derive_seed(seed, index) for seed in seeds for index in (0, 7)
    ]
