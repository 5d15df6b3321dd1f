"""Members of other shapes train side by side: several cohorts, one queue."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.members.cohort import Cohort
from tests.members.test_equality import DATA, Listed, alone, assert_alike, assert_alone, assert_same, interrupted, swept

SHAPES = [bow.Variant(seed=n, model={"width": 4 + n}) for n in range(4)]
SHAPES += [bow.Variant(seed=n, batch_size=2**n) for n in range(3, 7)]


def wide(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 3))


trained: dict[tuple[str, str], Any] = {}
"""Members of each engine, alone."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("at_once", [2, 3, "auto"])
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_members_of_other_shapes_equal_those_alone(engine: str, at_once: Any, tmp_path: Path) -> None:
    result = swept(tmp_path / "sweep", wide, DATA, SHAPES[::-1], engine=engine, at_once=at_once)
    assert result.at_once == (8 if at_once == "auto" else at_once)
    for member in result:
        key = engine, str(member.variant)
        if key not in trained:
            trained[key] = alone(tmp_path / member.name, wide, DATA, member.variant, engine)
        assert_same(member, trained[key])


met: set[int] = set()
inside: list[Tensor] = []
change = threading.Condition()


@torch.library.custom_op("bow_tests::meet", mutates_args=())
def meet(x: Tensor) -> Tensor:
    """Wait a moment for somebody else who is here with a tensor of another width."""
    with change:
        inside.append(x)
        change.notify_all()
        patience_s = 0.02 if len(met) < 2 else 0.0
        if change.wait_for(lambda: len({len(each[0]) for each in inside}) > 1, patience_s):
            met.add(threading.get_ident())
        inside[:] = [each for each in inside if each is not x]
    return x.clone()


@meet.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


torch.library.register_autograd("bow_tests::meet", lambda ctx, gradient: gradient)


class Meeting(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(meet(self.first(x)))
        return y


@pytest.mark.skipif(len(bow.devices.available_cores()) < 2, reason="needs two cores")
def test_two_cohorts_are_at_work_at_the_same_time(tmp_path: Path) -> None:
    met.clear()
    variants = [bow.Variant(model={"width": width}) for width in (4, 5)]
    result = swept(tmp_path / "sweep", Meeting, DATA, variants, engine="graph", epochs=3)
    assert result.engine == "graph"
    assert len(met) > 1
    assert_alone(result, tmp_path, Meeting, "graph", epochs=3)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each cohort."""
    rows: list[int] = []
    before = Cohort.__init__

    def noted(self: Any, *given: Any) -> None:
        before(self, *given)
        rows.append(len(self.rows))

    monkeypatch.setattr(Cohort, "__init__", noted)
    return rows


def test_a_search_has_as_many_rows_as_train(opened: list[int], tmp_path: Path) -> None:
    variants = [bow.Variant(seed=n, model={"width": 4 + n % 4}) for n in range(12)]
    result = swept(tmp_path / "sweep", wide, DATA, Listed(*variants), engine="graph", at_once=8)
    assert opened == [2, 2, 2, 2]
    assert result.at_once == 8
    assert_alone(result.members[::5], tmp_path, wide, "graph")


def test_rows_that_one_kind_has_no_more_use_for_are_given_to_others(opened: list[int], tmp_path: Path) -> None:
    variants = [bow.Variant(seed=n) for n in range(4)] + [bow.Variant(seed=n, model={"width": 5}) for n in range(3)]
    result = swept(tmp_path / "sweep", wide, DATA, variants, engine="graph", at_once=3)
    assert opened == [3, 2, 1]  # behind the fourth member, two of the other width; behind that, the third
    assert result.at_once == 3


@pytest.mark.parametrize("rule", [None, bow.Halving(reduction=2)], ids=["all", "halving"])
def test_an_interruption_changes_nothing(rule: Any, tmp_path: Path) -> None:
    def train(path: Path, **run: Any) -> bow.members.Sweep:
        return bow.sweep(
            wide,
            DATA,
            nn.functional.cross_entropy,
            variants=SHAPES[2:6],
            epochs=4,
            at_once=3,
            engine="graph",
            validation=DATA,
            stop=rule,
            run=bow.Run(path, progress=False, checkpoint_every=7, **run),
        )

    with interrupted(5, 9):
        for _ in range(2):
            result = train(tmp_path / "sweep", resume="auto", on_interrupt="return")
            assert result.interrupted_by == signal.SIGINT
    assert_alike(train(tmp_path / "sweep", resume="auto"), train(tmp_path / "whole"))


def test_the_engine_and_the_threads_of_a_member_are_in_its_record(tmp_path: Path) -> None:
    result = swept(tmp_path / "sweep", wide, DATA, SHAPES[3:5], engine="graph")
    for member in result:
        start = json.loads((member.run_dir / "metrics.jsonl").read_text().splitlines()[0])
        assert (start["engine"], start["threads"]) == ("graph", 1)
