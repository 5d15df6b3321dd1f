"""`python -m benchmarks micro`: the program in its small form, its operators, and what is made of made-up times."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import micro
from benchmarks.arguments import parse
from benchmarks.micro import (
    HALF_EACH,
    ONE_AFTER_ANOTHER,
    PARTS,
    SAME_CORES,
    Settings,
    executors_of,
    pair_of,
    run,
    scaling,
    ways,
)
from benchmarks.micro_operators import (
    BY_FILTER,
    BY_INPUT,
    FORWARD,
    MOST_COPIES,
    Call,
    Probe,
    Ran,
    Seat,
    convolution,
    convolutions,
    copies,
    gemm,
    product,
    sample,
)
from benchmarks.micro_report import FIGURE_1, FIGURE_2, TABLE_III
from bow.devices import available_cores, core_sets
from bow.errors import SettingError
from bow.runtime import is_available
from tests.machines import manycore, server

CORES = len(available_cores())
NATIVE = pytest.mark.skipif(not is_available(), reason="needs the native runtime")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What the program in its small form writes."""
    out = tmp_path_factory.mktemp("micro")
    before = torch.get_num_threads()
    assert run(parse(Settings, ["quick=true", f"out={out}"]), "python -m benchmarks micro quick=true") == 0
    assert torch.get_num_threads() == before
    return json.loads((out / "micro.json").read_text()), (out / "micro.md").read_text()


def test_every_part_is_done_and_shown(small: tuple[dict[str, Any], str]) -> None:
    values, page = small
    assert all(part in values for part in PARTS)
    assert page.count("\n## ") == 3
    assert "68 threads 41.1 s, 1, 68+68 threads 39.9 s, 1.03, 34+34 threads 29.8 s, 1.38" in page
    assert "| Conv2DBackpropFilter | (1,8,8,384) |" in page
    assert "26 threads, 1.17" in page


def test_operators_are_timed_with_every_number_of_threads(small: tuple[dict[str, Any], str]) -> None:
    found = small[0]["threads"]
    assert len(found) == 2 + 9
    for each in found:
        assert list(each["us"]) == [str(n) for n in range(1, CORES + 1)]
        best = min(each["us"], key=lambda n: each["us"][n]["median"])
        assert each["us"][str(each["best"])]["median"] == each["us"][best]["median"]
        assert each["gflop_per_s"] >= 0


def test_executors_are_pinned_where_there_are_cores_for_all(small: tuple[dict[str, Any], str]) -> None:
    for each in small[0]["pinned"]:
        for pair in each["pairs"]:
            assert ("pinned" in pair) == (pair["executors"] * pair["threads"] <= CORES)
            assert pair["free"]["median"] > 0
        crowded = each["pairs"][-1]
        assert (crowded["executors"], crowded["threads"]) == (CORES, CORES)


def test_two_operators_run_in_every_way_that_there_is(small: tuple[dict[str, Any], str]) -> None:
    found = small[0]["together"]
    assert [each["size"] for each in found["sizes"]] == ["(1,8,8,384)", "(1,17,17,384)", "(1,8,8,2048)"]
    for each in found["sizes"]:
        assert each["ways"][ONE_AFTER_ANOTHER]["speed_up"]["median"] == 1.0
        assert len(each["ways"]) == (3 if found["cores"] > 1 else 2)
        assert all((of["longer"] is None) == (way == ONE_AFTER_ANOTHER) for way, of in each["ways"].items())


def result_of(call: Call) -> torch.Tensor:
    """What the operator computes."""
    packet = getattr(torch.ops.aten, call.name.removeprefix("aten::"))
    made = getattr(packet, call.overload or "default")(*call.arguments)
    used, count = call.makes
    if count == 1:
        assert isinstance(made, torch.Tensor)
        return made
    assert [each is not None for each in made] == [number == used for number in range(count)]
    result: torch.Tensor = made[used]
    return result


def test_products_are_those_of_the_paper() -> None:
    matrix, elements = gemm(512), product(512)
    torch.testing.assert_close(result_of(matrix), matrix.arguments[0] @ matrix.arguments[1])
    torch.testing.assert_close(result_of(elements), elements.arguments[0] * elements.arguments[1])
    assert (matrix.title, elements.title) == ("GEMM [64, 512] x [512, 512]", "element-wise product 32,768")
    assert elements.flops == 32_768


