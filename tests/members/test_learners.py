"""Members of several learners: each becomes what `bow.train` makes of its settings, however it gets there."""

import functools
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bow
from bow.errors import SettingError
from bow.members.trainings import TrainingsLoop
from bow.observe import read_records
from bow.training.replicas import DEFAULT_OPTIMIZER
from bow.training.run import TrainingLoop
from tests.forked import FORKED
from tests.members.test_equality import (
    DATA,
    FLAT,
    IMAGES,
    LABELS,
    Listed,
    Normed,
    alone,
    assert_alike,
    assert_same,
    mlp,
    swept,
)
from tests.members.test_going_on import by_hand

VARIANTS = [bow.Variant(seed=0), bow.Variant(seed=1, settings={"lr": 0.02})]
KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
from tests.members.test_learners import halved
from bow.members.trainings import TrainingsLoop
epochs, before = 0, TrainingsLoop._epoch_ended
def counted(self, progress, run):
    global epochs
    epochs += 1
    if epochs == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return before(self, progress, run)
TrainingsLoop._epoch_ended = counted
halved(sys.argv[1], resume="auto", checkpoint_every=2)
"""


def halved(path: Any, **run: Any) -> Any:
    rule = bow.Halving("accuracy", reduction=2)
    return by_hand(path, rule, seeds=3, at_once="auto", learners=2, **{"checkpoint_every": "auto", **run})


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("eager", "normed"),
        ("graph", "mlp"),
        ("graph", "normed"),
        pytest.param("fused", "mlp", marks=pytest.mark.nightly),
    ],
)
def test_members_of_several_learners_are_trainings_of_their_own(engine: Any, kind: str, tmp_path: Path) -> None:
    model, data = {"mlp": (mlp, DATA), "normed": (Normed, (IMAGES, LABELS))}[kind]
    result = swept(tmp_path / "sweep", model, data, VARIANTS, engine=engine, learners=2)
    assert (result.engine, result.at_once) == (engine, 1)
    for number, member in enumerate(result.members):
        path = tmp_path / str(number)
        assert_same(member, alone(path, model, data, member.variant, engine, learners=2, threads=None))
        start = read_records(member.run_dir / "metrics.jsonl")[0]
        assert (start["learners"], start["settings"]) == (2, member.variant.values)
    assert result.report_path is not None


@pytest.mark.usefixtures("_uncompiled")
def test_members_in_one_region_are_trainings_of_their_own(tmp_path: Path) -> None:
    test_members_of_several_learners_are_trainings_of_their_own("fused", "mlp", tmp_path)


def test_their_batch_norm_statistics_are_recalibrated(tmp_path: Path) -> None:
    data = IMAGES, LABELS
    given: dict[str, Any] = {"learners": 2, "validation": bow.Validation(data, buffers="recalibrate")}
    result = swept(tmp_path / "sweep", Normed, data, VARIANTS[:1], engine="eager", **given)
    assert_same(result[0], alone(tmp_path / "alone", Normed, data, VARIANTS[0], "eager", threads=None, **given))


def test_their_folds_schedulers_and_rules_are_their_own(tmp_path: Path) -> None:
    warm = bow.PerRound(functools.partial(torch.optim.lr_scheduler.LinearLR, total_iters=12))
    some, others = torch.arange(100), torch.arange(100, 150)
    variants = [
        bow.Variant(name="a", train_on=some, validate_on=others, batch_size=8),
        bow.Variant(name="b", scheduler=warm, settings={"lr": 0.5}),
    ]
    stop = bow.EarlyStopping("accuracy", patience=1)
    given = {"stop": stop, "epochs": 9, "learners": 2}
    result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="eager", **given)
    first = {"data": (FLAT[some], LABELS[some]), "validation": (FLAT[others], LABELS[others])}
    second = {"data": DATA, "scheduler": warm}
    for member, own in zip(result.members, (first, second), strict=True):
        other = alone(tmp_path / member.name, mlp, variant=member.variant, engine="eager", threads=None, **given, **own)
        assert member.stopped == other.stopped
        assert_same(member, other)
    assert "patience" in {member.stopped for member in result.members}


def test_those_that_go_on_behind_a_rung_went_through_it_as_if_there_were_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, before = [], TrainingLoop._count_round
    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoop, "_count_round", lambda *given: rounds.append(1) or before(*given))
        result = halved(tmp_path / "sweep")
    assert len(rounds) == sum(member.history[-1]["round"] for member in result.members)  # none was run twice
    assert sorted(member.epochs for member in result.members) == [1, 1, 1, 2, 4, 4]
    for member in result.members:
        given = {"epochs": 4, "learners": 2, "threads": None}
        variant = bow.Variant(seed=member.variant.seed, settings=member.variant.settings)
        other = alone(tmp_path / member.name, mlp, DATA, variant, "graph", optimizer=DEFAULT_OPTIMIZER, **given)
        if member.stopped is None:
            assert_same(member, other)
        for mine, its in zip(member.history, other.history, strict=False):
            assert [mine[name] for name in ("train_loss", "loss")] == [its[name] for name in ("train_loss", "loss")]
        assert not (member.run_dir / "checkpoints").exists()


@pytest.mark.nightly
def test_kills_change_nothing(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    script = KILLED.format(paths=[str(tests), str(tests.parent)])
    for at in (3, 6):
        ended = subprocess.run([*FORKED, "-c", script, str(tmp_path / "killed"), str(at)], check=False)
        assert ended.returncode == -signal.SIGKILL
    assert_alike(halved(tmp_path / "killed", resume="auto", checkpoint_every=2), halved(tmp_path / "whole"))


def test_ctrl_c_within_an_epoch_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter(range(1000))

    class Interrupting(torch.nn.Linear):
        def forward(self, inputs: Any) -> Any:
            if next(seen) == 30:  # in the third epoch of the first
                os.kill(os.getpid(), signal.SIGINT)
            return super().forward(inputs)

    given: dict[str, Any] = {"learners": 2, "engine": "eager", "epochs": 5, "validation": DATA}
    given |= {"variants": VARIANTS, "optimizer": functools.partial(torch.optim.SGD, lr=0.1)}
    run = bow.Run(tmp_path / "sweep", progress=False, on_interrupt="return", resume="auto")
    make, data, loss = lambda: Interrupting(6, 3), DATA, F.cross_entropy
    results = [bow.sweep(make, data, loss, run=run, **given) for _ in range(2)]
    assert [each.interrupted_by for each in results] == [signal.SIGINT, None]
    assert "interrupted" in {member.stopped for member in results[0].members}
    assert not any(member.stopped for member in results[1].members)
    monkeypatch.setattr(Interrupting, "forward", torch.nn.Linear.forward)
    expected = bow.sweep(make, data, loss, run=bow.Run(tmp_path / "whole", progress=False), **given)
    assert_alike(results[1], expected)


def test_ctrl_c_before_the_first_round_ends_behind_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = TrainingsLoop._config_of

    def interrupted(self: Any, progress: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return before(self, progress)

    given: dict[str, Any] = {"learners": 2, "engine": "eager", "epochs": 3, "validation": DATA}
    run = bow.Run(tmp_path / "sweep", progress=False, on_interrupt="return", resume="auto")
    with monkeypatch.context() as patched:
        patched.setattr(TrainingsLoop, "_config_of", interrupted)
        first = bow.sweep(mlp, DATA, F.cross_entropy, variants=VARIANTS, run=run, **given)
    assert [member.epochs for member in first.members] == [1, 0]
    result = bow.sweep(mlp, DATA, F.cross_entropy, variants=VARIANTS, run=run, **given)
    run = bow.Run(tmp_path / "whole", progress=False)
    assert_alike(result, bow.sweep(mlp, DATA, F.cross_entropy, variants=VARIANTS, run=run, **given))


@pytest.mark.filterwarnings("ignore")
def test_one_that_diverges_ends_alone(tmp_path: Path) -> None:
    variants = bow.grid(seed=[0], lr=[1e38, 0.05])
    result = swept(tmp_path / "sweep", mlp, DATA, variants, engine="eager", learners=2)
    assert [member.stopped for member in result.members] == ["diverged", None]


def test_a_search_proposes_them_too(tmp_path: Path) -> None:
    search = Listed(*(bow.Variant(settings={"lr": lr}) for lr in (0.1, 0.05)))
    result = swept(tmp_path / "sweep", mlp, DATA, search, engine="eager", learners=2)
    assert result.members == search.told
    assert len(search.told) == 2


@pytest.mark.parametrize("settings", [{"at_once": 2}, {"batches": "shared"}, {"learners": 0}, {"learners": "auto"}])
def test_what_they_cannot_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="learners"):
        swept(tmp_path / "sweep", mlp, DATA, VARIANTS, **({"learners": 2} | settings))


def test_a_sweep_whose_first_training_fails_at_once_leaves_no_directory(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        raise OSError("the picture is damaged")

    run = bow.Run(tmp_path / "s", progress=False)
    with pytest.raises(OSError, match="the picture is damaged"):
        bow.sweep(mlp, DATA, step=step, variants=bow.grid(seed=range(2)), learners=2, engine="eager", run=run)
    assert not (tmp_path / "s").exists()
