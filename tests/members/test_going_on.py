"""A sweep that was killed or interrupted goes on where it was, and ends as if nothing had happened."""

import dataclasses
import functools
import json
import os
import random
import signal
import subprocess
import time
import types
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import bow
from bow.engines.graph import Graph
from bow.engines.graph_round import GraphRound
from bow.errors import CheckpointError, RunDirectoryError
from bow.members import Member
from bow.members.cohort import Cohort
from bow.members.group import MemberGroup
from bow.members.loop import SweepLoop
from bow.members.member import Progress
from bow.members.progress import SweepProgress
from bow.members.stopping import Rungs
from bow.members.trainings import TrainingsLoop
from bow.observe import read_records
from bow.training.checkpoint import save_checkpoint
from tests.forked import FORKED
from tests.members.test_equality import DATA, FLAT, LABELS, assert_alike, interrupted, mlp, swept
from tests.replicas.test_group import Calls
from tests.training.test_checkpoint import Table, halved

KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
from tests.members.test_going_on import RULES, by_hand
from bow.members.loop import SweepLoop
rounds, before = 0, SweepLoop._round
def counted(self, cohorts):
    global rounds
    rounds += 1
    if rounds == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    before(self, cohorts)
SweepLoop._round = counted
by_hand(sys.argv[1], RULES[sys.argv[3]], resume="auto")
"""


def by_hand(
    path: Any,
    rule: Any,
    seeds: int = 4,
    at_once: Any = 3,
    learners: int = 1,
    epochs: int = 4,
    engine: Any = "graph",
    **run: Any,
) -> Any:
    return bow.sweep(
        mlp,
        DATA,
        F.cross_entropy,
        variants=bow.grid(seed=range(seeds), lr=[0.05, 0.01]),
        epochs=epochs,
        learners=learners,
        at_once=at_once,
        engine=engine,
        validation=DATA,
        stop=rule,
        run=bow.Run(path, **{"checkpoint_every": 7, "progress": False, **run}),
    )


RULES = {"all": None, "halving": bow.Halving(reduction=2), "asha": bow.Halving(reduction=2, asynchronous=True)}


@pytest.mark.parametrize(
    "kind", [*(pytest.param(name, marks=pytest.mark.nightly) for name in ("all", "halving")), "asha"]
)
def test_kills_change_nothing(kind: str, tmp_path: Path) -> None:
    rule = RULES[kind]
    tests = Path(__file__).parents[1]
    script = KILLED.format(paths=[str(tests), str(tests.parent)])
    for at in (9, 12):
        ended = subprocess.run([*FORKED, "-c", script, str(tmp_path / "killed"), str(at), kind], check=False)
        assert ended.returncode == -signal.SIGKILL
    result = by_hand(tmp_path / "killed", rule, resume="auto")
    assert_alike(result, by_hand(tmp_path / "whole", rule))
    for member in result:
        assert (member.run_dir / "model.safetensors").exists()
        assert (member.run_dir / "metrics.jsonl").exists()


AT_RANDOM = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from tests.members.test_going_on import trained_for_long
trained_for_long(Path(sys.argv[1]), sys.argv[2], resume="auto")
"""


def trained_for_long(path: Path, engine: str, **run: Any) -> Any:
    return by_hand(path, bow.EarlyStopping(patience=25), epochs=60, engine=engine, **run)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_kills_at_random_moments_change_nothing(engine: str, tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    script = AT_RANDOM.format(paths=[str(tests), str(tests.parent)])
    expected, chance = trained_for_long(tmp_path / "whole", engine), random.Random(engine)
    killed = 0
    for _ in range(5):
        records = tmp_path / "sweep" / "metrics.jsonl"
        before = records.stat().st_size if records.exists() else 0
        process = subprocess.Popen([*FORKED, "-c", script, str(tmp_path / "sweep"), engine])
        while process.poll() is None and (records.stat().st_size if records.exists() else 0) == before:
            time.sleep(0.001)  # until it has begun
        time.sleep(chance.uniform(0, 0.4 * expected.seconds))
        process.kill()
        killed += process.wait() == -signal.SIGKILL
    assert killed >= 2
    assert_alike(trained_for_long(tmp_path / "sweep", engine, resume="auto"), expected)


def test_ctrl_c_keeps_what_was_trained(tmp_path: Path) -> None:
    with interrupted(9):  # behind fifteen rounds at least
        result = by_hand(tmp_path / "sweep", None, on_interrupt="return")
    assert result.interrupted_by == signal.SIGINT
    assert {member.stopped for member in result.members} == {"interrupted"}
    assert_alike(by_hand(tmp_path / "sweep", None, resume="auto"), by_hand(tmp_path / "whole", None))


def in_time_first(samples: Any) -> Any:
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs, 1), torch.stack(targets)