def test_backward_passes_are_the_gradients_of_the_forward_pass() -> None:
    by_filter, by_input = convolution(BY_FILTER, 2, 5, 3), convolution(BY_INPUT, 2, 5, 3)
    for call, argument in ((by_filter, 2), (by_input, 1)):
        gradient, images, filters, *_ = call.arguments
        inputs = [images.requires_grad_(), filters.requires_grad_()]
        expected = torch.autograd.grad(conv2d(*inputs), inputs, gradient)
        torch.testing.assert_close(result_of(call).detach(), expected[argument - 1])
    forward = convolution(FORWARD, 2, 5, 3)
    torch.testing.assert_close(result_of(forward), conv2d(*forward.arguments[:2]))


@pytest.mark.parametrize("make", [functools.partial(gemm, 32), *convolutions(samples=1)[::4]])
def test_operations_are_counted_as_torch_counts_them(make: Any) -> None:
    call = make()
    with FlopCounterMode(display=False) as counter:
        result_of(call)
    assert call.flops == counter.get_total_flops()


def test_there_are_the_nine_lines_of_table_ii() -> None:
    calls = [make() for make in convolutions(samples=1)]
    assert len({call.title for call in calls}) == 9
    assert {call.kind for call in calls} == {FORWARD, BY_FILTER, BY_INPUT}
    assert set(FIGURE_1) == {(call.kind, call.size.strip("()").partition(",")[2]) for call in calls}
    assert FIGURE_2 == {"GEMM": 8, "element-wise product": 16}
    assert [speed_up for _, _, speed_up in TABLE_III] == [
        pytest.approx(TABLE_III[0][1] / seconds, abs=0.005) for _, seconds, _ in TABLE_III
    ]


@NATIVE
def test_a_probe_runs_every_operator_of_every_executor() -> None:
    executors = min(CORES, 2)
    seats = [Seat(cores, 1) for cores in core_sets(executors, 1)]
    probe = Probe([[gemm(8)] * 3, [product(8)] * 2][:executors], seats)
    for _ in range(2):
        ran = probe.run()
        assert len(ran.busy_s) == executors
        assert all(0 < busy <= ran.makespan_s for busy in ran.busy_s)
    probe.close()
    assert probe.run().makespan_s > 0  # it starts again
    probe.close()


@NATIVE
def test_copies_fill_a_time() -> None:
    seat = Seat((), 1)
    assert copies(lambda: gemm(8), seat, stint_s=0.0) == 1
    assert copies(lambda: gemm(8), seat, stint_s=1e9) == MOST_COPIES
    assert 1 <= copies(lambda: gemm(64), seat, stint_s=0.001) <= MOST_COPIES


class Recorded:
    """A probe that takes so many seconds, the first time ten times as long."""

    def __init__(self, name: str, seconds: float, log: list[str]) -> None:
        self._name, self._seconds, self._log = name, seconds, log
        self._is_cold = True

    def run(self) -> Ran:
        self._log.append(self._name)
        seconds = self._seconds * (10 if self._is_cold else 1)
        self._is_cold = False
        return Ran(seconds, (seconds,))

    def close(self) -> None:
        self._is_cold = True


def test_probes_take_turns_and_a_cold_run_does_not_count() -> None:
    log: list[str] = []
    probes: Any = {name: Recorded(name, seconds, log) for name, seconds in (("a", 1.0), ("b", 2.0))}
    found = sample(probes, turns=2)
    assert {name: [run.makespan_s for run in own] for name, own in found.items()} == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert log == ["a", "a", "b", "b", "b", "b", "a", "a"]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Ran]]:
    """What probes measured, by name; operators are copied twice."""
    runs: dict[str, list[Ran]] = {}

    def sampled(probes: Mapping[str, object], turns: int) -> dict[str, list[Ran]]:
        return {name: runs[name] for name in probes}

    monkeypatch.setattr(micro, "sample", sampled)
    monkeypatch.setattr(micro, "copies", lambda *_: 2)
    monkeypatch.setattr(micro, "Probe", lambda lanes, seats: None)
    monkeypatch.setattr(micro, "core_sets", lambda executors, threads: [tuple(range(threads))] * executors)
    return runs


def ran(*makespans: float, executors: int = 1) -> list[Ran]:
    return [Ran(seconds, (seconds,) * executors) for seconds in makespans]


def test_the_best_number_of_threads_is_found_and_of_equal_ones_the_least(made_up: dict[str, list[Ran]]) -> None:
    made_up |= {"1": ran(4e-6, 8e-6), "2": ran(2e-6, 4e-6), "3": ran(2e-6, 4e-6), "4": ran(3e-6, 6e-6)}
    found = scaling(lambda: gemm(64), cores=4, settings=Settings())
    assert found["best"] == 2
    assert found["us"]["1"] == {"median": 3.0, "low": 2.5, "high": 3.5, "n": 2}  # of one of two copies
    assert found["all_over_best"]["median"] == 1.5
    assert found["gflop_per_s"] == pytest.approx(2 * 64**3 * 2 / 3e-6 / 1e9, abs=0.01)


