"""The papers' experiments on their machine, simulated: the program in its small form, and parts on made-up steps."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bow
from benchmarks.arguments import parse
from benchmarks.cost_models import Saturation, Threads, Work
from benchmarks.document import keys_in
from benchmarks.manycore import Settings, run
from benchmarks.manycore.claims import graphi_claims
from benchmarks.manycore.curves import Curves, Teams, learn
from benchmarks.manycore.diagonal import cell_timeline, cells_of, diagonal_of
from benchmarks.manycore.executors import (
    at_random,
    critical_first,
    fastest,
    first_come,
    held_to_shares,
    sequential_ns,
    shapes,
    simulated_ns,
    sweep,
)
from benchmarks.manycore.jobs import all_jobs
from benchmarks.manycore.machines import (
    CACHES,
    CONVOLUTIONS,
    CORES,
    TEAM_CORES,
    VARIATIONS,
    durations,
    share_of_memory,
    team,
    teams_that_stay,
)
from benchmarks.manycore.options import (
    changing_number,
    classes_by_scaling,
    preferred_executor,
    small_at_once,
    team_sizes,
    with_caches,
)
from benchmarks.manycore.page import BENCHMARK, replaced, sections
from benchmarks.manycore.paper import TABLE_2, Range
from benchmarks.manycore.queues import compare_queues
from benchmarks.manycore.seats import Seated, fit
from benchmarks.manycore.sensitivity import machines
from benchmarks.manycore.steps import Step, capture_step, step_of
from benchmarks.manycore.strategies import (
    OF_A_TYPE,
    PLANS,
    Plan,
    best_pair,
    counts_of,
    longest_types,
    pairs,
    recommended,
    simulate_plan,
    try_changes,
    try_plans,
    try_sharing,
)
from bow.errors import SettingError
from bow.models import NETWORKS
from bow.models.recurrent import RNNLanguageModel, sequence_cross_entropy
from bow.schedule import Span, Timeline
from bow.schedule.scheduler import CacheTimes, ListScheduler, Start
from bow.schedule.simulator import simulate_operators

ROOT = Path(__file__).parents[2]
MACHINE = Saturation()
LARGE = Work("aten.mm.default", 4e9, 1e7)
POINTWISE = Work("aten.mul.Tensor", 1e6, 1.2e7)
TINY = Work("aten.add.Tensor", 1.0, 12.0)
PRODUCT = Work("aten.mm.default", 3.4e7, 1.3e6)
FILTER = Work("aten.convolution_backward.default weight", 2e9, 1e7)


def made_up(works: Sequence[Work], dependencies: Sequence[Sequence[int]], forward: int | None = None) -> Step:
    """A step of these operators, the first of which are the forward pass."""
    count = len(works) if forward is None else forward
    before = tuple(frozenset(each) for each in dependencies)
    return Step(tuple(works), before, ("",) * len(works), tuple(each < count for each in range(len(works))))


FAN = made_up([LARGE] * 8, [()] * 8)
MIXED = made_up(
    [LARGE, POINTWISE, FILTER, POINTWISE, PRODUCT, FILTER, TINY, POINTWISE],
    [(), (0,), (0,), (1,), (1,), (4,), (4,), (3, 5, 6)],
    forward=4,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the program in its small form writes, beside a document that asks for two tables."""
    out = tmp_path_factory.mktemp("manycore")
    (out / "scheduling.md").write_text("Before\n<!-- manycore: figure 6 -->\nold\n<!-- end -->\nAfter\n")
    assert run(parse(Settings, ["quick=true", f"out={out}"]), "python -m benchmarks manycore quick=true") == 0
    return json.loads((out / "manycore.json").read_text()), out


@pytest.fixture(scope="module")
def pathnet() -> Step:
    """A step of a network that was captured."""
    return capture_step("pathnet", "tiny")


def test_the_program_writes_every_table_and_every_picture(small: tuple[dict[str, Any], Path]) -> None:
    values, out = small
    page = (out / "manycore.md").read_text()
    assert all(f"## {section.title}" in page for section in sections(values))
    assert page.count("\n## ") == 16
    assert "out" not in values["settings"]
    assert "docs" not in values["settings"]
    drawn = {path.name for path in (out / "images").iterdir()}
    assert drawn == {
        "manycore_figure_4.png",
        "manycore_figure_6.png",
        "manycore_cells_critical_path.svg",
        "manycore_cells_first_come.svg",
        "manycore_cells_any_ready.svg",
    }
    # 2 layers of 6 cells, and the ground
    assert (out / "images" / "manycore_cells_critical_path.svg").read_text().count("<rect") == 13


