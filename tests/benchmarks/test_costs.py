"""How well cost models predict: the program as a whole, in its small form, and its parts on made-up times."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bow
from benchmarks.arguments import parse
from benchmarks.cost_models import ESTIMATORS, Saturation, Threads, Work, cases
from benchmarks.costs import PARTS, UNSEEN, Settings, run
from benchmarks.costs_climbing import climb, times_of, variants
from benchmarks.costs_here import Measured, climbs, count_events, fit_roofline
from benchmarks.costs_population import drawn, key_of, kind_of, population, several, works_of
from benchmarks.costs_regressions import compare_others, run_all
from benchmarks.costs_report import TABLE_IV, TABLE_V
from bow.errors import SettingError
from bow.models import NETWORKS
from bow.schedule.profiler.bound_step import BoundStep

WORK = Work("aten.convolution.default", 1e9, 1e7)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What the program in its small form writes."""
    out = tmp_path_factory.mktemp("costs")
    assert run(parse(Settings, ["quick=true", f"out={out}"]), "python -m benchmarks costs quick=true") == 0
    return json.loads((out / "costs.json").read_text()), (out / "costs.md").read_text()


def test_every_part_is_done_and_shown(small: tuple[dict[str, Any], str]) -> None:
    values, page = small
    assert all(part in values for part in PARTS)
    assert set(values["seconds_by_part"]) == set(PARTS)
    assert values["events"] in page
    assert page.count("## ") == 7
    assert "| Liu, Table II | Conv2DBackpropFilter (32,8,8,384): best | 26 | 26 | 0 |" in page
    assert all(f"{TABLE_V['dcgan'][interval]:.1%}" in page for interval in ("4", "16"))


def test_climbs_are_scored_by_interval_on_every_machine(small: tuple[dict[str, Any], str]) -> None:
    (network,) = small[0]["climbing"].values()
    assert len(network["machines"]) == 4
    for by_interval in network["machines"].values():
        assert list(by_interval) == ["4", "16"]
        assert by_interval["4"]["accuracy_between"] > by_interval["16"]["accuracy_between"]
        assert by_interval["4"]["measured_mean"] > by_interval["16"]["measured_mean"]


def test_regressions_are_scored_on_the_network_that_they_do_not_know(small: tuple[dict[str, Any], str]) -> None:
    found = small[0]["regression"]
    assert found["trained_on"] == 40
    assert list(found["families"]) == ["1", "2"]
    for families in found["families"].values():
        assert all(len(of["events"]) == 4 for of in families.values())
    (miscounted,) = found["miscounted"].values()
    assert miscounted.keys() == found["families"]["1"].keys()
    assert list(found["others"]) == ["hill climbing, interval 4", "roofline"]


def test_this_machine_is_measured_twice(small: tuple[dict[str, Any], str]) -> None:
    found = small[0]["here"]
    assert list(found["networks"]) == ["dcgan", UNSEEN]
    for of in found["networks"].values():
        assert sum(of["best"].values()) == of["operators"]
        assert of["ms_with_best"] > 0
    assert set(found["regression"]) < set(ESTIMATORS)


def test_the_papers_numbers_belong_to_rows_that_there_are() -> None:
    assert all(family in ESTIMATORS for families in TABLE_IV.values() for family in families)
    assert set(TABLE_V) == set(Settings().networks) <= set(NETWORKS)


def test_an_operator_is_counted_once_and_says_which_gradient_it_computes() -> None:
    works = population("alexnet", "tiny", samples=2)
    backward = [name for name in works if "convolution_backward" in name]
    assert (
        len([name for name in backward if " input " in name]) + 1 == len([n for n in backward if " weight " in n]) == 5
    )
    assert all(work.bytes_moved > 0 for work in works.values())
    assert not any("view" in name or "empty" in name for name in works)


def test_work_is_that_of_the_graph() -> None:
    model = nn.Linear(512, 512, bias=False)
    graph = bow.capture(model, (torch.randn(64, 512), torch.randn(64, 512)), nn.functional.mse_loss)
    works = works_of(graph)
    product = next(op for op in graph.operators if op.kind == "aten.mm.default" and op.phase == "forward")
    assert key_of(product, graph) == "aten.mm.default [64, 512] [512, 512] -> [64, 512]"
    assert works[key_of(product, graph)] == Work("aten.mm.default", 2.0 * 64 * 512 * 512, 4.0 * (2 * 64 + 512) * 512)
    assert kind_of(product) == "aten.mm.default"


def test_larger_batches_make_other_operators() -> None:
    one, both = several(["alexnet"], "tiny", [2]), several(["alexnet"], "tiny", [2, 4])
    assert set(one) < set(both)
    with pytest.raises(SettingError, match="network must be one of"):
        population("perceptron")


def test_draws_are_some_of_all_in_their_order() -> None:
    works = {str(number): WORK for number in range(50)}
    assert drawn(works, 60, seed=0) == works
    some = drawn(works, 10, seed=0)
    assert len(some) == 10
    assert list(some) == sorted(some, key=int)
    assert some == drawn(works, 10, seed=0) != drawn(works, 10, seed=1)


