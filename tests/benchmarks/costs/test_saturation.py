"""The made-up machine: what its pieces do, and how close it comes to what the papers measured."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.costs.evidence import SATURATION, TABLE_II, best_threads, compare, saturates_at, standalone
from benchmarks.costs.machine import Saturation, Scaling, Threads, Work, placements, sort_of

MACHINE = Saturation()
KINDS = (
    "Conv2D",
    "Conv2DBackpropInput",
    "Conv2DBackpropFilter",
    "aten.mm.default",
    "aten.sum.default",
    "aten.mul.Tensor",
)

works = st.builds(Work, st.sampled_from(KINDS), st.floats(0.0, 1e11), st.floats(4.0, 1e9))


def time_s(machine: Saturation, work: Work, case: Threads) -> float:
    return machine.time_s(work.flops, work.bytes_moved, work.kind, case)


@given(works)
def test_time_is_convex_in_the_threads_of_a_lane(work: Work) -> None:
    for lane in placements(MACHINE.cores):
        times = [time_s(MACHINE, work, case) for case in lane]
        slopes = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(later >= earlier - 1e-9 * times[0] for earlier, later in itertools.pairwise(slopes))


@given(works, st.integers(1, 33))
def test_without_crowding_threads_never_cost(work: Work, threads: int) -> None:
    scalings = {sort: replace(scaling, crowding_s=0.0) for sort, scaling in MACHINE.scalings.items()}
    machine = replace(MACHINE, scalings=scalings)
    assert time_s(machine, work, Threads(threads + 1)) <= time_s(machine, work, Threads(threads)) * (1 + 1e-12)


@given(works, st.integers(1, 34), st.floats(1.0, 10.0))
def test_more_work_takes_longer(work: Work, threads: int, times: float) -> None:
    # Exactly at the grain, more work can mean more threads and so the same time: to rounding.
    larger = Work(work.kind, times * work.flops, times * work.bytes_moved)
    assert time_s(MACHINE, larger, Threads(threads)) >= time_s(MACHINE, work, Threads(threads)) * (1 - 1e-9)


def test_threads_beyond_the_grain_bring_nothing() -> None:
    scaling = Scaling(1e9, crowding_s=0.0, grain_s=1.0, serial=0.0)
    machine = Saturation(launch_s=0.0, scalings=dict.fromkeys(MACHINE.scalings, scaling))
    times = [machine.time_s(4e9, 0.0, "aten.mm.default", Threads(threads)) for threads in (1, 2, 4, 8)]
    assert times == pytest.approx([4.0, 2.0, 1.0, 1.0])


def test_every_part_of_the_formula_is_there() -> None:
    scaling = Scaling(1e9, crowding_s=0.1, serial=0.5, serial_s=7.0, traffic=0.5)
    machine = Saturation(
        launch_s=100.0,
        thread_bytes_per_s=1e9,
        bytes_per_s=2e9,
        copy_bytes_per_s=1e8,
        scalings=dict.fromkeys(MACHINE.scalings, scaling),
    )
    # Arithmetic 8 s, memory 4 s on one thread; 40 s copied; four threads, of which two use all of the bandwidth.
    alone = 100.0 + 7.0 + 40.0 + 0.5 * 12.0 + 0.1 * 4 * 3
    assert machine.time_s(8e9, 4e9, "mm", Threads(4)) == pytest.approx(alone + 0.5 * (8 / 4 + 4 / 2))
    assert machine.time_s(8e9, 4e9, "mm", Threads(4, shared=True)) == pytest.approx(alone + 0.5 * (8 / 4 + 0.5 * 4 / 2))


def test_sharing_a_cache_helps_where_neighbours_use_the_same_data_and_hurts_elsewhere() -> None:
    work = {"flops": 1e6, "bytes_moved": 1e9}
    for kind, helps in (("aten.convolution.default", True), ("aten.mm.default", True), ("aten.mul.Tensor", False)):
        alone, sharing = (MACHINE.time_s(**work, kind=kind, case=Threads(8, shared=shared)) for shared in (False, True))
        assert (sharing < alone) is helps


def test_noise_is_a_factor_that_the_seed_determines() -> None:
    noisy = Saturation(noise=0.1, seed=3)
    cases = [Threads(threads) for threads in range(1, 35)]
    factors = [
        noisy.time_s(1e9, 1e6, "aten.mm.default", case, run) / MACHINE.time_s(1e9, 1e6, "aten.mm.default", case)
        for case in cases
        for run in range(30)
    ]
    assert len(set(factors)) == len(factors)
    assert statistics.fmean(map(math.log, factors)) == pytest.approx(0.0, abs=0.015)
    assert statistics.stdev(map(math.log, factors)) == pytest.approx(0.1, rel=0.1)
    again = Saturation(noise=0.1, seed=3).time_s(1e9, 1e6, "aten.mm.default", cases[-1], 29)
    assert again / MACHINE.time_s(1e9, 1e6, "aten.mm.default", cases[-1]) == factors[-1]
    other = Saturation(noise=0.1, seed=4).time_s(1e9, 1e6, "aten.mm.default", cases[0], 0)
    assert other != noisy.time_s(1e9, 1e6, "aten.mm.default", cases[0], 0)


@pytest.mark.parametrize(
    ("kind", "sort"),
    [
        ("aten.convolution.default", "convolution"),
        ("Conv2D", "convolution"),
        ("aten.convolution_backward.default input", "input gradient"),
        ("aten.convolution_backward.default weight", "weight gradient"),
        ("Conv2DBackpropInput", "input gradient"),
        ("Conv2DBackpropFilter", "weight gradient"),
        ("aten.bmm.default", "product"),
        ("aten.sum.dim_IntList", "reduction"),
        ("aten.native_batch_norm_backward.default", "reduction"),
        ("aten._log_softmax.default", "reduction"),
        ("aten.max_pool2d_with_indices.default", "reduction"),
        ("aten.threshold_backward.default", "elementwise"),
        ("update.SGD", "elementwise"),
    ],
)
def test_operators_are_sorted_by_their_names(kind: str, sort: str) -> None:
    assert sort_of(kind) == sort


@pytest.mark.parametrize("name", SATURATION)
def test_small_operators_saturate_where_graphi_saw_it(name: str) -> None:
    work, threads = SATURATION[name]
    assert saturates_at(MACHINE, work) == threads


def test_table_2_is_met_as_closely_as_is_stated() -> None:
    found = [each for each in compare(MACHINE) if each.source == "Liu, Table II"]
    missed = {unit: [abs(each.miss) for each in found if each.unit == unit] for unit in ("threads", "%", "ms")}
    assert [len(misses) for misses in missed.values()] == [9, 9, 9]
    assert max(missed["threads"]) == pytest.approx(0.16, abs=0.01)  # Conv2D, 38 instead of 45
    assert sorted(missed["threads"])[-2] < 0.07
    assert max(missed["%"]) < 5.0  # percentage points
    assert max(missed["ms"]) < 0.08


def test_larger_inputs_want_more_threads_and_filters_fewer_as_in_table_2() -> None:
    machine = standalone(MACHINE)
    best = {(row.kind, row.size, row.channels): best_threads(machine, row.work) for row in TABLE_II}
    for kind in ("Conv2DBackpropFilter", "Conv2DBackpropInput", "Conv2D"):
        assert best[kind, 8, 384] < best[kind, 17, 384] <= best[kind, 8, 2048]
    assert best["Conv2DBackpropFilter", 8, 384] < best["Conv2DBackpropInput", 8, 384] < best["Conv2D", 8, 384]


def test_what_is_said_of_many_operators_at_once_and_of_half_of_the_cores_is_compared() -> None:
    found = {(each.source, each.unit): each for each in compare(MACHINE)}
    assert found["Tang, Figure 3", "x"].miss == 0.0
    halves = [each for each in compare(MACHINE) if each.source == "Liu, Table III"]
    assert [each.paper for each in halves] == [25.0, 17.0]
    assert halves[0].miss == pytest.approx(3.6, abs=0.1)
    assert halves[1].miss == pytest.approx(24.0, abs=0.1)  # far off, and stated