def test_the_tables_of_the_document_are_replaced_and_nothing_else(small: tuple[dict[str, Any], Path]) -> None:
    values, out = small
    text = (out / "scheduling.md").read_text()
    assert text.startswith("Before\n<!-- manycore: figure 6 -->\n\n| network | size |")
    assert text.endswith("<!-- end -->\nAfter\n")
    assert "old" not in text
    assert replaced(text, values) == text


def test_a_document_that_asks_for_a_table_that_there_is_none_of_is_refused(small: tuple[dict[str, Any], Path]) -> None:
    with pytest.raises(SettingError, match="there is no table 'figure 7'"):
        replaced("<!-- manycore: figure 7 -->\n<!-- end -->", small[0])


def test_the_document_states_what_the_committed_results_say() -> None:
    text = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")
    values = json.loads((ROOT / "benchmarks" / "results" / "manycore.json").read_text(encoding="utf-8"))
    assert len(list(keys_in(text, BENCHMARK))) >= 10
    assert replaced(text, values) == text


def test_what_is_found_of_a_step_fits_together(small: tuple[dict[str, Any], Path], pathnet: Step) -> None:
    found = small[0]["graphi"]["pathnet"]["tiny"]
    machine = teams_that_stay(MACHINE)
    assert found["operators"] == len(pathnet)
    assert found["sequential_ms"] == pytest.approx(sequential_ns(machine, pathnet) / 1e6, abs=1e-4)
    assert found["executors"] == sweep(machine, pathnet, shapes("pathnet"))
    assert [(row["executors"], row["threads"]) for row in found["tensorflow"]] == shapes("pathnet")


def test_a_step_has_all_the_work_of_its_graph(pathnet: Step) -> None:
    network = NETWORKS["pathnet"]
    graph = bow.capture(network.build("tiny"), network.batch("tiny"), network.loss)
    assert step_of(graph) == pathnet
    assert sum(work.flops for work in pathnet.works) == graph.flops
    assert sum(work.bytes_moved for work in pathnet.works) == graph.bytes_moved
    assert all(other < number for number, before in enumerate(pathnet.dependencies) for other in before)
    assert sum(pathnet.forward) < len(pathnet)


def test_dependencies_of_a_step_lead_through_views() -> None:
    graph = bow.capture(torch.nn.Linear(3, 2), (torch.randn(4, 3), torch.randn(4, 2)), torch.nn.functional.mse_loss)
    step = step_of(graph)
    numbers = {operator.index: number for number, operator in enumerate(op for op in graph.operators if not op.is_view)}
    maker = {value: op for op in graph.operators for value in op.results if value is not None}
    viewed = [
        (numbers[op.index], numbers[maker[maker[value].reads[0]].index])
        for op in graph.operators
        if not op.is_view
        for value in op.reads
        if value in maker and maker[value].is_view and maker[value].reads[0] in maker
    ]
    assert viewed
    assert all(source in step.dependencies[number] for number, source in viewed)


def test_only_convolutions_scale_otherwise_with_teams_that_stay() -> None:
    own = teams_that_stay(MACHINE)
    product = MACHINE.scalings["product"]
    for sort, scaling in MACHINE.scalings.items():
        assert (own.scalings[sort] != scaling) == (sort in CONVOLUTIONS)
        assert own.scalings[sort].flops_per_s == scaling.flops_per_s
    assert {own.scalings[sort].crowding_s for sort in CONVOLUTIONS} == {product.crowding_s}


@pytest.mark.parametrize("parameter", list(VARIATIONS))
def test_every_variation_changes_times_and_undoes_itself(parameter: str) -> None:
    varied = VARIATIONS[parameter]
    usual, other = (durations(machine, MIXED, team(64)) for machine in (MACHINE, varied(MACHINE, 2.0)))
    assert usual != other
    assert durations(varied(varied(MACHINE, 2.0), 0.5), MIXED, team(64)) == usual


def test_sensitivity_looks_at_every_parameter_times_every_factor() -> None:
    found = [(parameter, factor) for parameter, factor, _ in machines(MACHINE, (0.5, 2.0))]
    assert found[0] == ("none", 1.0)
    assert set(found[1:]) == {(parameter, factor) for parameter in VARIATIONS for factor in (0.5, 2.0)}


