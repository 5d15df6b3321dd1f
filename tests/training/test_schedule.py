"""Strategies of a training: the same numbers as without, refusals, and `"auto"`."""

import functools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.devices import available_cores
from bow.errors import ScheduleError, SettingError
from bow.schedule import FirstComeSchedule, OrderedSchedule, Schedule
from bow.schedule.profiler import BoundStep, Comparison
from bow.schedule.scheduler import CriticalPath, critical_path
from bow.training import schedule
from tests.grouped import grouped, of_replicas
from tests.schedule.profiler.steps import made_up
from tests.training.blueprints import replicas_config

SHARED = pytest.mark.skipif(len(available_cores()) < 2, reason="operators side by side need two cores")


class Residual(nn.Module):
    """Two convolutions that read the same, each with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Conv2d(3, 4, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.head = nn.Linear(4, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        left, right = (norm(side(inputs)) for norm, side in zip(self.norms, (self.left, self.right), strict=True))
        made: Tensor = self.head((left.relu() + right).mean((2, 3)))
        return made


def model() -> nn.Module:
    torch.manual_seed(0)
    return Residual().double()


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(10, (4,), generator=generator)


def subject() -> BoundStep:
    return BoundStep.of(model(), batch(0), cross_entropy)


@functools.cache
def num_operators() -> int:
    return subject().num_operators


def dealt(seed: int, executors: int, shared: bool) -> Schedule:
    """Operators dealt at random in the order of capture; some hold all executors where `shared`."""
    draw = random.Random(seed)
    lanes: list[list[int]] = [[] for _ in range(executors)]
    for index in range(num_operators()):
        held = range(executors) if shared and draw.random() < 0.2 else [draw.randrange(executors)]
        for executor in held:
            lanes[executor].append(index)
    return OrderedSchedule((1,) * executors, order=tuple(map(tuple, lanes)))


def trained(schedule: Schedule | None, learners: int, **settings: Any) -> bow.Replicas:
    replicas = bow.Replicas(
        model(),
        cross_entropy,
        **of_replicas(learners=learners, engine="graph", device="cpu", schedule=schedule, **settings),
    )
    for t in range(4):
        replicas.round([batch(10 * t + j) for j in range(learners)])
    replicas.close()
    return replicas


@pytest.mark.sample(3, 2)
@SHARED
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_any_schedule_trains_to_the_same_weights(learners: int, shared: bool) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = trained(None, learners)
        scheduled = trained(dealt(learners, 2, shared), learners)
    finally:
        torch.set_num_threads(before)
    tolerance = {"rtol": 0, "atol": 1e-12 if shared else 0}  # with two threads, sums may be cut in another way
    torch.testing.assert_close(scheduled.W, plain.W, **tolerance)
    torch.testing.assert_close(scheduled.z, plain.z, **tolerance)
    assert scheduled.engine == "graph"


@SHARED
def test_a_schedule_of_other_operators_is_left_out_and_the_user_hears_of_it() -> None:
    with pytest.warns(UserWarning, match="the schedule does not fit this step .*never runs.* run one after another"):
        made = trained(OrderedSchedule((1, 1), order=((0,), (1,))), learners=1)
    assert torch.equal(made.W, trained(None, learners=1).W)


@SHARED
def test_optimizers_that_step_outside_the_executors_see_the_same_gradients() -> None:
    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    made = [trained(schedule, learners=2, optimizer=adam) for schedule in (None, dealt(0, 2, shared=False))]
    torch.testing.assert_close(made[1].W, made[0].W, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "eager"}, 'engine="graph", got engine=.eager'),
        ({"dispatch": "first_come"}, 'needs dispatch="fixed"'),
        ({"compile": True}, "a compiled learning task is one operator"),
    ],
)
def test_settings_that_cannot_carry_out_a_schedule_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        bow.train(
            model(), batch(0), cross_entropy, **grouped(schedule="auto", batch_size=1, progress=False, **settings)
        )


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("missing.json", SettingError, "cannot be read .*No such file"),
        (FirstComeSchedule((1, 1)), ScheduleError, "needs an order for every executor"),
        (OrderedSchedule((), ()), ScheduleError, "needs at least 1 executor"),
        (OrderedSchedule((-1, 1), ((0,), ())), ScheduleError, "threads must be at least 1, got -1 for executor 0"),
    ],
)
def test_what_is_no_schedule_is_refused(given: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        bow.train(model(), batch(0), cross_entropy, engine=bow.Engine(schedule=given), batch_size=1)


@pytest.mark.parametrize("text", ["", '{"format": "bow parti', "[]", "{}", '{"format": []}'])
def test_a_damaged_file_is_not_called_a_schedule(text: str, tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(text)
    with pytest.raises(ScheduleError, match=r"schedule.json' is damaged or not a schedule; write it again"):
        bow.train(model(), batch(0), cross_entropy, engine=bow.Engine(schedule=file), batch_size=1)


@SHARED
def test_a_training_reads_its_schedule_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(dealt(1, 2, shared=False).to_json())
    data = torch.cat([batch(j)[0] for j in range(4)]), torch.cat([batch(j)[1] for j in range(4)])
    results = [
        bow.train(
            model(),
            data,
            cross_entropy,
            engine=bow.Engine("graph", schedule=given),
            learners=1,
            batch_size=4,
            run=bow.Run(tmp_path / name, progress=False),
            seed=1,
        )
        for name, given in (("plain", None), ("scheduled", file))
    ]
    weights = [torch.cat([p.flatten() for p in result.model.parameters()]) for result in results]
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-12)


@SHARED
@pytest.mark.parametrize("wins", [False, True])
def test_auto_uses_a_schedule_when_it_wins_and_says_so_when_it_does_not(
    wins: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Schedule | None] = []
    real = bow.Replicas

    def timed(subject: BoundStep, profile: Any, policies: Any, **_: Any) -> Comparison:
        seconds = {each.name: (1.0,) if each.is_sequential != wins else (2.0,) for each in policies}
        return Comparison(tuple(policies), seconds, real_path(subject, profile))

    def real_path(subject: BoundStep, profile: Any) -> CriticalPath:
        return critical_path(subject.dependencies, profile.nanoseconds(1))

    if wins:  # the other case measures
        monkeypatch.setattr(schedule, "measure", lambda bound, threads: made_up(bound, tuple(threads)))
    monkeypatch.setattr(schedule, "compare", timed)
    monkeypatch.setattr(
        "bow.training.replicas.Replicas",
        lambda *given, **settings: (seen.append(settings["engine"].schedule), real(*given, **settings))[1],
    )
    result = bow.train(
        model(),
        batch(0),
        cross_entropy,
        engine=bow.Engine(schedule="auto"),
        batch_size=1,
        learners=1,
        run=tmp_path / "run",
    )
    assert result.learners == 1
    assert all((schedule is not None) == wins for schedule in seen)
    assert seen
    said = "".join(capsys.readouterr())
    assert said.startswith("measuring schedules")
    assert ("2.00 times as fast as sequential" if wins else "no policy that runs operators in parallel") in said


def test_auto_is_no_schedule_where_learners_have_a_core_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schedule, "available_cores", lambda: [0, 1])
    settings: dict[str, Any] = {"batch_size": 1, "learners": 2, "run_dir": tmp_path / "run"}
    bow.train(model(), batch(0), cross_entropy, **grouped(schedule="auto", **settings))
    assert "schedule: none, because 2 learners leave fewer than two cores for each" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("learners", "most"), [(1, 4), (2, 2)])
def test_auto_asks_for_schedules_of_the_cores_that_a_learner_has(
    learners: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def noted(subject: BoundStep, profile: int, cores: int) -> list[Any]:
        asked.append((profile, cores))
        return []

    found = SimpleNamespace(summary="", choice=SimpleNamespace(is_sequential=True))
    monkeypatch.setattr(schedule, "available_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(schedule, "measure", lambda subject, threads: max(threads))
    monkeypatch.setattr(schedule, "make_policies", noted)
    monkeypatch.setattr(schedule, "compare", lambda *given, **settings: found)
    assert (
        schedule.decide(
            "auto", replicas_config(), (torch.ones(2, 5), torch.tensor([0, 1])), lambda text: None, learners
        )
        is None
    )
    assert asked == [(most, most)]


def test_auto_tries_narrow_and_keeps_no_types_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(schedule, "measure", lambda bound, threads: made_up(bound, tuple(threads)))
    monkeypatch.setattr(schedule, "compare", lambda *given, policies: tried.extend(each.name for each in policies))
    schedule.compared(replicas_config(), (torch.ones(2, 5), torch.tensor([0, 1])), cores=2)
    assert "strategy 3, narrow" in tried
    assert not any("separate" in name for name in tried)