class OverTime(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.mean(0))


def test_batches_whose_first_dimension_is_another_are_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    before = GraphRound.run
    monkeypatch.setattr(GraphRound, "run", lambda self, *given: ran.append(1) or before(self, *given))
    samples = [(torch.randn(3, 6), target) for target in LABELS[:64]]
    data = DataLoader(samples, batch_size=16, collate_fn=in_time_first)  # type: ignore[arg-type]
    variants, run = [bow.Variant(seed=0), bow.Variant(seed=1)], bow.Run(tmp_path / "sweep", progress=False)
    bow.sweep(lambda: OverTime(6, 3), data, F.cross_entropy, variants=variants, engine="graph", run=run)
    assert len(ran) >= 4


def test_a_short_batch_may_be_the_first_behind_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.members.loop.MOST_ROUNDS", 1)
    variants = [bow.Variant(seed=0), bow.Variant(seed=1)]
    given = {"data": DATA, "loss": F.cross_entropy, "variants": variants, "engine": "graph", "at_once": 1}
    given["validation"] = DATA
    run = bow.Run(tmp_path / "sweep", progress=False, on_interrupt="return")
    with interrupted(8):  # then the last of ten is left, of six samples
        first = bow.sweep(mlp, **given, run=run)
    assert first.interrupted_by == signal.SIGINT
    assert first.members[0].history == []
    result = bow.sweep(mlp, **given, run=dataclasses.replace(run, resume="auto"))
    assert_alike(result, bow.sweep(mlp, **given, run=bow.Run(tmp_path / "whole", progress=False)))


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    swept(tmp_path / "sweep", mlp, DATA, [bow.Variant()], engine="eager", epochs=1)
    with pytest.raises(RunDirectoryError, match="already holds"):
        swept(tmp_path / "sweep", mlp, DATA, [bow.Variant()], engine="eager", epochs=1)


def test_other_variants_do_not_go_on(tmp_path: Path) -> None:
    by_hand(tmp_path / "sweep", None)
    before = {path: path.read_bytes() for path in (tmp_path / "sweep").rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="with epochs=4, got epochs=1; pass the same variants"):
        bow.sweep(
            mlp,
            DATA,
            F.cross_entropy,
            variants=bow.grid(seed=range(3)),
            run=bow.Run(tmp_path / "sweep", resume="auto", progress=False),
        )
    after = {path: path.read_bytes() for path in (tmp_path / "sweep").rglob("*") if path.is_file()}
    assert {path for path in before if after[path] != before[path]} == set()