def test_executors_share_out_independent_operators() -> None:
    (row,) = sweep(MACHINE, FAN, [(4, 16)])
    each = durations(MACHINE, FAN, team(16))[0]
    assert row["ms"] == pytest.approx(2 * each / 1e6, abs=1e-4)
    assert row["speedup"] == pytest.approx(sequential_ns(MACHINE, FAN) / (2 * each), abs=1e-4)
    assert row["over_first_come"] == 1.0


def test_one_executor_gains_nothing() -> None:
    assert sweep(MACHINE, MIXED, [(1, TEAM_CORES)])[0]["speedup"] == 1.0


def test_executors_held_to_a_share_of_the_memory_are_no_faster() -> None:
    assert share_of_memory(MACHINE, 4).bytes_per_s == MACHINE.bytes_per_s / 4
    step = made_up([POINTWISE] * 8, [()] * 8)
    (free,), (held,) = sweep(MACHINE, step, [(4, 16)]), held_to_shares(MACHINE, step, [(4, 16)])
    assert held["speedup"] < free["speedup"]


def test_the_fastest_shape_is_that_with_the_highest_speed_up() -> None:
    rows = [{"executors": k, "threads": 64 // k, "speedup": s} for k, s in ((2, 1.5), (4, 1.9), (8, 1.9))]
    assert fastest(rows) == (4, 16)


def test_critical_path_first_beats_a_queue_where_the_long_path_comes_last() -> None:
    step = made_up([LARGE, LARGE, LARGE, LARGE, LARGE], [(), (), (), (2,), (3,)])
    times = durations(MACHINE, step, team(32))
    first = simulated_ns(critical_first(step, 2, times), times)
    assert first == 3 * times[0]
    assert simulated_ns(first_come(step, 2), times) == 4 * times[0]


def test_any_ready_operator_is_drawn_alike_for_the_same_seed() -> None:
    orders = [[start.operator for start in at_random(FAN, 8, seed).start()] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_a_queue_that_costs_something_holds_up_those_that_poll_it() -> None:
    rows = compare_queues(MACHINE, made_up([TINY] * 64, [()] * 64), [0, 10_000], seeds=[0])
    assert [row["executors"] for row in rows] == list(TABLE_2["lstm"])
    for row in rows:
        assert row["queue"]["0"] == row["random"]["median"] == 1.0
        assert row["queue"]["10000"] < 0.99
    assert rows[-1]["queue"]["10000"] < rows[0]["queue"]["10000"]


def test_cells_of_an_lstm_begin_with_their_products() -> None:
    model = RNNLanguageModel(vocabulary=10, hidden=4, layers=2)
    tokens = torch.randint(10, (2, 3))
    step = step_of(bow.capture(model, (tokens, tokens), sequence_cross_entropy))
    cells = cells_of(step)
    assert sorted(cells) == [(layer, moment) for layer in range(2) for moment in range(3)]
    for operators in cells.values():
        assert [step.kinds[each] for each in operators[:3]] == ["aten.addmm.default"] * 2 + ["aten.add.Tensor"]
        assert step.dependencies[operators[2]] == set(operators[:2])
        assert len(operators) == 12


def test_a_cell_begins_with_the_later_of_its_products() -> None:
    moments = {0: (0, 10), 1: (30, 40), 2: (40, 50), 3: (60, 70)}
    ran = Timeline(Span("", "executor 0", *when, details={"operator": each}) for each, when in moments.items())
    (span,) = cell_timeline(ran, {(1, 4): [0, 1, 2, 3]}).spans
    assert (span.name, span.place, span.start_ns, span.end_ns) == ("step 4", "layer 1", 30, 70)


def test_a_layer_after_the_other_is_no_diagonal() -> None:
    begins = {(layer, moment): 100 * layer + moment for layer in range(3) for moment in range(10)}
    found = diagonal_of(begins)
    assert found.correlation < 0.6
    assert found.most_ahead == 9
    assert found.ahead == pytest.approx(4.5)


def test_executors_of_one_size_are_the_symmetric_ones() -> None:
    found = team_sizes(MACHINE, MIXED, (4, 16), [16] * 4)
    assert found["time"] == found["thread_time"] == 1.0


def test_executors_of_several_sizes_spend_less_of_all_threads() -> None:
    step = made_up([LARGE, TINY, TINY, TINY], [()] * 4)
    assert team_sizes(MACHINE, step, (2, 32), [32, 16, 8, 8])["thread_time"] < 1.0


def test_passes_may_have_executors_of_their_own() -> None:
    step = made_up([LARGE] * 2 + [LARGE] * 8, [(), (0,), *[(1,)] * 8], forward=2)
    found = changing_number(MACHINE, step, (2, 32), [2, 4])
    assert (found["forward"], found["backward"]) == (2, 4)
    before = simulated_ns(ListScheduler(step.dependencies, 2), durations(MACHINE, step, team(32)))
    assert found["time"] == pytest.approx(1 - 1e6 * found["saved_ms"] / before, abs=1e-4)


def test_element_wise_operators_gain_from_the_cache_of_their_executor() -> None:
    step = made_up([POINTWISE, POINTWISE, LARGE, POINTWISE], [(), (0,), (0,), (1, 2)])
    duration = with_caches(step, [100, 100, 100, 100], kept=0.5)
    starts = [Start(0, executor=0), Start(1, executor=0), Start(2, executor=0), Start(3, executor=1)]
    assert [duration(start) for start in starts] == [100, 50, 100, 100]


def test_staying_brings_nothing_where_the_cache_does_not() -> None:
    assert preferred_executor(MACHINE, FAN, (2, 32), kept=1.0)["time"] == 1.0


def test_small_operators_are_not_handed_over() -> None:
    step = made_up([LARGE, TINY, TINY, TINY], [(), (0,), (1,), (2,)])
    free, dear = (small_at_once(MACHINE, step, (2, 32), handover_ns) for handover_ns in (0, 5000))
    assert (free["small"], free["operators"]) == (3, 4)
    large, tiny = (durations(MACHINE, step, team(32))[each] for each in (0, 1))
    alone = durations(MACHINE, step, team(1))[1]
    assert free["time"] == pytest.approx((large + 3 * alone) / (large + 3 * tiny), abs=1e-4)
    expected = (large + 5000 + 3 * alone) / (large + 3 * tiny + 4 * 5000)
    assert dear["time"] == pytest.approx(expected, abs=1e-4)


def test_the_light_executor_runs_small_operators_of_the_start() -> None:
    step = made_up([TINY] + [LARGE] * 3, [()] * 4)
    found = small_at_once(MACHINE, step, (2, 32), 0)
    assert found["time_with_light"] <= found["time"]


@given(st.integers(1, 8), st.integers(1, 34), st.integers(1, 20))
def test_executors_never_share_a_hardware_thread(executors: int, threads: int, operators: int) -> None:
    if not fit(executors, threads, CORES):
        with pytest.raises(SettingError, match="have no seats"):
            Seated(ListScheduler([()] * operators, executors), threads, CORES)
        return
    scheduler = Seated(ListScheduler([()] * operators, executors), threads, CORES)
    held: dict[int, set[tuple[int, bool]]] = {}
    pending = scheduler.start()
    while pending or held:
        for start in pending:
            own = {(core, start.sibling) for core in start.cores}
            assert len(own) == threads == start.threads
            assert max(start.cores) < CORES
            assert not any(own & other for other in held.values())
            held[start.operator] = own
        operator = next(iter(held))
        del held[operator]
        pending = scheduler.finished(operator)
    assert scheduler.done


def test_more_threads_than_cores_slow_each_other_down() -> None:
    def seated(threads: int) -> float:
        scheduler = Seated(ListScheduler([(), ()], executors=2), threads, cores=4)
        return 1e9 * simulate_operators(scheduler, lambda start: 100, siblings_factor=1.5).makespan

    assert seated(2) == pytest.approx(100)
    assert seated(4) == pytest.approx(150)


def test_a_climb_without_noise_knows_what_it_has_measured() -> None:
    curves = learn(MACHINE, FAN, noise=0.0, interval=4, seed=0)
    predicted, actual = curves.predicted.least[0], curves.actual.least[0]
    assert (
        predicted[1] == actual[1] == round(1e9 * MACHINE.time_s(LARGE.flops, LARGE.bytes_moved, LARGE.kind, Threads(1)))
    )
    assert set(predicted) == {*range(1, 35), *range(36, 69, 2)}
    assert any(predicted[threads] != actual[threads] for threads in predicted)


def test_noise_is_in_predictions_and_never_in_what_happens() -> None:
    one, same, other = (learn(MACHINE, FAN, 0.05, 4, seed) for seed in (0, 0, 1))
    quiet = learn(MACHINE, FAN, 0.0, 4, 0)
    assert one.predicted.least == same.predicted.least != other.predicted.least
    assert one.actual.least == quiet.actual.least


def test_operators_take_what_they_take_where_they_sit() -> None:
    work, actual = FAN.works[0], learn(MACHINE, FAN, 0.0, 4, 0).actual
    for cores, case in (
        ((0, 1), Threads(2, shared=True)),
        ((0, 2), Threads(2)),
        ((3, 4), Threads(2)),
        ((0, 1, 2), Threads(3)),
    ):
        assert actual.ns(0, cores) == round(1e9 * MACHINE.time_s(work.flops, work.bytes_moved, work.kind, case))


def test_a_team_that_stays_costs_nothing() -> None:
    teams = Teams([{1: 10, 2: 6}], change_ns=100)
    starts = [Start(0, 0, 2, (0, 1)), Start(0, 0, 2, (0, 1)), Start(0, 2, 1, (2,)), Start(0, 0, 1, (0,))]
    assert [teams(start) for start in starts] == [6, 6, 10, 110]
    assert teams(Start(0, 3, 1, (0,), sibling=True)) == 10
    assert teams.changes == 1


def test_a_team_may_belong_to_a_type_of_operators() -> None:
    teams = Teams([{1: 10, 2: 6}] * 3, change_ns=100, kinds=["mm", "relu", "mm"])
    starts = [Start(0, 0, 2, (0, 1)), Start(1, 0, 1, (0,)), Start(2, 4, 2, (4, 5)), Start(0, 0, 1, (0,))]
    assert [teams(start) for start in starts] == [6, 10, 6, 110]


def test_strategy_2_never_changes_the_threads_of_a_type() -> None:
    curves = learn(MACHINE, MIXED, noise=0.0, interval=4, seed=0)
    assert simulate_plan(MIXED, curves, Plan(2), whose=OF_A_TYPE)[1] == 0
    found = try_changes(MACHINE, MIXED, curves)
    assert len(set(found["1-2, changes of a type"].values())) == 1
    assert found["1-2, changes of a core"]["300000"] < found["1-2, changes of a core"]["0"]


def test_the_plans_are_named_by_what_they_apply() -> None:
    assert [plan.name for plan in PLANS] == ["1", "1-2", "1-3", "1-4", "1-3, narrow", "1-4, narrow"]


def test_the_first_strategy_is_never_slower_than_the_recommendation_if_it_knows_all() -> None:
    curves = learn(MACHINE, MIXED, noise=0.0, interval=1, seed=0)
    timeline, _ = simulate_plan(MIXED, curves, Plan(1))
    assert 1e9 * timeline.makespan <= sum(recommended(MACHINE, MIXED))
    assert counts_of(timeline) == [1] * len(MIXED)


def test_plans_are_compared_with_the_recommendation() -> None:
    curves = learn(MACHINE, MIXED, noise=0.01, interval=4, seed=0)
    found = try_plans(MACHINE, MIXED, curves)
    for plan in PLANS:
        timeline, changes = simulate_plan(MIXED, curves, plan)
        assert found[plan.name]["ms"] == pytest.approx(1e3 * timeline.makespan, abs=1e-4)
        assert found[plan.name]["changes"] == changes
        expected = sum(recommended(MACHINE, MIXED)) / 1e9 / timeline.makespan
        assert found[plan.name]["speedup"] == pytest.approx(expected, abs=1e-4)
    assert found["1-2"]["together"] == 1.0


def test_changes_of_teams_cost_what_they_cost() -> None:
    curves = learn(MACHINE, MIXED, noise=0.0, interval=4, seed=0)
    free, changes = simulate_plan(MIXED, curves, Plan(1))
    dear, _ = simulate_plan(MIXED, curves, Plan(1), change_ns=1000)
    assert changes
    assert 1e9 * (dear.makespan - free.makespan) == pytest.approx(1000 * changes)
    by_cost = try_changes(MACHINE, MIXED, curves)["1, changes of a core"]
    assert list(by_cost.values()) == sorted(by_cost.values(), reverse=True)


def beside_one_that_takes_all() -> tuple[Step, Curves]:
    """Two short operators that are ready while a long one has all cores, and one behind them all."""
    step = made_up([FILTER, LARGE, LARGE, TINY], [(), (), (), (0, 1, 2)])
    long, short = {1: 9000, 68: 1000}, {1: 100, 68: 60}
    times = CacheTimes([long, short, short, {1: 10, 68: 10}], [{}] * 4, CACHES)
    return step, Curves(times, times)


def test_sharing_a_core_pays_only_while_it_slows_little() -> None:
    step, curves = beside_one_that_takes_all()
    by_factor = try_sharing(step, curves)["1-4"]
    assert by_factor["1.00"] > 1
    assert list(by_factor.values()) == sorted(by_factor.values(), reverse=True)


def test_uniform_pairs_hold_two_hardware_threads_a_core_at_most() -> None:
    tried = list(pairs())
    assert len(tried) == len(set(tried)) == 132
    assert {(1, 68), (2, 34), (2, 68), (4, 34)} <= set(tried)
    assert all(inter * intra <= 2 * CORES for inter, intra in tried)


def test_one_operator_at_a_time_with_all_cores_is_the_recommendation() -> None:
    found = best_pair(MACHINE, MIXED, [(1, 68), (1, 34), (2, 34)])
    assert found["table_1"]["1 x 68"] == 1.0
    assert found["speedup"] == max(found["table_1"].values())
    assert f"{found['inter']} x {found['intra']}" in found["table_1"]


def test_two_operators_on_all_cores_gain_what_the_paper_measured() -> None:
    assert best_pair(MACHINE, FAN, [(1, 68), (2, 68)])["table_1"]["2 x 68"] == pytest.approx(1.03, abs=1e-3)


def test_the_longest_types_stand_first_and_are_counted() -> None:
    curves = learn(MACHINE, MIXED, noise=0.0, interval=1, seed=0)
    rows = longest_types(MACHINE, MIXED, curves)
    assert [row["before_ms"] for row in rows] == sorted((row["before_ms"] for row in rows), reverse=True)
    assert sum(row["before_ms"] for row in rows) == pytest.approx(sum(recommended(MACHINE, MIXED)) / 1e6, abs=1e-3)
    assert {row["kind"]: row["count"] for row in rows}["aten.mul.Tensor"] == 3
    filters = next(row for row in rows if row["kind"] == FILTER.kind)
    assert filters["threads"] < CORES
    assert filters["after_ms"] < filters["before_ms"]


@pytest.mark.parametrize(("value", "verdict"), [(2.5, "yes"), (3.2, "yes"), (4.6, "in part"), (0.9, "no")])
def test_a_claim_agrees_in_part_where_only_the_direction_does(value: float, verdict: str) -> None:
    row = {"executors": 8, "threads": 8, "speedup": value, "over_first_come": 1.0}
    found = {"lstm": {"medium": {"executors": [row], "parallelism_with_8": 10.0}}}
    first, second, *_ = graphi_claims(found, "medium")
    assert second.verdict == "yes"
    assert (first.paper, first.verdict) == ("2.3 to 3.1", verdict)


def test_a_range_of_one_number_is_told_as_one() -> None:
    assert (str(Range(1.2, 1.2)), str(Range(8, 12))) == ("1.2", "8 to 12")


def test_every_network_has_its_job() -> None:
    settings = Settings()
    assert len(all_jobs(settings)) == len(settings.graphi) * len(settings.sizes) + len(settings.liu)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["noise=-1"], "noise must be at least 0"),
        (["dispatch_ns="], "dispatch_ns must be at least 0"),
        (["sizes=huge"], "size must be one of tiny, small, medium, large for LSTM, got huge"),
        (["factors=0"], "factors must be above 0"),
        (["interval=0"], "interval must be above 0"),
        (["liu=lstm"], "liu must be of resnet50, dcgan, inception"),
    ],
)
def test_settings_outside_their_range_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(Settings, words)


def test_an_operator_prefers_the_largest_team_that_it_keeps_busy() -> None:
    perfect, half, flat = {4: 80, 8: 40, 16: 20}, {4: 80, 8: 60, 16: 40}, {4: 80, 8: 81, 16: 80}
    assert classes_by_scaling([perfect, half, flat], sizes=[4, 8, 16]) == [2, 2, 0]
    assert classes_by_scaling([perfect, half, flat], sizes=[4, 8, 16], efficiency=0.6) == [2, 1, 0]
    assert classes_by_scaling([{1: 0, 2: 0}, {1: 0, 2: 1}], sizes=[1, 2]) == [1, 0]
