"""`python -m benchmarks schedule`: the program in its small form, who takes part, and what scheduling costs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.test_local import assert_same

from benchmarks import schedule, schedule_report
from benchmarks.arguments import parse
from benchmarks.schedule import Settings, aims, run
from benchmarks.schedule_contestants import PlainStep, PythonQueue, left_out, pairs, plain, scheduled
from benchmarks.schedule_cost import (
    IN_ORDER,
    Hearing,
    chains,
    decisions_per_s,
    measure_cost,
    schedules,
)
from benchmarks.schedule_effects import IDEAS
from bow.devices import available_cores
from bow.errors import SettingError
from bow.models import NETWORKS
from bow.runtime import LocalRuntime
from bow.schedule.profiler import BoundStep, make_policies
from bow.schedule.profiler.measuring import measure
from bow.schedule.scheduler import ListScheduler
from bow.schedule.simulator import simulate_operators

SHARED = pytest.mark.skipif(len(available_cores()) < 2, reason="operators side by side need two cores")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    """What the program in its small form returns and writes."""
    if len(available_cores()) < 2:
        pytest.skip("operators side by side need two cores")
    out, before = tmp_path_factory.mktemp("schedule"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bow.schedule.profiler.operator_times.cache_folder", lambda: out / "cache")
        status = run(parse(Settings, ["quick=true", "networks=dcgan", f"out={out}"]), "a command")
    assert torch.get_num_threads() == before
    return status, json.loads((out / "schedule.json").read_text()), (out / "schedule.md").read_text()


def test_everybody_takes_part_in_every_turn(small: tuple[int, dict[str, Any], str]) -> None:
    (network,) = small[1]["networks"].values()
    cores = small[1]["cores"]
    expected = ["PyTorch, 1 thread", "sequential, 1 thread", "first come, 1 executor of 1 thread", "strategy 3"]
    for kind in ("first come", "first come in Python", "critical path", "critical path, stay"):
        expected.append(f"{kind}, {cores} executors of 1 thread")
    assert set(expected) <= network["race_ms"].keys()
    assert {own["n"] for own in network["race_ms"].values()} == {3}
    assert {own["n"] for own in network["final_ms"].values()} == {6}
    assert all(own["median"] > 0 for own in network["race_ms"].values())
    assert network["predicted_ms"].keys() < network["race_ms"].keys()


def test_the_choice_is_judged_beside_both_kinds_of_sequential(small: tuple[int, dict[str, Any], str]) -> None:
    (network,) = small[1]["networks"].values()
    assert network["sequential"] in network["final_ms"]
    for role in ("choice", "best", "side_by_side", "manual"):
        judged = network["policies"][role]
        assert judged["name"] in network["final_ms"]
        assert all(judged[over]["n"] == 6 for over in ("speed_up", "over_pytorch", "over_native"))
    assert network["policies"]["manual"]["name"] in network["uniform"]


def test_the_status_says_whether_the_aims_are_met(small: tuple[int, dict[str, Any], str]) -> None:
    status, values, _ = small
    assert status == (0 if all(aim["is_met"] for aim in values["aims"].values()) else 1)
    assert values["aims"] == aims(values["networks"], values["cost"])


def test_the_page_has_every_table(small: tuple[int, dict[str, Any], str]) -> None:
    _, values, page = small
    assert page.count("\n## ") == 5
    assert "| DCGAN | 126 |" in page
    assert all(f"| {idea} |" in page for idea in IDEAS)
    assert "| Liu et al., Table I: 2 executors of 34 threads | 1.28 |" in page
    assert all(name in page for name in values["left_out"])
    assert "decisions a second" in page


def subject_of(name: str) -> tuple[BoundStep, Any, Any]:
    chosen = NETWORKS[name]
    torch.manual_seed(0)
    model, batch = chosen.build(), chosen.batch()
    return BoundStep.of(model, batch, chosen.loss), model, batch


@SHARED
def test_all_contestants_run_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.schedule.profiler.operator_times.cache_folder", lambda: tmp_path)
    subject, model, batch = subject_of("alexnet")
    expected = subject.graph.run(subject.parameters, subject.buffers, subject.batch, seed=0)
    before = torch.get_num_threads()
    step = PlainStep(model, batch, NETWORKS["alexnet"].loss, threads=2)
    try:
        for _ in range(2):  # gradients do not add up
            loss = step.run()
            assert torch.get_num_threads() == 2
        step.rest()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(loss, expected.loss)
    gradients = {name: parameter.grad for name, parameter in step.model.named_parameters()}
    torch.testing.assert_close(gradients, dict(expected.gradients), rtol=1e-4, atol=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())
    with contextlib.closing(PythonQueue(subject, 2)) as queue:
        assert_same(queue.run(), expected)
        queue.rest()
        assert_same(queue.run(), expected)


@SHARED
def test_every_uniform_pair_takes_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.schedule.profiler.operator_times.cache_folder", lambda: tmp_path)
    subject, model, batch = subject_of("alexnet")
    profile = measure(subject, threads=[1, 2], repeats=1)
    policies = make_policies(subject, profile, 2)
    entries = [*plain(model, batch, NETWORKS["alexnet"].loss, [1, 2]), *scheduled(subject, policies, 2)]
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names)
    assert [entry.name for entry in entries if entry.is_uniform] == [
        "first come, 2 executors of 1 thread",
        "first come, 1 executor of 1 thread",
        "first come, 1 executor of 2 threads",
        "first come, 2 executors of 2 threads",
    ]
    assert [entry.name for entry in entries if entry.is_sequential] == [
        "PyTorch, 1 thread",
        "PyTorch, 2 threads",
        "sequential, 1 thread",
        "sequential, 2 threads",
    ]
    assert not any(entry.is_sequential and entry.is_side_by_side for entry in entries)
    crowded = next(entry.contestant for entry in entries if entry.name == "first come, 2 executors of 2 threads")
    expected = subject.graph.run(subject.parameters, subject.buffers, subject.batch, seed=0)
    torch.testing.assert_close(crowded.run().loss, expected.loss)
    for entry in entries:
        entry.contestant.rest()


def test_uniform_pairs_have_no_more_than_two_threads_for_each_core() -> None:
    assert pairs(2) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(executors * threads <= 12 for executors, threads in pairs(6))
    assert len(pairs(4)) + len(left_out(4)) == 9


def test_chains_do_not_depend_on_each_other() -> None:
    subject = chains(operators=24, width=4)
    additions = [op for op in subject.graph.operators if op.kind == "aten.add.Tensor" and op.phase == "forward"]
    assert len(additions) == 24
    ready = ListScheduler(subject.dependencies, executors=100).start()
    assert len(ready) >= 1
    expected = subject.graph.run(subject.parameters, subject.buffers, subject.batch, seed=0)
    for schedule_of_one in schedules(subject).values():
        with LocalRuntime(subject.graph, schedule_of_one) as runtime:
            assert_same(subject.run(runtime), expected)


def test_the_cost_of_scheduling_is_what_is_added_to_the_same_operators_in_order() -> None:
    found = measure_cost(operators=32, width=4, turns=3, stint_s=0.0)
    assert found["operators"] >= 32
    assert found["ready_at_once"] == 4
    assert found["in_order_ns"]["median"] > 0
    assert IN_ORDER not in found["added_ns"]
    assert {own["n"] for own in found["added_ns"].values()} == {3}


def test_decisions_are_asked_for_in_the_order_of_a_simulated_step() -> None:
    dependencies = [(), (), (0,), (1, 2)]
    heard = Hearing(ListScheduler(dependencies, executors=2))
    simulate_operators(heard, lambda start: (5, 3, 4, 1)[start.operator])
    assert heard.ends == [(3, 1), (5, 0), (9, 2), (10, 3)]


def test_every_scheduler_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.schedule.profiler.operator_times.cache_folder", lambda: tmp_path)
    subject = chains(operators=8, width=2)
    profile = measure(subject, threads=[1], repeats=1)
    rates = decisions_per_s(subject, profile, cores=1, repeats=2)
    assert list(rates) == ["first come", "critical path", "strategy 3"]
    assert all(rate > 0 for rate in rates.values())


def test_one_core_has_nothing_to_run_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "available_cores", lambda: (0,))
    with pytest.raises(SettingError, match="on 2 cores or more, got 1"):
        run(Settings(out=tmp_path), "")


def test_all_networks_of_both_papers_take_part() -> None:
    assert len(Settings().networks) == 8
    assert set(schedule_report.TABLE_I) <= set(Settings().networks)
    assert all(len(row) == len(schedule_report.TABLE_I_PAIRS) for row in schedule_report.TABLE_I.values())
    assert Settings().reduced() == Settings()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["networks="], "networks must not be empty"),
        (["networks=perceptron"], "networks must be of lstm"),
        (["size=huge"], "size must be one of tiny, small"),
        (["turns=0"], "turns must be above 0, got 0"),
        (["widths="], "widths must be above 0, got nothing"),
    ],
)
def test_settings_that_cannot_be_carried_out_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(Settings, words)
