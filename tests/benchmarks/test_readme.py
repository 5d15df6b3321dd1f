import json
import shutil
from pathlib import Path

import pytest

from benchmarks.allreduce import DELAYED, WHOLE
from benchmarks.engines import Settings
from benchmarks.figures.entries import Entry
from benchmarks.group import Group, geometric_mean
from benchmarks.peers.training import FINAL, SWEEP
from benchmarks.readme import BEGIN, END, replaced, results_block
from benchmarks.results import Result
from bow.errors import SettingError
from tests.benchmarks.figures.made_up import convergence, rates, run, throughput, write
from tests.benchmarks.groups import BOW_ALONE, ENVIRONMENT, GROUP, NOBODY, PYTORCH_ALONE
from tests.benchmarks.peers.made_up import training

ROOT = Path(__file__).parents[2]


def test_the_readme_states_what_the_committed_results_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == replaced(text, results_block(ROOT / "benchmarks" / "results"))


def write_results(folder: Path, groups: list[Group]) -> None:
    """Results of `python -m benchmarks engines` that were made up, beside the committed ones of the others."""
    for name in ("tuner", "accuracy", "sweep"):
        shutil.copy(ROOT / "benchmarks" / "results" / f"{name}.json", folder)
    findings = {"contests": [group.contest_dict() for group in groups], "geometric_mean": geometric_mean(groups)}
    result = Result("engines", "python -m benchmarks engines", ENVIRONMENT, Settings(), 60.0, findings)
    (folder / "engines.json").write_text(json.dumps(result.as_dict()))


@pytest.mark.parametrize(
    "part",
    [
        "| MLP | 4 | compiled_step, 2 threads | 200 | fused, 8 learners | 500 | 2.50 (2.00 to 3.00) |",
        "`python -m benchmarks engines`, a processor with 2 cores, torch 2.13.0",
        "with 1 and 2 threads",
        "7 interleaved repeats of the two alone",
        "Geometric mean of the medians: 2.50",
    ],
)
def test_the_readme_states_best_against_best(tmp_path: Path, part: str) -> None:
    write_results(tmp_path, [GROUP])
    assert part in results_block(tmp_path)


def test_the_readme_leaves_open_what_did_not_run(tmp_path: Path) -> None:
    write_results(tmp_path, [PYTORCH_ALONE, BOW_ALONE, NOBODY])
    block = results_block(tmp_path)
    assert "| LeNet | 16 | pytorch | 100 |  |  |  |" in block
    assert "| LeNet | 16 |  |  | eager, 8 learners | 110 |  |" in block
    assert "| LeNet | 16 |  |  |  |  |  |" in block
    assert "Geometric mean" not in block


PEERS = {
    "command": "python -m benchmarks peers",
    "environment": {"processor": "a processor", "cores": 2, "torch": "2.13.0"},
    "settings": {"model": "lenet", "data": "fashion_mnist", "target": 0.89, "seeds": 2},
    "verdict": {"claim": "bow is faster", "is_met": False, "ratio": {"median": 0.5, "low": 0.5, "high": 0.5, "n": 2}},
    "trainings": [
        training(name, throughput=speed, seed=seed, stage=stage).as_dict()
        for name, speed in (("pytorch", 10.0), ("bow", 20.0))
        for seed, stage in ((0, SWEEP), (1, FINAL), (2, FINAL))
    ],
}


def test_the_readme_states_the_verdict_about_the_peers_and_their_finals(tmp_path: Path) -> None:
    write_results(tmp_path, [GROUP])
    assert "beside the peers" not in results_block(tmp_path)
    (tmp_path / "peers.json").write_text(json.dumps(PEERS))
    block = results_block(tmp_path)
    assert "lenet on fashion mnist, to 89.0% test accuracy, 2 seed(s)" in block
    assert "Claimed is that bow is faster. The claim does not hold: the ratio is 0.50 (0.50 to 0.50)." in block
    assert "| 40.0 (40.0 to 40.0) |" in block
    assert "| 20.0 (20.0 to 20.0) |" in block


def test_a_verdict_that_could_not_be_reached_is_none(tmp_path: Path) -> None:
    write_results(tmp_path, [GROUP])
    verdict = {"claim": "bow is faster", "is_met": None, "ratio": None, "missed": [["bow", 2]]}
    (tmp_path / "peers.json").write_text(json.dumps({**PEERS, "verdict": verdict, "trainings": []}))
    assert "No verdict; bow did not reach the target with seed 2. [All of it]" in results_block(tmp_path)