def test_numbers_of_threads_are_ordered_as_numbers(made_up: dict[str, list[Ran]]) -> None:
    made_up |= {str(n): ran(1e-6 if n in (2, 10) else 2e-6) for n in range(1, 12)}
    assert scaling(lambda: gemm(64), cores=11, settings=Settings())["best"] == 2


def test_pinned_executors_are_held_against_free_ones(made_up: dict[str, list[Ran]]) -> None:
    for executors, threads in ((1, 1), (1, 2), (2, 1), (2, 2)):
        named = micro.shape(executors, threads)
        made_up[f"free, {named}"] = ran(4e-6, 8e-6, executors=executors)
        made_up[f"pinned, {named}"] = ran(2e-6, 4e-6, executors=executors)
    pairs = executors_of(lambda: product(64), 2, Settings())["pairs"]
    assert [(pair["executors"], pair["threads"]) for pair in pairs] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [pair.get("ratio", {}).get("median") for pair in pairs] == [2.0, 2.0, 2.0, None]
    one, _, two, _ = pairs
    assert two["free"]["median"] == pytest.approx(2 * one["free"]["median"], abs=0.002)
    rate = 2 * 64 * 64 / 1e9
    assert one["free"]["median"] == pytest.approx((rate / 4e-6 + rate / 8e-6) / 2, abs=0.001)


def test_two_operators_are_held_against_one_after_another(made_up: dict[str, list[Ran]]) -> None:
    made_up |= {
        ONE_AFTER_ANOTHER: ran(6e-6, 12e-6),
        HALF_EACH: [Ran(4e-6, (4e-6, 3e-6)), Ran(8e-6, (8e-6, 6e-6))],
        SAME_CORES: [Ran(6e-6, (6e-6, 6e-6)), Ran(12e-6, (12e-6, 12e-6))],
        "one": ran(4e-6, 8e-6),
        "other": ran(2e-6, 4e-6),
    }
    seats = ways(server(sockets=1, cores_per_socket=2, threads_per_core=1))
    found = pair_of(convolution(BY_FILTER, 1, 2, 3), convolution(BY_INPUT, 1, 2, 3), seats, Settings())["ways"]
    assert {way: of["threads"] for way, of in found.items()} == {
        ONE_AFTER_ANOTHER: "2",
        SAME_CORES: "2+2",
        HALF_EACH: "1+1",
    }
    assert found[HALF_EACH]["speed_up"]["median"] == 1.5
    assert [longer["median"] for longer in found[HALF_EACH]["longer"]] == [1.0, 1.5]
    assert [longer["median"] for longer in found[SAME_CORES]["longer"]] == [1.5, 3.0]
    assert found[HALF_EACH]["us"]["median"] == 3.0


def test_two_operators_share_cores_by_their_hardware_threads_where_there_are_some() -> None:
    many = ways(manycore())
    assert [len(seat.cores) for seat in many[SAME_CORES]] == [68, 68]
    assert not set(many[SAME_CORES][0].cores) & set(many[SAME_CORES][1].cores)
    assert [(len(seat.cores), seat.threads) for seat in many[HALF_EACH]] == [(34, 34), (34, 34)]
    assert not set(many[HALF_EACH][0].cores) & set(many[HALF_EACH][1].cores)
    plain = ways(server(sockets=1, cores_per_socket=3, threads_per_core=1))
    assert [seat.cores for seat in plain[SAME_CORES]] == [(0, 1, 2), (0, 1, 2)]
    assert [seat.cores for seat in plain[HALF_EACH]] == [(0,), (1,)]
    assert HALF_EACH not in ways(server(sockets=1, cores_per_socket=1, threads_per_core=2))


def test_a_part_can_be_left_out(tmp_path: Path) -> None:
    run(parse(Settings, ["quick=true", "parts=pinned", f"out={tmp_path}"]), "")
    values = json.loads((tmp_path / "micro.json").read_text())
    assert set(PARTS) & values.keys() == {"pinned"}
    assert (tmp_path / "micro.md").read_text().count("\n## ") == 1


def test_the_sizes_of_the_papers_are_the_default() -> None:
    assert 512 in Settings().hidden
    assert Settings().reduced() == Settings()
    assert math.isclose(gemm(512).flops, 2 * 64 * 512 * 512)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["parts="], "parts must not be empty"),
        (["parts=all"], "parts must be of threads, pinned, together"),
        (["hidden=0"], "hidden must be above 0, got 0"),
        (["stint_s=0"], "stint_s must be above 0, got 0"),
    ],
)
def test_settings_that_cannot_be_carried_out_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(Settings, words)
