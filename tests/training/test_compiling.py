"""Compiling beside the rounds: the switch, its repetition, failures, and the end of the process."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bow
import bow.training.compiling as module
from bow.compiling import CACHE, SCRATCH
from bow.observe.records import STAYED, SWITCHED
from bow.runtime.region import is_compiled
from bow.runtime.region_process import RegionProcess
from bow.training.trials import Request, Trials
from bow.training.tuning import Tuned
from bow.tuner import Trial, TrialResult
from tests.grouped import grouped
from tests.training.blueprints import Ask, Train

ROUNDS = 32


class Compiler:
    """Instead of the process: ends after some rounds."""

    ends_after = 10
    fails: str | None = None
    nice = 0

    def __init__(self, graph: bow.StepGraph) -> None:
        self.asked = 0
        self.is_closed = False

    @property
    def has_ended(self) -> bool:
        self.asked += 1
        return self.asked > self.ends_after

    @property
    def failure(self) -> str | None:
        return self.fails

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[Compiler]:
    """The compiler's processes that were started; compiled code is twice as fast."""
    started: list[Compiler] = []

    def start(graph: bow.StepGraph, nice: int) -> Compiler:
        started.append(Compiler(graph))
        started[-1].nice = nice
        return started[-1]

    monkeypatch.setattr("bow.engines.loop.GROUP_S", 0.0)  # the process is asked after every round
    monkeypatch.setattr(module, "RegionProcess", start)
    monkeypatch.setattr(module, "expected_compile_s", lambda graph: 10.0)
    times_as_fast(monkeypatch, 2.0)
    return started


def times_as_fast(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    def run(_: Trials, trial: Trial) -> TrialResult:
        return TrialResult(trial.setting, [gain if trial.setting.engine == "graph+compiled" else 1.0])

    monkeypatch.setattr(Trials, "run", run)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """A training whose engine was found by trials, and whose learning task is to be compiled beside its rounds."""

    def tune(request: Request, *_: Any, **__: Any) -> Tuned:
        return Tuned("graph", 2, None, False, "calibration", compiles_later=request.engine == "auto")

    monkeypatch.setattr(importlib.import_module("bow.training.train"), "tune", tune)
    monkeypatch.setattr(module, "TURN_S", -10.0)  # there is time for trials
    monkeypatch.setattr("bow.training.checkpoint.KEEP", 100)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(8 * ROUNDS, 5, generator=generator), torch.randint(3, (8 * ROUNDS,), generator=generator)

    def run(name: str = "run", **settings: Any) -> bow.Result:
        torch.manual_seed(0)
        settings = {"learners": 2, "engine": "auto", "progress": False, "run_dir": tmp_path / name, **settings}
        return bow.train(nn.Linear(5, 3), data, nn.functional.cross_entropy, **grouped(batch_size=4, **settings))

    return run


def events(folder: Path) -> list[tuple[str, int]]:
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(each["event"], each["round"]) for each in records if each.get("event") in (SWITCHED, STAYED)]


def weights(result: bow.Result) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in result.model.parameters()]


def test_the_learning_task_is_compiled_between_two_rounds(train: Train, compilers: list[Compiler]) -> None:
    result = train()
    assert result.engine == "graph (compiled)"
    assert events(result.run_dir) == [("compiled", 11)]
    assert compilers[0].is_closed
    plain = train("plain", engine="graph")
    assert plain.engine == "graph"
    for own, other in zip(weights(result), weights(plain), strict=True):
        torch.testing.assert_close(own, other)