def test_the_readme_quotes_the_figures_that_there_are(tmp_path: Path) -> None:
    write_results(tmp_path, [GROUP])
    assert "TensorBow" not in results_block(tmp_path)
    (tmp_path / "figures").mkdir()
    one, two = (rates(Entry(32, learners, "independent"), 100.0 * learners) for learners in (1, 2))
    write(tmp_path / "figures", "figure_5.8", throughput(one, two))
    block = results_block(tmp_path)
    assert "`python -m benchmarks figures`, form small, a processor with 2 cores, torch 2.13.0" in block
    assert "(benchmarks/results/figures/figures.md)" in block
    assert "throughput of 2 learners over 1: 2.00; in the paper more than 1.51." in block
    assert "3 learners and small batch" not in block
    runs = run(Entry(16), [0.95], epoch_s=2.0), run(Entry(4, 3, "SMA"), [0.95], epoch_s=1.0)
    write(tmp_path / "figures", "figure_5.4", convergence(*runs))
    assert "LeNet on digits, time of bow, 3 learners and small batch, over plain with the best batch size: 0.50" in (
        results_block(tmp_path)
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, "| graph, 1 learner | graph, 2 learners | 0.930 (0.900 to 0.960) | 20.0 s, 3.3% | undecided |"),
        (
            {"choice": "graph, 2 learners", "ratio": None, "verdict": "reached"},
            "| the same; over the next 1.100 (1.000 to 1.200) | 20.0 s, 3.3% | reached |",
        ),
        (
            {"choice": None, "ratio": None, "verdict": "missed"},
            "| none | graph, 2 learners |  | 20.0 s, 3.3% | missed |",
        ),
    ],
    ids=["undecided", "the best itself", "no choice"],
)
def test_the_readme_states_the_verdict_about_the_tuner(tmp_path: Path, changes: dict[str, object], part: str) -> None:
    write_results(tmp_path, [GROUP])
    pair = {
        "model": "LeNet",
        "batch_size": 16,
        "choice": "graph, 1 learner",
        "best": "graph, 2 learners",
        "ratio": {"median": 0.93, "low": 0.9, "high": 0.96},
        "margin": {"median": 1.1, "low": 1.0, "high": 1.2},
        "calibration_s": 20.0,
        "share": 0.033,
        "verdict": "undecided",
    }
    result = {**PEERS, "settings": {"run_s": 600.0, "turns": 20}, "pairs": [{**pair, **changes}]}
    (tmp_path / "tuner.json").write_text(json.dumps(result))
    block = results_block(tmp_path)
    assert part in block
    assert "run 20 times in turn" in block


def test_the_readme_states_what_averaging_between_devices_costs(tmp_path: Path) -> None:
    write_results(tmp_path, [GROUP])
    ways = {way: {"ratio": {"median": 1.0 + i, "low": 0.9, "high": 3.5}} for i, way in enumerate((WHOLE, DELAYED))}
    found = {"settings": {"devices": 2}, "late": 0.5, "limit": 1.1, "models": {"lenet": ways}}
    (tmp_path / "allreduce.json").write_text(json.dumps({**PEERS, **found}))
    assert "at most 1.1. LeNet 1.00 (0.90 to 3.50), late 2.00 (0.90 to 3.50). " in results_block(tmp_path)


@pytest.mark.parametrize(
    ("data", "expert", "gain"),
    [({"step_ms": 30.0}, {}, "1.50"), ({"step_ms": 30.0}, {"step_ms": 900.0}, "1.50"), ({}, {}, "none")],
)
def test_the_readme_states_what_splitting_operators_gains_over_the_faster_of_what_is_known(
    data: dict[str, float], expert: dict[str, float], gain: str, tmp_path: Path
) -> None:
    write_results(tmp_path, [GROUP])
    strategies = {"data": data, "expert": expert, "found": {"step_ms": 20.0}}
    made = {"command": "a command", "environment": PEERS["environment"], "settings": {"cluster_s": 15.0}}
    clusters = {"P100": {"nmt": {"4": {}, "16": {"strategies": strategies}}}}
    (tmp_path / "planner.json").write_text(json.dumps({"made": {"clusters": made}, "clusters": clusters}))
    assert f"data parallelism and the expert's strategy: on 16 P100 NMT {gain}. " in results_block(tmp_path)


def test_the_readme_states_how_well_steps_are_predicted(tmp_path: Path) -> None:
    write_results(tmp_path, [GROUP])
    verdict = {"strategies": 4, "largest": 0.2, "typical": 0.1, "pairs": 5, "right": 5, "is_met": True}
    (tmp_path / "predicted.json").write_text(json.dumps({**PEERS, "verdict": verdict}))
    assert "4 strategies: the largest relative error is 20.0% (aim: 30%)" in results_block(tmp_path)


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n{BEGIN}\n\nnew\n{END}\nb\n"


def test_a_readme_without_marks_is_refused() -> None:
    with pytest.raises(SettingError, match="no place for results"):
        replaced("nothing", "new")
