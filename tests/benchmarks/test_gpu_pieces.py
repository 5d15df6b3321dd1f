"""What the benchmark on a GPU is made of: time, traces, aims, the page."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import Config, aims, page
from benchmarks.gpu.machine import ONE_STREAM, FakeMachine, nvidia_smi
from benchmarks.gpu.parts import Allotment
from benchmarks.gpu.racing import GRAPHED, Subject, best_of_bow, one_graphed
from benchmarks.gpu.throughput import FUSED_LEARNERS, PARTS_WITH_ALL, peers
from benchmarks.gpu.trace import KernelRun, kernel_runs, overlap, save_small
from benchmarks.gpu.workloads import workload
from benchmarks.harness import render
from benchmarks.trainings import Feed


def spread(median: float) -> dict[str, Any]:
    return {"median": median, "low": median, "high": median, "n": 1}


def row(name: str, rate: float, engine: str | None = None, learners: int | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "engine": engine,
        "learners": learners,
        "samples_per_s": spread(rate),
        "round_ms": spread(1.0),
        "rates": [rate, 2 * rate],
    }


def test_time_that_is_over_allows_nothing() -> None:
    now = [0.0]
    time_left = Allotment(25, lambda: now[0])
    now[0] = 10
    assert time_left.left == 15
    assert time_left.allows(15)
    now[0] = 26
    assert time_left.left == 0
    assert not time_left.allows(0.1)


def test_overlap_of_one_stream_is_none_and_branches_of_a_graph_count_by_kernels() -> None:
    runs = [KernelRun("a", 7, 0, 10), KernelRun("b", 7, 5, 15), KernelRun("c", 7, 15, 20)]
    found = overlap(runs)
    assert (found.busy_us, found.shared_us, found.together_us, found.most) == (20, 0, 5, 2)
    assert overlap([]).busy_us == 0


def test_a_trace_is_read_without_what_the_host_does(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 5},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 9.5, "dur": 2, "args": {"stream": 21}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "copy", "ts": 3, "dur": 1, "args": {"stream": 7}},
        {"ph": "i", "cat": "kernel", "name": "mark", "ts": 3},
    ]
    runs = kernel_runs({"traceEvents": events})
    assert runs == [KernelRun("copy", 7, 3, 4), KernelRun("gemm", 21, 9.5, 11.5)]
    save_small(runs, tmp_path / "small.json.gz")
    with gzip.open(tmp_path / "small.json.gz", "rt") as file:
        small = json.load(file)["traceEvents"]
    assert [(event["tid"], event["ts"]) for event in small] == [(7, 0), (21, 6.5)]


ROWS = [
    row("pytorch", 10),
    row("pytorch, whole step as a CUDA graph", 100),
    row("graph, 1", 90, "graph", 1),
    row("graph, 8", 600, "graph", 8),
    row("pytorch compiled, whole step as a CUDA graph", 120),
]


def test_several_learners_are_held_against_the_fastest_single_one() -> None:
    best, one = best_of_bow(ROWS), one_graphed(ROWS)
    assert best is not None
    assert one is not None
    assert (best["name"], one["name"]) == ("graph, 8", "pytorch compiled, whole step as a CUDA graph")
    assert best_of_bow(ROWS[:2]) is None


def test_the_two_are_judged_by_the_race_that_they_had_alone() -> None:
    final = {"best": "graph, 8", "one": "graph, 1", "rates": {"graph, 8": [600.0, 500.0], "graph, 1": [100.0, 100.0]}}
    parts = {"throughput_lenet_16": {"contestants": ROWS, "final": final}}
    found = {aim["aim"]: aim for aim in aims.judge(parts, fake=False)}
    aim = found["LeNet, batch 16: at least 5 times one graphed learner"]
    assert (aim["verdict"], aim["value"]) == (aims.MET, 5.5)
    assert "graph, 8 over graph, 1" in aim["found"]
    assert found["ResNet-32, batch 32: at least 1.8 times one graphed learner"]["verdict"] == aims.OPEN
    assert found["LeNet, batch 16: at least 20 times eager PyTorch"]["value"] == 60
    parts["throughput_lenet_16"]["contestants"] = ROWS[:-1]  # the compiled one was not ready: that would not be fair
    unfair = {aim["aim"]: aim for aim in aims.judge(parts, fake=False)}[
        "LeNet, batch 16: at least 5 times one graphed learner"
    ]
    assert (unfair["verdict"], unfair["value"]) == (aims.OPEN, None)
    assert "compiled, whole step as a CUDA graph is missing" in unfair["found"]


def test_aims_that_are_missed_are_told_with_the_worst_case() -> None:
    parts = {
        "averaging_lenet_16": {
            "rows": [
                {"engine": "graph", "learners": 2, "percent_over_never": spread(1.0)},
                {"engine": "graph", "learners": 8, "percent_over_never": spread(7.0)},
            ]
        },
        "kernels": {
            "rows": [
                {"kernel": "sgd_round", "size": "lenet", "learners": 1, "share_of_copy": spread(0.1)},
                {"kernel": "sma_center", "size": aims.LARGE, "learners": 4, "share_of_copy": spread(0.85)},
            ]
        },
        "tests_agreement": {
            "total": 3,
            "cases": [
                {"case": "graph", "state": "passed", "message": ""},
                {"case": "fused", "state": "failed", "message": "no"},
            ],
        },
    }
    verdicts = {aim["aim"]: (aim["verdict"], aim["found"]) for aim in aims.judge(parts, fake=False)}
    assert verdicts["LeNet, batch 16: averaging costs at most 5 %"][0] == aims.MISSED
    assert "graph with 8 learners" in verdicts["LeNet, batch 16: averaging costs at most 5 %"][1]
    assert next(v for k, v in verdicts.items() if "bandwidth" in k)[0] == aims.MET
    assert [v for k, v in verdicts.items() if "agree" in k] == [(aims.MISSED, "1 of 2, of all 3")]


@pytest.mark.parametrize("learners", [1, 3])
def test_all_are_fed_the_same(learners: int) -> None:
    machine, chosen = FakeMachine(), workload("logistic", fake=True)
    subject = Subject(machine, chosen, chosen.make_data(12), 2)
    first, second = (subject.feed(machine.device) for _ in range(2))
    rounds = [first.stacked(learners).value[0].flatten(0, 1) for _ in range(4)]
    singly = [second.next()[0] for _ in range(4 * learners)]
    assert torch.equal(torch.cat(rounds), torch.cat(singly))


def test_a_feed_deals_every_sample_once_an_epoch_and_rounds_that_are_larger_than_the_data() -> None:
    inputs = torch.arange(6.0)
    feed = Feed((inputs, inputs.long()), 2)
    assert sorted(torch.cat([feed.next()[0] for _ in range(3)]).tolist()) == inputs.tolist()
    assert feed.stacked(4).value[0].shape == (4, 2)


def test_learners_on_one_stream_share_it_and_nothing_else() -> None:
    device = FakeMachine().variant(ONE_STREAM)
    assert device.stream("learner 0") is device.stream("learner 1")
    assert device.stream("learner 0") is not device.stream("synchronisation", high_priority=True)


def test_every_part_has_its_compiled_contestants() -> None:
    specs = peers(Config())
    names = [(spec.part, spec.name) for spec in specs]
    assert len(set(names)) == len(names)
    assert {spec.part for spec in specs} == set(FUSED_LEARNERS)
    assert set(PARTS_WITH_ALL) < set(FUSED_LEARNERS)
    assert specs[0].name == "pytorch compiled, whole step as a CUDA graph"


def test_quick_is_a_part_of_the_whole() -> None:
    quick = Config(quick=True).reduced()
    assert set(quick.parts) < set(Config().parts)
    assert quick.budget_s <= 120
    assert Config().reduced() == Config()


def test_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '580.95, 1980, 2619, 1980, 2619, 700.00, 31, Default, 81559, 4'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    said = nvidia_smi()
    assert (said["driver_version"], said["clocks.max.sm"], said["compute_mode"]) == ("580.95", "1980", "Default")
    program.write_text("#!/bin/sh\nexit 9\n")
    assert nvidia_smi() == {}


def test_members_are_judged_by_a_loop_of_graphed_trainings() -> None:
    rates = {GRAPHED: [10.0, 10.0], "16 members": [90.0, 70.0], "8 processes": [40.0, 40.0]}
    rows = [{"name": name, "rates": own} for name, own in rates.items()]
    found = {aim["aim"]: aim for aim in aims.judge({"members_lenet_16": {"contestants": rows}}, fake=False)}
    aim = found["members of LeNet, batch 16: at least 8 times a loop of graphed trainings"]
    assert (aim["verdict"], aim["value"]) == (aims.MET, 8.0)
    assert aim["found"] == f"16 members: 8.00 over {GRAPHED}, 2.00 over 8 processes"
    assert (
        found["members of ResNet-32, batch 32: at least 1.8 times a loop of graphed trainings"]["verdict"] == aims.OPEN
    )


def test_a_page_of_next_to_nothing_can_be_written() -> None:
    values = {
        "command": "python -m benchmarks gpu",
        "date": "2026-01-01",
        "seconds": 1.0,
        "settings": {"fake": False, "tf32": False, "repeats": 5, "stint_s": 0.1},
        "environment": {"processor": "a processor", "cores": 2, "bow": "0.1.0", "commit": None},
        "machine": {},
        "aims": aims.judge({}, fake=False),
        "parts": {"overlap": {"failure": "its process ended with status -9"}, "kernels": {"notes": ["a note"]}},
    }
    text = render("gpu", {**values, **page(values)})
    assert "* overlap: its process ended with status -9" in text
    assert "* kernels: a note" in text
