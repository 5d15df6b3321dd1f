"""Executors in Python: what a scheduler decides while a step runs, and the numbers of the graph whatever that is."""

import threading

import pytest
import torch

import bow
from benchmarks.schedule_threads import ScheduledThreads
from bow.errors import GraphError, SettingError
from bow.runtime.local import LocalRuntime, dependencies_of, operators_of
from bow.schedule import OrderedSchedule
from bow.schedule.scheduler import CoRunScheduler, ListScheduler, held_by_core
from tests.graph.cases import PAPER_MODELS, captured, state
from tests.runtime.test_local import Noisy, assert_same


@pytest.mark.sample(4)
@pytest.mark.parametrize("executors", [1, 2, 3])
@pytest.mark.parametrize("name", PAPER_MODELS)
def test_any_number_of_executors_gives_the_numbers_of_the_graph(name: str, executors: int) -> None:
    model, graph = captured(name)
    scheduler = ListScheduler(dependencies_of(operators_of(graph)), executors)
    batch = PAPER_MODELS[name].batch()
    with ScheduledThreads(graph, scheduler, [()] * executors) as runtime:
        for seed in range(2):
            made = runtime.run(*state(model), batch, seed=seed)
            assert_same(made, graph.run(*state(model), batch, seed=seed))
    assert {span.place for span in runtime.timeline.spans} <= {f"executor {n}" for n in range(executors)}
    assert sorted(start.operator for start in runtime.starts) == list(range(len(operators_of(graph))))


def test_random_operators_on_several_threads_keep_their_streams() -> None:
    torch.manual_seed(0)
    model = Noisy()
    batch = torch.randn(8, 4), torch.randint(2, (8,))
    graph = bow.capture(model, batch, torch.nn.functional.cross_entropy)
    scheduler = ListScheduler(dependencies_of(operators_of(graph)), executors=3)
    before = torch.get_rng_state()
    with ScheduledThreads(graph, scheduler, [()] * 3) as runtime:
        for seed in range(20):
            assert_same(runtime.run(*state(model), batch, seed=seed), graph.run(*state(model), batch, seed=seed))
    assert torch.equal(torch.get_rng_state(), before)


def test_decisions_of_a_co_running_step_can_be_carried_out_by_native_executors() -> None:
    model, graph = captured("lstm")
    operators = operators_of(graph)
    times = [{1: 10 + index % 7, 2: 6 + index % 5} for index in range(len(operators))]
    kinds = [op.kind for op in operators]
    scheduler = CoRunScheduler(dependencies_of(operators), times, kinds, cores=2, strategy=3)
    batch = PAPER_MODELS["lstm"].batch()
    with ScheduledThreads(graph, scheduler, [()] * 2) as runtime:
        expected = runtime.run(*state(model), batch, seed=3)
    order = held_by_core(runtime.starts, 2)
    with LocalRuntime(graph, OrderedSchedule((1, 1), order=order), use_native=True) as native:
        assert_same(native.run(*state(model), batch, seed=3), expected)


def test_an_operator_that_fails_is_named_and_the_threads_live_on() -> None:
    model, graph = captured("transformer")
    scheduler = ListScheduler(dependencies_of(operators_of(graph)), executors=2)
    inputs, targets = PAPER_MODELS["transformer"].batch()
    with ScheduledThreads(graph, scheduler, [()] * 2) as runtime:
        with pytest.raises(GraphError, match="nll_loss"):
            runtime.run(*state(model), (inputs, torch.full_like(targets, 99)))
        made = runtime.run(*state(model), (inputs, targets))
        assert_same(made, graph.run(*state(model), (inputs, targets), seed=0))


def test_threads_end_with_the_runtime() -> None:
    _, graph = captured("transformer")
    before = threading.active_count()
    runtime = ScheduledThreads(graph, ListScheduler(dependencies_of(operators_of(graph)), 2), [()] * 2)
    assert threading.active_count() == before + 2
    runtime.close()
    assert threading.active_count() == before


def test_no_executors_are_refused() -> None:
    _, graph = captured("transformer")
    with pytest.raises(SettingError, match="executors need cores, got none"):
        ScheduledThreads(graph, ListScheduler(dependencies_of(operators_of(graph)), 1), [])