def test_a_climb_is_scored_on_what_it_did_not_measure() -> None:
    machine = Saturation()
    times = times_of(machine, WORK)
    found = climb(times, times, machine.cores, interval=4)
    assert found.measured + len(found.actual) == len(times) == 68
    assert found.untested is not None
    assert found.untested < 1
    assert found.loss >= 0
    everything = climb({case: 1 / case.threads for case in times}, times, machine.cores, interval=1)
    assert (everything.untested, everything.between, everything.behind) == (None, None, None)


def test_machines_differ_in_noise_and_in_what_does_not_scale() -> None:
    usual, quiet, loud, alone = (each.machine for each in variants(0.01, seed=5))
    assert [machine.noise for machine in (usual, quiet, loud, alone)] == [0.01, 0.0, 0.03, 0.01]
    assert alone.scalings["convolution"].serial_s > 0 == usual.scalings["convolution"].serial_s


def test_models_are_held_against_other_runs_than_they_are_told_of() -> None:
    machine = Saturation(noise=0.1)
    found = run_all(machine, {"conv": WORK}, [Threads(4)], [Threads(4)])
    assert found.profiles["conv"][Threads(4)].time_s != found.times["conv"][Threads(4)]
    miscounted = run_all(machine, {"conv": WORK}, [Threads(4)], [Threads(4)], miscount=0.5)
    assert miscounted.times == found.times
    assert miscounted.profiles["conv"][Threads(4)].events != found.profiles["conv"][Threads(4)].events


def test_a_climb_knows_a_machine_better_than_its_data_sheet() -> None:
    found = compare_others(Saturation(), {"conv": WORK, "larger": Work(WORK.kind, 1e10, 1e8)}, num_cases=8)
    climbing, roofline = found.values()
    assert climbing["accuracy"] > roofline["accuracy"]


def made_up(again: float) -> Measured:
    """Three operators whose second measurement took so many times what the first took."""
    seconds = {"a": (4.0, 2.0), "b": (1.0, 3.0), "c": (0.5, 0.5)}
    first = {name: {Threads(1): one, Threads(2): two} for name, (one, two) in seconds.items()}
    second = {name: {case: again * taken for case, taken in times.items()} for name, times in first.items()}
    works = {name: Work("aten.mm.default", 8.0, 16.0) for name in seconds}
    return Measured(works, first, second, dict.fromkeys(seconds, 0.1), {})


def test_a_climb_here_is_scored_by_the_second_measurement() -> None:
    found = climbs(made_up(again=1.25), cores=2)
    assert found["best"] == {"1": 2, "2": 1}
    assert found["again"]["accuracy"] == pytest.approx(0.8)
    assert found["ms_with_best"] == pytest.approx(1250 * (2.0 + 1.0 + 0.5))
    assert found["ms_by_threads"] == {"1": 1250 * 5.5, "2": 1250 * 5.5}
    assert climbs(made_up(again=1.0), cores=2)["again"] == {"accuracy": 1.0, "r_squared": 1.0}


def test_a_roofline_is_what_all_but_the_fastest_tenth_reach() -> None:
    works = {str(n): Work("mm", 10.0 * n, 1000.0 * n) for n in range(1, 11)}
    times = {name: {Threads(1): 1.0} for name in works}
    machine = fit_roofline([Measured(works, times, times, {}, {})], cores=2)
    assert (machine.peak_flops_per_s, machine.bandwidth_bytes_per_s) == (2 * 90.0, 2 * 9000.0)
    assert (machine.latency_s, machine.cores) == (1.0, 2)


def test_events_are_counted_operator_by_operator_where_they_can_be() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    subject = BoundStep.of(model, (torch.randn(2, 3), torch.randn(2, 1)), nn.functional.mse_loss)
    runs: list[int] = []

    def counting(work: Callable[[], object]) -> dict[str, float]:
        work()
        runs.append(1)
        return {"instructions": 2.0, "cycles": float(len(runs))}

    events = count_events(subject, counting)
    assert len(runs) == len(subject.graph.operators)
    assert events.keys() == works_of(subject.graph).keys()
    operator = next(iter(events))
    known = Measured(works_of(subject.graph), {operator: {Threads(1): 1.0}}, {}, {}, events)
    assert known.profile(operator)[Threads(1)].events == events[operator]


def test_without_counters_events_are_computed_from_work_and_time() -> None:
    (sample,) = made_up(again=1.0).profile("a").values()
    assert sample.events["flops"] == 8.0
    assert sample.time_s == 4.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["intervals="], "intervals must be above 0, got nothing"),
        (["noise=-1"], "noise must be at least 0, got -1"),
        (["parts="], "parts must not be empty"),
        (["families=magic"], "families must be of"),
    ],
)
def test_settings_that_cannot_be_carried_out_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(Settings, words)


def test_all_cases_of_the_machine_are_timed() -> None:
    assert set(times_of(Saturation(), WORK)) == set(cases(68))
