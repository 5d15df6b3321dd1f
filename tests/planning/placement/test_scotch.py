"""Scotch: what it is told, what it makes of it, and what is said where it is missing."""

from __future__ import annotations

import shutil
import stat

import pytest

from benchmarks.placement_machine import k80_machine
from bow.errors import MissingDependencyError, RuntimeUnavailableError
from bow.planning.placement import baselines as scotch_module
from bow.planning.placement.baselines import (
    architecture,
    group_times_ns,
    loads,
    run_scotch,
    scotch,
    source_graph,
    speeds,
    traffic,
)
from tests.planning.placement.placed_steps import evaluator, every_operator, made_of

needs_scotch = pytest.mark.skipif(
    not any(map(shutil.which, scotch_module.GMAP)), reason="Scotch's programs are not installed"
)

TWO_CLUSTERS = {(0, 1): 50, (1, 2): 50, (0, 2): 50, (2, 3): 1, (3, 4): 50, (4, 5): 50, (3, 5): 50}


def two_chains():
    """Two chains of equal work, joined at the end only."""
    chains = [(f"{chain}{n}", "linear", ["batch" if not n else f"{chain}{n - 1}"]) for chain in "ab" for n in range(4)]
    return made_of(*chains, ("end", "x", ["a3", "b3"]), size=2**16, flops=1e11)


def test_a_graph_is_written_with_both_directions_of_each_edge():
    text = source_graph([5, 6, 7], {(0, 2): 9, (0, 1): 8})
    assert text.splitlines() == ["0", "3 4", "0 011", "5 2 8 1 9 2", "6 1 8 0", "7 1 9 0"]


@needs_scotch
def test_clusters_are_not_cut():
    target = source_graph([1, 1], {(0, 1): 1})
    found = run_scotch(source_graph([10] * 6, TWO_CLUSTERS), target)
    assert len(set(found[:3])) == len(set(found[3:])) == 1
    assert found[0] != found[3]


@needs_scotch
def test_loads_are_balanced_by_the_speeds_of_the_devices():
    chain = {(n, n + 1): 1 for n in range(39)}
    found = run_scotch(source_graph([10] * 40, chain), source_graph([1, 3], {(0, 1): 1}))
    assert 8 <= found.count(0) <= 12


@needs_scotch
def test_scotch_uses_the_processor_and_mincut_does_not():
    evaluate = evaluator(two_chains())
    assert 0 in scotch(evaluate)
    assert set(scotch(evaluate, evaluate.accelerators)) == {1, 2}


@needs_scotch
def test_scotch_gives_the_same_placement_again():
    assert scotch(evaluator(two_chains())) == scotch(evaluator(two_chains()))


def test_one_device_needs_no_program(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    evaluate = evaluator(two_chains(), topology=k80_machine(1))
    assert set(scotch(evaluate, evaluate.accelerators)) == {1}


def test_a_missing_program_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"scotch_gmap, which is not installed; apt-get install scotch"):
        scotch(evaluator(two_chains()))


def test_a_program_that_fails_is_reported_with_what_it_says(monkeypatch, tmp_path):
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho 'ERROR: no memory' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    with pytest.raises(RuntimeUnavailableError, match="no memory"):
        scotch(evaluator(two_chains()))


def test_architecture_has_longer_edges_where_transfers_take_longer():
    lines = architecture(k80_machine(2), [0, 1, 2], [0.2, 0.4, 0.4]).splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["200", "400", "400"]
    first, between_gpus = lines[3].split(), lines[4].split()
    assert int(first[2]) > int(between_gpus[4]) == scotch_module.DISTANCE


def test_loads_and_traffic_are_in_proportion_and_never_zero():
    graph = two_chains()
    evaluate = evaluator(graph, every_operator(graph))
    times = group_times_ns(evaluate)
    assert sum(speeds(times)) == pytest.approx(1.0)
    assert speeds(times)[0] < speeds(times)[1]
    of_groups = loads(times, (0, 1), 1000)
    assert max(of_groups) == 1000
    assert min(of_groups) >= 1
    assert set(traffic(evaluate, 100).values()) == {100}
    assert len(traffic(evaluate, 100)) == len(evaluate.groups.flows)
