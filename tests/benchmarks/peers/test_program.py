"""Both stages, on made-up trainings, and once for real."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import main
from benchmarks.peers import program
from benchmarks.peers.process import train
from benchmarks.peers.program import Program
from benchmarks.peers.settings import QUICK, Settings
from benchmarks.peers.sweep_rule import MARGIN
from benchmarks.peers.task import Task
from benchmarks.peers.training import DIVERGED, FAILED, FINAL, REHEARSAL, SWEEP, Training
from benchmarks.peers.verdict import decide
from benchmarks.results import RESULTS
from bow.errors import SettingError
from tests.benchmarks.peers.made_up import training

SPEED = {"pytorch": 10.0, "compile": 12.0, "large_batch": 8.0, "local_sgd": 15.0, "ensemble": 4.0, "bow": 20.0}
GRID = {"batch_sizes": (16, 32), "lrs": (0.01, 0.02), "large_batch_sizes": (64, 128), "seeds": 2}


class World:
    """Trains nobody, and says what would come of it."""

    def __init__(self, **endings: str) -> None:
        self.endings = endings
        self.tasks: list[Task] = []

    def train(self, task: Task) -> Training:
        self.tasks.append(task)
        choice = task.choice
        speed = SPEED.get(choice.contestant, 10.0) * (1.5 if choice.threads == 2 else 1.0)
        better = 1.0 if (choice.batch_size, choice.lr) == (32, 0.02) else 0.9
        ending = self.endings.get(choice.contestant, "reached")
        made = training(choice.contestant, seed=task.seed, throughput=speed * better, ending=ending, stage=task.stage)
        return Training(choice, task.seed, task.stage, ending, made.looks, why="Error: broken")


@pytest.fixture(autouse=True)
def _everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found("torch" if name == "accelerate" else name))


def play(world: World, *contestants: str) -> tuple[Program, list[str]]:
    lines: list[str] = []
    settings = Settings(contestants=contestants, **GRID)  # type: ignore[arg-type]
    played = Program(settings, world.train, lines.append)
    played.run()
    return played, lines


def test_the_best_settings_of_plain_pytorch_are_handed_on() -> None:
    played, _ = play(World(), "pytorch", "compile", "local_sgd", "large_batch", "bow", "bow_goodput")
    best = {name: (own[0].batch_size, own[0].lr, own[0].threads) for name, own in played.entries.items()}
    assert {name: len(own) for name, own in played.entries.items() if len(own) > 1} == {"pytorch": 2, "bow": 2}
    assert best == {
        "pytorch": (32, 0.02, 2),
        "compile": (32, 0.02, 2),
        "large_batch": (64, 0.04, 2),
        "local_sgd": (32, 0.02, 1),
        "bow": (32, 0.02, 2),
        "bow_goodput": (32, 0.02, 2),
    }


def test_the_finals_take_turns_with_other_seeds_than_the_sweep() -> None:
    played, _ = play(World(), "pytorch", "bow", "compile")
    assert {t.seed for t in played.of(SWEEP)} == {0}
    assert [(t.seed, t.choice.contestant) for t in played.of(FINAL)] == [
        *((1, name) for name in ("pytorch", "bow", "bow", "pytorch", "compile")),
        *((2, name) for name in ("compile", "pytorch", "bow", "bow", "pytorch")),
    ]


def test_who_may_have_several_numbers_of_threads_rehearses_thrice_with_each_in_turns() -> None:
    played, _ = play(World(), "pytorch", "local_sgd", "bow")
    rehearsed = [(t.choice.contestant, t.choice.batch_size, t.choice.threads) for t in played.of(REHEARSAL)]
    turns = [(16, 1), (16, 2)] * 3 + [(32, 1), (32, 2)] * 3
    assert [entry[1:] for entry in rehearsed if entry[0] == "pytorch"] == turns
    assert [entry[1:] for entry in rehearsed if entry[0] == "local_sgd"] == [(32, 1)]
    assert [entry[1:] for entry in rehearsed if entry[0] == "bow"] == [(16, 2), (32, 2)]


def test_who_fails_with_every_number_of_threads_rehearses_no_further() -> None:
    played, _ = play(World(compile=FAILED), "compile")
    assert [t.choice.threads for t in played.of(REHEARSAL)] == [1, 2]


def test_a_rehearsal_is_announced_as_a_whole_training_and_ends_early() -> None:
    world = World()
    play(world, "bow")
    rehearsals = [task for task in world.tasks if task.stage == REHEARSAL]
    assert {(task.epochs, task.until, task.evaluate_every) for task in rehearsals} == {(6, 0.1, 0.025)}
    finals = [task for task in world.tasks if task.stage == FINAL]
    assert {(task.epochs, task.until, task.evaluate_every, task.target) for task in finals} == {(6, 6, 0.125, 0.89)}


def test_a_second_training_of_the_sweep_may_take_little_longer_than_the_first() -> None:
    world = World()
    play(world, "pytorch")
    limits = [task.limit_s for task in world.tasks if task.stage == SWEEP]
    assert limits[0] == 120.0
    assert limits[1] == pytest.approx(MARGIN * 400 / (15.0 * 0.9))


@pytest.mark.parametrize(("ending", "why"), [(FAILED, "failed: Error: broken"), (DIVERGED, "diverged: Error: broken")])
def test_who_cannot_train_is_left_out_and_the_others_go_on(ending: str, why: str) -> None:
    played, lines = play(World(compile=ending), "pytorch", "compile", "bow", "cuda_graph")
    assert played.left_out == {"compile": why, "cuda_graph": "needs a GPU"}
    assert list(played.entries) == ["pytorch", "bow"]
    assert f"compile is left out: {why}" in lines


def test_without_plain_pytorch_the_middle_of_the_grid_is_taken() -> None:
    played, _ = play(World(), "compile", "bow_goodput")
    assert {(choice.batch_size, choice.lr) for own in played.entries.values() for choice in own} == {(16, 0.01)}


def test_mistakes_are_found_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"evaluate_every must be at most 1 epoch, got 2"):
        main("peers", ["evaluate_every=2", f"out={tmp_path}"])
    with pytest.raises(SettingError, match=r"at least one that can take part, got cuda_graph: needs a GPU"):
        main("peers", ["quick=true", "contestants=cuda_graph", f"out={tmp_path}"])
    with pytest.raises(SettingError, match=r"at least one that can take part, got nothing"):
        main("peers", ["quick=true", "contestants=", f"out={tmp_path}"])
    with pytest.raises(SettingError, match=r"contestants must be of pytorch, .*, got 'horovod'"):
        main("peers", ["contestants=horovod", f"out={tmp_path}"])


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[Task], Training]:
    monkeypatch.setattr(program, "train_apart", lambda task, environment: train(task))
    return train


def test_a_small_run_does_not_replace_results_that_are_committed(tmp_path: Path) -> None:
    assert Settings(quick=True).reduced().out == QUICK
    assert Settings(quick=True, out=tmp_path).reduced().out == tmp_path
    assert Settings().reduced().out == RESULTS


@pytest.mark.usefixtures("in_this_process")
def test_a_small_run_writes_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main("peers", ["quick=true", "contestants=pytorch,bow,cuda_graph", "seeds=1", f"out={tmp_path}"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peers.json", "peers.md", "peers.png"]
    values = json.loads((tmp_path / "peers.json").read_text())
    assert status == 0
    assert values["verdict"]["is_met"] is None
    finals = [Training.from_dict(entry) for entry in values["trainings"] if entry["stage"] == FINAL]
    again = decide(finals).as_dict()
    assert again["settings"] == values["verdict"]["settings"]
    assert again["ratio"]["median"] == pytest.approx(values["verdict"]["ratio"]["median"], abs=2e-3)
    stages = [(training["stage"], training["contestant"]) for training in values["trainings"]]
    assert stages == [
        *((stage, name) for name in ("pytorch", "bow") for stage in (REHEARSAL, SWEEP)),
        *((FINAL, name) for name in ("pytorch", "bow")),
    ]
    assert all(training["curve"] for training in values["trainings"])
    assert values["left_out"] == {"cuda_graph": "needs a GPU"}
    page = (tmp_path / "peers.md").read_text()
    assert "PyTorch, CUDA graph: left out, needs a GPU." in page
    printed = capsys.readouterr().out
    assert printed.count(" samples/s, rest ") == len(values["trainings"])
    assert "No verdict, for which 3 seeds are needed" in printed
    assert f"written to {tmp_path}" in printed


@pytest.mark.usefixtures("in_this_process")
def test_a_target_that_nobody_reaches_is_exit_status_1(tmp_path: Path) -> None:
    words = ["model=mlp", "data=digits", "batch_sizes=16", "lrs=0.05", "threads=1", "contestants=pytorch,bow"]
    assert main("peers", [*words, "target=0.999", "epochs=1", f"out={tmp_path}"]) == 1
    assert "not reached, best " in (tmp_path / "peers.md").read_text()