def test_the_one_before_a_damaged_checkpoint_is_taken(tmp_path: Path) -> None:
    expected = by_hand(tmp_path / "whole", None)
    with interrupted(9):
        by_hand(tmp_path / "sweep", None, on_interrupt="return")
    newest = max((tmp_path / "sweep/checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="is not a readable checkpoint .* using the previous checkpoint"):
        result = by_hand(tmp_path / "sweep", None, resume="auto")
    assert_alike(result, expected)


@pytest.mark.parametrize("part", ["weights", "losses"])
def test_a_damaged_state_of_a_member_is_one_sentence(part: str, tmp_path: Path) -> None:
    with interrupted(9):
        by_hand(tmp_path / "sweep", None, on_interrupt="return")
    for path in (tmp_path / "sweep/checkpoints").iterdir():
        state = torch.load(path, weights_only=True)
        for member in state["members"]:
            if member["at"].get("state"):
                del member["at"]["state"][part]
        save_checkpoint(path.parent, state["round"], state)
    with pytest.raises(CheckpointError, match=rf"the state to resume from is damaged \('{part}'\); resume from"):
        by_hand(tmp_path / "sweep", None, resume="auto")


def test_the_last_check_of_a_sweep_records_what_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finds(self: Graph) -> None:
        if not self._failed:
            self._fall_back("it was found out")

    monkeypatch.setattr(Graph, "check_last", finds)
    with pytest.warns(UserWarning, match="it was found out; running eager"):
        result = by_hand(tmp_path / "sweep", None, seeds=1)
    for member in result.members:
        (event,) = [each for each in read_records(member.run_dir / "metrics.jsonl") if each["kind"] == "event"]
        assert event["event"] == "engine changed"
        assert "it was found out; running eager" in event["message"]
    (event,) = [each for each in read_records(result.run_dir / "metrics.jsonl") if each["kind"] == "event"]
    assert event["message"].startswith("seed=0 lr=0.05, ") or event["message"].startswith(result.members[0].name)


@pytest.mark.parametrize("learners", [1, 2])
def test_events_of_members_are_in_their_records(learners: int, tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        float(batch[0].sum())  # cannot be captured
        return F.cross_entropy(model(batch[0]), batch[1])

    with pytest.warns(UserWarning, match="running eager"):
        result = bow.sweep(
            mlp, DATA, step=step, variants=[bow.Variant(seed=0), bow.Variant(seed=1)], epochs=2,
            engine="graph", learners=learners, run=bow.Run(tmp_path / "sweep", progress=False),
            stop=bow.Halving(first=1) if learners > 1 else None,
        )  # fmt: skip
    for member in result.members:
        records = read_records(member.run_dir / "metrics.jsonl")
        events = [each["event"] for each in records if each["kind"] == "event"]
        assert events == ["engine changed"] * (1 if learners == 1 or member.epochs < 2 else 2)  # at its rung anew
        assert records[0]["kind"] == "start"
        assert records[-1]["kind"] == "end"


def test_what_the_last_check_of_a_sweep_raises_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Graph) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Graph, "check_last", fail)
        with pytest.raises(ZeroDivisionError):
            by_hand(tmp_path / "sweep", None, checkpoint_every="auto")
    monkeypatch.setattr(SweepLoop, "_round", None)  # nothing is left to train
    result = by_hand(tmp_path / "sweep", None, checkpoint_every="auto", resume="auto")
    assert all(member.epochs == 4 and member.model is not None for member in result.members)


def test_an_engine_that_was_left_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a check that has found a difference: until the next one it would replay what is wrong."""
    variants = [bow.Variant(seed=0), bow.Variant(seed=1)]
    given: dict[str, Any] = {"data": DATA, "loss": F.cross_entropy, "variants": variants, "engine": "graph"}
    before = SweepLoop._round

    def left(self: Any, cohorts: Any) -> None:
        if cohorts[0].num_rounds == 4:
            cohorts[0].loop.runner._fall_back("it was found out")
            os.kill(os.getpid(), signal.SIGINT)
        before(self, cohorts)

    run = bow.Run(tmp_path / "sweep", progress=False, on_interrupt="return")
    monkeypatch.setattr("bow.members.loop.MOST_ROUNDS", 1)
    monkeypatch.setattr(SweepLoop, "_round", left)
    with pytest.warns(UserWarning, match="it was found out; running eager"):
        bow.sweep(mlp, **given, run=run)
    monkeypatch.setattr(SweepLoop, "_round", before)
    with pytest.warns(UserWarning, match="engine graph had been abandoned before the checkpoint .it was found out"):
        result = bow.sweep(mlp, **given, run=dataclasses.replace(run, resume="auto"))
    assert result.engine == "eager"


A, B = bow.Variant(name="a", train_on=range(50)), bow.Variant(name="b")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"data": (FLAT + 1, LABELS)}, "that is given other data than it was started with; pass the same"),
        ({"loss": F.multi_margin_loss}, "loss='cross_entropy', got loss='multi_margin_loss'"),
        ({"engine": bow.Engine(memory_format="channels_last")}, "memory_format=None, got memory_format='chan"),
        ({"scheduler": functools.partial(StepLR, step_size=1)}, r"scheduler=None, got scheduler='StepLR\(step_"),
        ({"variants": [bow.Variant(name="a", train_on=range(50, 100)), B]}, "variant 'a' is given other training s"),
        ({"variants": [bow.Variant(name="b"), A]}, "whose variant 'a' was started with name='a', got name='b'"),
        ({"variants": [A]}, "that was started with variants=2, got variants=1"),
        ({"variants": [A, bow.Variant(name="b", settings={"lr": 0.5})]}, "variant 'b' .* lr='not stated', got lr=0.5"),
        ({"model": lambda: nn.Linear(6, 3)}, r"parameter 0.bias=\[8\], got parameter 0.bias='not stated'"),
        ({"stop": bow.EarlyStopping()}, r"stop=\[\], got stop=\[.EarlyStopping"),
        ({"validation": DATA}, "that is given other validation data than"),
        ({"engine": "eager"}, "that was started with engine='graph', got engine='eager'; pass the same"),
        ({"engine": bow.Engine(compile=True)}, "compile=False, got compile=True"),
        ({"clip_norm": 1.0}, "clip_norm=None, got clip_norm=1.0"),
        ({"validation": bow.Validation(metrics=[])}, r"metrics=\['accuracy'\], got metrics=\[\]"),
    ],
    ids=[
        *("data", "loss", "memory format", "scheduler", "samples", "order", "number", "setting", "model", "stop"),
        *("validation", "engine", "compile", "clipping", "metrics"),
    ],
)
def test_other_data_and_functions_do_not_go_on(other: dict[str, Any], said: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": mlp, "data": DATA, "loss": F.cross_entropy, "variants": [A, B]}
    run = bow.Run(tmp_path / "sweep", resume="auto", progress=False)
    bow.sweep(run=run, **given)
    bow.sweep(run=run, **given)
    before = {path: path.read_bytes() for path in (tmp_path / "sweep").rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=f"is of a sweep .*{said}"):
        bow.sweep(run=run, **(given | other))
    assert before == {path: path.read_bytes() for path in (tmp_path / "sweep").rglob("*") if path.is_file()}


def test_extra_state_is_a_member_s_own() -> None:
    factory = functools.partial(torch.optim.SGD, lr=0.1)
    first, other = (MemberGroup(Calls(), factory, 2, torch.device("cpu")) for _ in range(2))
    first.learners[1].module(torch.ones(1, 3))
    other.load_state_of(0, first.state_of(1))
    assert [learner.module.calls["train"] for learner in other.learners] == [1, 0]
    first.place(1, Calls(), factory, seed=0)
    assert first.learners[1].module.calls["train"] == 0
    assert other.learners[0].module.calls["train"] == 1


def test_a_sweep_and_a_training_do_not_go_on_in_each_others_directory(tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": DATA, "loss": F.cross_entropy, "engine": "eager"}
    sweep, train = (bow.Run(tmp_path / name, resume="auto", progress=False) for name in ("sweep", "train"))
    bow.sweep(mlp, variants=[bow.Variant()], run=sweep, **given)
    bow.train(mlp, learners=1, run=train, **given)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunDirectoryError, match=r"train holds a run of bow\.train, not a sweep; name another"):
        bow.sweep(mlp, variants=[bow.Variant()], run=train, **given)
    with pytest.raises(RunDirectoryError, match=r"sweep holds a sweep; resume it with bow\.sweep"):
        bow.train(mlp, learners=1, run=sweep, **given)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_who_ended_at_a_rung_is_not_counted_at_the_next_one() -> None:
    members = [Member(number, bow.Variant(name=str(number)), Path()) for number in range(3)]
    lived = Rungs(bow.Halving(reduction=2), members)
    for member in members:
        progress = Progress(member, (), epoch=2, rung=2)
        member.history = [{"epoch": epoch, "train_loss": 1.0} for epoch in (1, 2)]
        if member.number:
            lived.pause(progress)
        else:
            member.stopped = "patience"
            lived.note(member, progress.rung)
    read = Rungs(bow.Halving(reduction=2), members)
    assert read._values.get(4) is lived._values.get(4) is None
    assert read._values[2] == lived._values[2]


def not_written(result: Any) -> list[str]:
    """What the records of a sweep say of files."""
    return [each["message"] for each in events_of(result)]


def events_of(result: Any) -> list[dict[str, Any]]:
    return [each for each in read_records(result.run_dir / "metrics.jsonl") if each.get("event") == "not written"]


@pytest.mark.parametrize("learners", [1, 2])
def test_checkpoints_that_cannot_be_written_end_no_sweep(learners: int, tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "checkpoints").touch()
    given = {"seeds": 1, "at_once": "auto", "learners": learners}
    with pytest.warns(UserWarning, match=r"^the checkpoint cannot be written \(.*\)$") as told:
        result = by_hand(tmp_path / "sweep", None, **given)
    assert len(told) == 1
    assert len(not_written(result)) > 2
    rounds = [member.history[-1]["round"] for member in result]
    assert events_of(result)[-1]["round"] == (max(rounds) if learners == 1 else sum(rounds))  # side by side or in turn
    for name in ("round", "time_s"):
        assert (each := [event[name] for event in events_of(result)]) == sorted(each)
    assert_alike(result, by_hand(tmp_path / "whole", None, **given))
    assert (result.run_dir / "members.json").exists()
    assert result.report_path is not None


def test_a_rung_without_a_checkpoint_ends_no_sweep_of_several_learners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(path: Path) -> Any:
        return bow.sweep(
            mlp, DATA, F.cross_entropy, variants=bow.grid(lr=[0.001, 0.1]), learners=2, epochs=3, engine="eager",
            optimizer=torch.optim.SGD, stop=bow.Halving(reduction=2, first=1), validation=DATA,
            run=bow.Run(path, progress=False),
        )  # fmt: skip

    def refuse(*given: Any) -> None:
        raise CheckpointError("the disk is full")

    expected = train(tmp_path / "whole")
    monkeypatch.setattr("bow.members.trainings.save_checkpoint", refuse)
    with pytest.warns(UserWarning, match=r"the checkpoint cannot be written \(the disk is full\)"):
        result = train(tmp_path / "sweep")
    assert_alike(result, expected)


def test_a_scheduler_that_no_checkpoint_can_hold_ends_no_sweep(tmp_path: Path) -> None:
    class Named(Table):
        def get_lr(self) -> list[float | Tensor]:
            return [rate * self.table(self.last_epoch) for rate in self.base_lrs]

    with pytest.warns(UserWarning, match="the checkpoint cannot be written .*halved; "):
        result = bow.sweep(
            mlp, DATA, F.cross_entropy, variants=bow.grid(seed=range(2)), engine="eager",
            scheduler=functools.partial(Named, table=halved),
            run=bow.Run(tmp_path / "sweep", checkpoint_every=4, progress=False),
        )  # fmt: skip
    assert [member.epochs for member in result] == [1, 1]


def test_files_that_cannot_be_written_are_said_and_end_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep" / "members.json").mkdir(parents=True)
    (tmp_path / "sweep" / "members").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.warns(UserWarning, match="cannot be written") as told:
        result = swept(tmp_path / "sweep", mlp, DATA, bow.grid(seed=range(2)), engine="eager", epochs=1)
    assert ["members.json" in text for text in not_written(result)] == [False, False, True]
    assert "the folder" in not_written(result)[0]
    assert len(told) == 4  # each model that is elsewhere, too
    assert len(list((tmp_path / "here").glob("*.safetensors"))) == 2
    assert all(member.model is not None for member in result)


def test_a_finished_sweep_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = by_hand(tmp_path / "sweep", None)
    monkeypatch.setattr("bow.members.loop.SweepLoop._round", None)  # nothing is trained again
    again = by_hand(tmp_path / "sweep", None, resume="auto")
    assert_alike(again, first)
    assert torch.equal(again.ensemble(FLAT), first.ensemble(FLAT))


def test_what_the_last_check_of_a_closed_cohort_raises_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(resume: str | None) -> Any:
        variants = [bow.Variant(batch_size=size) for size in (8, 16, 32, 64)]
        run = bow.Run(tmp_path / "sweep", progress=False, resume=resume)
        return bow.sweep(mlp, DATA, F.cross_entropy, variants=variants, at_once=1, engine="graph", run=run)

    def fail(self: Graph) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Graph, "check_last", fail)
        with pytest.raises(ZeroDivisionError):
            train(None)
    opened: list[int] = []
    original = Cohort.place

    def place(self: Cohort, progress: Progress) -> None:
        opened.append(progress.member.number)
        original(self, progress)

    monkeypatch.setattr(Cohort, "place", place)
    result = train("auto")
    assert all(member.model is not None for member in result.members)
    assert opened == [1, 2, 3]  # the first one had ended


def test_events_of_a_killed_part_that_was_repeated_are_there_once(tmp_path: Path) -> None:
    def start(time_s: float) -> dict[str, Any]:
        return {"kind": "start", "time_s": time_s}

    def event(round_index: int, time_s: float) -> dict[str, Any]:
        return {"kind": "event", "time_s": time_s, "round": round_index, "event": "changed", "message": f"{time_s} s"}

    first = [start(0), event(3, 1.0), event(8, 2.0), {"kind": "event", "time_s": 2.0, "round": 8, "event": "stopped"}]
    killed = [start(2), event(9, 3.0), event(13, 4.0)]  # which goes on from a checkpoint of round 12
    repeated = [start(3), event(13, 3.5), event(15, 5.0)]
    last = [start(5), event(17, 6.0)]
    member = types.SimpleNamespace(run_dir=tmp_path, events=[])
    for records, rounds in (
        (first, [3, 8]), (first + killed + repeated, [3, 8, 9, 13, 15]),
        (first + killed + repeated + last, [3, 8, 9, 13, 15, 17]),
    ):  # fmt: skip
        (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
        TrainingsLoop._read_events(cast(Any, None), cast(Any, member), 10.0)
        assert [each["round"] for each in member.events] == rounds
    assert [each["time_s"] for each in member.events] == [11.0, 12.0, 13.0, 13.5, 15.0, 16.0]


def test_who_ended_before_a_rung_counts_there_behind_an_interruption_too(tmp_path: Path) -> None:
    """By all of its steps, in fewer epochs than those with larger batches."""
    variants = [bow.Variant(batch_size=8), *bow.grid(seed=range(3), batch_size=64, lr=1e-6)]

    def train(path: Path, **run: Any) -> Any:
        return bow.sweep(
            mlp, DATA, F.cross_entropy, variants=variants, steps=20, at_once=1, engine="eager",
            optimizer=functools.partial(torch.optim.SGD, lr=0.5), stop=bow.Halving(reduction=2, first=2),
            validation=DATA, run=bow.Run(path, progress=False, **run),
        )  # fmt: skip

    with interrupted(22):  # the second member trains
        train(tmp_path / "sweep", on_interrupt="return")
    result, expected = train(tmp_path / "sweep", resume="auto"), train(tmp_path / "whole")
    assert [member.stopped for member in expected].count("halving") == 2
    assert_alike(result, expected)


def test_those_that_wait_at_a_rung_are_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    begin = SweepProgress.begin

    def begun(self: Any, waiting: Any) -> None:
        begin(self, waiting)
        done.append(len(self._ended))

    monkeypatch.setattr(SweepProgress, "begin", begun)
    monkeypatch.setattr("bow.members.loop.MOST_ROUNDS", 1)
    with interrupted(12):  # one waits, the next one trains
        for _ in range(2):
            by_hand(tmp_path / "sweep", RULES["halving"], at_once=1, on_interrupt="return", resume="auto")
    assert done == [0, 0]
