"""A search proposes members as rows become free, and is told of each that has ended."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bow
from bow.errors import BowError
from bow.members import Member
from tests.members.test_equality import (
    DATA,
    Counted,
    Listed,
    Noised,
    alone,
    assert_alone,
    assert_same,
    interrupted,
    mlp,
    swept,
)

VARIANTS = [bow.Variant(seed=seed, settings={"lr": 0.05 / (seed + 1)}) for seed in range(5)]


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_proposed_members_become_what_they_become_alone(engine: str, tmp_path: Path) -> None:
    search = Listed(*VARIANTS)
    result = swept(tmp_path / "sweep", mlp, DATA, search, engine=engine, at_once=2)
    assert result.at_once == 2
    assert result.members == search.told
    assert result.members[1].name == "seed=1 lr=0.025"
    for member, variant in zip(result.members, VARIANTS, strict=True):
        assert_same(member, alone(tmp_path / member.name, mlp, DATA, variant, engine))


def test_no_more_is_asked_for_than_there_are_rows(tmp_path: Path) -> None:
    search = Listed(*[bow.Variant(name=str(n)) for n in range(3)])
    swept(tmp_path / "sweep", mlp, DATA, search, engine="eager", at_once=1)
    assert search.heard == ["ask", "tell 0", "ask", "tell 1", "ask", "tell 2", "ask"]


def test_members_of_other_shapes_wait_for_rows(tmp_path: Path) -> None:
    def wide(width: int = 4) -> nn.Module:
        return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))

    search = Listed(*[bow.Variant(seed=n, model={"width": 4 + n % 2}) for n in range(6)])
    result = swept(tmp_path / "sweep", wide, DATA, search, engine="eager", at_once=2)
    assert len(search.told) == 6
    assert_alone(result, tmp_path, wide, "eager")


def test_a_search_works_with_asynchronous_halving(tmp_path: Path) -> None:
    search = Listed(*[bow.Variant(seed=n) for n in range(9)])
    rule = bow.Halving(reduction=3, asynchronous=True)
    result = swept(tmp_path / "sweep", mlp, DATA, search, engine="eager", at_once=2, epochs=9, stop=rule)
    assert len(search.told) == 9
    assert max(member.epochs for member in result) > 1
    assert sum(member.stopped == "halving" for member in result) >= 5


def test_alike_proposals_get_names_of_their_own(tmp_path: Path) -> None:
    search = Listed(bow.Variant(), bow.Variant())
    result = swept(tmp_path / "sweep", mlp, DATA, search, engine="eager", epochs=1)
    assert [member.name for member in result] == ["seed=0", "seed=0 #1"]


def test_a_rule_of_the_users_ends_members(tmp_path: Path) -> None:
    class Second:
        def why_over(self, member: Member) -> str | None:
            return "second epoch" if member.epochs >= 2 and member.variant.seed else None

    result = swept(tmp_path / "s", mlp, DATA, VARIANTS[:2], engine="eager", epochs=4, stop=Second())
    assert [(member.epochs, member.stopped) for member in result] == [(4, None), (2, "second epoch")]


def test_an_interrupted_search_is_told(tmp_path: Path) -> None:
    search = Listed(*VARIANTS)
    with interrupted(25), pytest.raises(KeyboardInterrupt):
        swept(tmp_path / "sweep", mlp, DATA, search, engine="eager", at_once=2)
    assert [member.stopped for member in search.told] == [None, None, "interrupted", "interrupted"]
    assert not list((tmp_path / "sweep").rglob("*.pt"))


LEAKING = [bow.Variant(seed=seed, train_on=range(40), validate_on=range(30, 50)) for seed in range(2)]
GENERATOR, LEAK = "generator of its own", "evaluated on 10 samples that it is trained on"
RANDOM = "samples of the data set Noised are changed at random, also where members are evaluated on them"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (functools.partial(bow.sweep, data=Noised(own=True), variants=Listed(*VARIANTS[:3])), [GENERATOR]),
        (functools.partial(bow.sweep, data=DATA, variants=Listed(*LEAKING)), [LEAK, LEAK]),
        (functools.partial(bow.cross_validate, data=Noised(own=True), folds=2), [RANDOM, GENERATOR]),
        (functools.partial(bow.cross_validate, data=Noised(own=False), folds=2), [RANDOM]),
        (functools.partial(bow.cross_validate, data=Counted(), folds=2), []),
    ],
    ids=["search", "leaks", "folds", "folds that are seeded", "folds that are not random"],
)
def test_warnings_of_data_point_at_the_call(run: Callable[..., Any], said: list[str], tmp_path: Path) -> None:
    given = {"loss": nn.functional.cross_entropy, "engine": "eager", "steps": 1, "at_once": 1}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(mlp, **given, run=bow.Run(tmp_path / "sweep", progress=False))
    assert [each.filename for each in caught] == [__file__] * len(said)
    assert all(text in str(each.message) for text, each in zip(said, caught, strict=True))


@pytest.mark.parametrize("learners", [1, 2])
def test_warnings_of_a_member_s_training_point_at_the_call(learners: int, tmp_path: Path) -> None:
    cosine = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=1)
    given: dict[str, Any] = {"variants": [bow.Variant()], "learners": learners, "epochs": 4, "engine": "eager"}
    with pytest.warns(UserWarning, match="the rate rises again") as caught:
        bow.sweep(mlp, DATA, nn.functional.cross_entropy, scheduler=cosine, run=tmp_path / "sweep", **given)
    assert (
        len({(each.filename, each.lineno) for each in caught} | {(__file__, caught[0].lineno)}) == 1
    )  # the same place


@pytest.mark.parametrize(
    ("proposed", "settings", "said"),
    [
        ([], {}, "proposed no member"),
        ([3], {}, "must propose bow.Variant"),
        ([bow.Variant(name="a"), bow.Variant(name="a")], {}, "two variants named 'a'"),
        ([bow.Variant(), bow.Variant(settings={"learning_rate": 1})], {}, "optimizer cannot be made"),
        ([bow.Variant()], {"resume": "auto"}, "leave out resume"),
        ([bow.Variant()], {"checkpoint_every": 3}, "checkpoint_every"),
    ],
)
def test_wrong_use_gets_a_sentence(proposed: list[Any], settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    run = bow.Run(tmp_path / "sweep", progress=False, **settings)
    with pytest.raises(BowError, match=said):
        bow.sweep(mlp, DATA, nn.functional.cross_entropy, variants=Listed(*proposed), engine="eager", run=run)