def test_both_forms_are_compared_in_the_order_of_memory_that_was_chosen(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()

    def run(_: Trials, trial: Trial) -> TrialResult:
        asked.add(trial.setting.engine)
        return TrialResult(trial.setting, [2.0 if "compiled" in trial.setting.engine else 1.0])

    chosen = Tuned("graph", 2, None, False, "calibration", memory_format="channels_last", compiles_later=True)
    monkeypatch.setattr(importlib.import_module("bow.training.train"), "tune", lambda *_, **__: chosen)
    monkeypatch.setattr(Trials, "run", run)
    assert train().engine == "graph (compiled)"
    assert asked == {"graph+channels_last", "graph+compiled+channels_last"}


@pytest.mark.parametrize("at", [4, 8, 12, 24])
def test_a_resumed_training_switches_after_the_same_round(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: int
) -> None:
    monkeypatch.setattr(Compiler, "ends_after", 9)
    whole = train(checkpoint_every=4)
    assert events(whole.run_dir) == [("compiled", 10)]
    monkeypatch.setattr(Compiler, "ends_after", 1)  # it would be earlier now
    copy = tmp_path / "copy"
    shutil.copytree(whole.run_dir, copy)
    for path in (copy / "checkpoints").glob("round_*.pt"):
        if int(path.stem.removeprefix("round_")) > at:
            path.unlink()
    (copy / "model.safetensors").unlink()
    monkeypatch.setattr("bow.engines.loop.GROUP_S", 1e9)  # a group would run beyond the switch
    resumed = train("copy", resume="auto", checkpoint_every=4)
    assert [each.nice for each in compilers] == ([19, 0] if at < 10 else [19])  # the second one is waited for
    assert resumed.engine == "graph (compiled)"
    assert events(copy)[1:] == ([("compiled", 10)] if at <= 10 else [])
    assert all(map(torch.equal, weights(whole), weights(resumed)))
    if at == 4:  # interrupted and resumed again, in another directory
        with pytest.raises(KeyboardInterrupt):
            train(
                "elsewhere",
                resume=whole.run_dir / "checkpoints" / "round_00000004.pt",
                callbacks=[Ask(signal.SIGINT, at=6)],
            )
        elsewhere = train("elsewhere", resume="auto")
    else:
        elsewhere = train("elsewhere", resume=whole.run_dir / "checkpoints" / f"round_{at:08d}.pt")
    assert set(events(elsewhere.run_dir)) == ({("compiled", 10)} if at <= 10 else set())
    assert all(map(torch.equal, weights(whole), weights(elsewhere)))


def test_a_training_that_is_interrupted_before_its_compiler_ends_compiles_again(
    train: Train, compilers: list[Compiler]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(callbacks=[Ask(signal.SIGINT, at=5)])
    assert compilers[0].is_closed
    resumed = train(resume="auto")
    assert events(resumed.run_dir) == [("compiled", 16)]
    assert len(compilers) == 2


@pytest.mark.parametrize("gain", [0.9, 1.01])
def test_what_is_not_faster_stays_uncompiled_even_if_resumed(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch, gain: float
) -> None:
    times_as_fast(monkeypatch, gain)
    result = train(checkpoint_every=4)
    assert (result.engine, events(result.run_dir)) == ("graph", [("not compiled", 11)])
    assert f"{gain:.2f} times" in (result.run_dir / "metrics.jsonl").read_text()
    times_as_fast(monkeypatch, 2.0)
    elsewhere = train("elsewhere", resume=result.run_dir / "checkpoints" / "round_00000004.pt")
    assert elsewhere.engine == "graph"
    assert len(compilers) == 1
    assert all(map(torch.equal, weights(result), weights(elsewhere)))


def test_a_failing_compiler_leaves_one_line(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiler, "fails", "g++ was not found")
    result = train()
    assert (result.engine, events(result.run_dir)) == ("graph", [("not compiled", 11)])
    assert "stays uncompiled: g++ was not found" in (result.run_dir / "metrics.jsonl").read_text()


def test_a_process_that_cannot_be_started_leaves_the_training_uncompiled(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(module, "RegionProcess", fail)
    result = train()
    assert (result.engine, events(result.run_dir)) == ("graph", [("not compiled", 1)])


def test_a_signal_ends_the_paired_trials_and_leaves_the_decision_open(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def run(_: Trials, trial: Trial) -> TrialResult:
        if not tried:
            os.kill(os.getpid(), signal.SIGINT)
        tried.append(trial)
        return TrialResult(trial.setting, [1.0])

    monkeypatch.setattr(Trials, "run", run)
    with pytest.raises(KeyboardInterrupt):
        train()
    assert len(tried) == 1
    times_as_fast(monkeypatch, 2.0)
    resumed = train(resume="auto")
    assert events(resumed.run_dir) == [("compiled", 22)]


def test_trials_that_fail_or_have_no_time_leave_the_training_uncompiled(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trials, "run", lambda _, trial: TrialResult(trial.setting, failure="does not run"))
    assert "uncompiled: does not run" in (train().run_dir / "metrics.jsonl").read_text()
    monkeypatch.setattr(module, "TURN_S", 10.0)
    assert "uncompiled: too little" in (train("late").run_dir / "metrics.jsonl").read_text()


@pytest.mark.parametrize("changes_at", [1, 5])
def test_an_engine_that_was_left_meanwhile_is_not_compiled(
    train: Train, compilers: list[Compiler], changes_at: int
) -> None:
    class Change:
        def on_round_end(self, run: Any) -> None:
            if run.round == changes_at:
                state = run.replicas.loop.engine_state["graph"]
                run.replicas.loop.load_engine({"graph": {**state, "failed": "for a test"}})

    with pytest.warns(UserWarning, match="for a test"):
        result = train(callbacks=[Change()])
    assert (result.engine, events(result.run_dir)) == ("eager", [])
    assert len(compilers) == (changes_at > 1)


def test_what_is_compiled_already_is_tried_at_once(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "expected_compile_s", lambda graph: 0.0)
    assert events(train().run_dir) == [("compiled", 1)]
    assert not compilers


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bow.StepGraph:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    batch = torch.randn(4, 5), torch.randint(3, (4,))
    return bow.capture(nn.Linear(5, 3), batch, nn.functional.cross_entropy)


def wait(process: RegionProcess, until: Callable[[], bool]) -> None:
    ends = time.monotonic() + 300
    while not until() and not process.has_ended and time.monotonic() < ends:
        time.sleep(0.05)


@pytest.mark.nightly
def test_the_process_compiles_into_the_cache(graph: bow.StepGraph) -> None:
    process = RegionProcess(graph)
    wait(process, lambda: False)
    assert process.has_ended
    assert process.failure is None
    assert is_compiled(graph)
    process.close()


def test_a_killed_training_leaves_no_process(graph: bow.StepGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path()])  # imports ignore what is no string
    reads, writes = os.pipe()
    if not (parent := os.fork()):
        os.write(writes, str(RegionProcess(graph)._process.pid).encode())
        time.sleep(300)
    compiler = int(os.read(reads, 20))
    time.sleep(1.0)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    ends = time.monotonic() + 300
    while Path(f"/proc/{compiler}/exe").exists() and time.monotonic() < ends:  # it may remain as a zombie
        time.sleep(0.05)
    assert not Path(f"/proc/{compiler}/exe").exists()
    assert not is_compiled(graph)


@pytest.mark.nightly
def test_a_compiler_that_is_missing_is_a_failure(graph: bow.StepGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    process = RegionProcess(graph)
    wait(process, lambda: False)
    assert process.failure is not None
    assert "cannot compile" in process.failure
    assert not is_compiled(graph)
    process.close()


def test_the_process_ends_with_the_training_and_removes_its_files(
    train: Train, graph: bow.StepGraph, tmp_path: Path
) -> None:
    process = RegionProcess(graph)
    wait(process, lambda: bool(list((tmp_path / "cache").glob(f"*/{SCRATCH}*"))))
    assert not process.has_ended
    group = os.getpgid(process._process.pid)
    assert group != os.getpgid(0)  # Ctrl-C in a terminal does not reach it
    process.close()
    assert process.has_ended
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)
    assert not list((tmp_path / "cache").glob(f"*/{SCRATCH}*"))


@pytest.mark.parametrize(
    "damaged",
    ['{"kind": "event", "event": "compiled", "round": "x"}', '{"kind": "event", "event": "compiled"}', '{"kind": "ev'],
)
def test_damaged_records_do_not_end_a_training_that_goes_on(
    train: Train, compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    monkeypatch.setattr(Compiler, "ends_after", 7)
    whole = train(checkpoint_every=4)
    with (whole.run_dir / "metrics.jsonl").open("a") as file:
        file.write(damaged)
    elsewhere = train("elsewhere", resume=whole.run_dir / "checkpoints" / "round_00000004.pt")
    assert events(elsewhere.run_dir) == [("compiled", 8)]
    assert all(map(torch.equal, weights(whole), weights(elsewhere)))
