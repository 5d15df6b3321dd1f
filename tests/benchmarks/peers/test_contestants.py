"""The contestants, for real but for a moment."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
import time

import pytest
import torch

from benchmarks.contestants import make_step
from benchmarks.peers import cuda_graph, ensemble, large_batch, plain, process
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.process import environment_of, train, train_apart
from benchmarks.peers.referee import Referee
from benchmarks.peers.task import MOMENTUM, Job, Task
from benchmarks.peers.training import DIVERGED, EPOCHS, FAILED, REACHED, Choice


def task(contestant: str, *, device: str = "cpu", lr: float = 0.05, until: float = 1.0, target: float = 2.0) -> Task:
    return Task(
        Choice(contestant, 16, lr, 1),
        seed=3,
        stage="final",
        model="mlp",
        data="digits",
        root="",
        device=device,
        target=target,
        epochs=2,
        until=until,
        limit_s=60.0,
        evaluate_every=0.25,
    )


def job(contestant: str, device: str = "cpu") -> Job:
    asked = task(contestant, device=device)
    data = asked.load()
    referee = Referee(data.validation, 360.0, math.inf, 1440.0, 60.0)
    referee.start()
    return Job(asked, data, referee)


@pytest.mark.parametrize("module", [plain, large_batch, ensemble])
def test_it_learns_and_ends_when_it_is_told_to(module: object) -> None:
    given = job("pytorch")
    module.train(given)  # type: ignore[attr-defined]
    looks = given.referee.looks
    assert [look.samples // 360 for look in looks] == [1, 2, 3, 4]
    assert given.referee.ending == EPOCHS
    assert looks[-1].accuracy > 0.75
    assert [look.seconds for look in looks] == sorted(look.seconds for look in looks)


def test_the_whole_step_as_a_function_is_the_same_arithmetic() -> None:
    given = job("compile_step")
    model, other = given.build(), given.build()
    parameters = {name: parameter.detach() for name, parameter in other.named_parameters()}
    momenta = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    step = make_step(other, given.loss, given.choice.lr, MOMENTUM)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.choice.lr, momentum=MOMENTUM)
    for (inputs, targets), _ in zip(given.batches(), range(5), strict=False):
        step(parameters, momenta, {}, inputs, targets)
        optimizer.zero_grad()
        given.loss(model(inputs), targets).backward()
        optimizer.step()
    for parameter, mine in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter)


def test_large_batches_warm_up_to_their_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    given = job("large_batch")
    rates: list[float] = []

    def run(job: Job, model: object, rate: object) -> None:
        rates.extend(rate(samples) for samples in (0, 352, 720, 10_000))  # type: ignore[operator]

    monkeypatch.setattr(large_batch, "run", run)
    large_batch.train(given)
    half_an_epoch = len(given.data.train[1]) / 2
    assert rates == pytest.approx([0.05 * 16 / half_an_epoch, 0.05 * 368 / half_an_epoch, 0.05, 0.05])


def test_models_of_an_ensemble_begin_with_weights_of_their_own() -> None:
    given = job("ensemble")
    first, second = given.build(), given.build(1003)
    assert not any(a.equal(b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_bow_trains_evaluates_within_epochs_and_stops_at_the_target() -> None:
    training = train(task("bow", target=0.7, until=2.0))
    assert training.ending == REACHED
    assert training.looks[-1].accuracy >= 0.7
    assert all(look.accuracy < 0.7 for look in training.looks[:-1])
    assert training.ran_as is not None
    assert "learner" in training.ran_as
    first = training.looks[0]
    assert 360 <= first.samples < 720


@pytest.mark.filterwarnings("ignore")
def test_a_learning_rate_far_too_large_is_seen_to_diverge() -> None:
    for contestant in ("pytorch", "bow"):
        training = train(task(contestant, lr=1e30))
        assert training.ending == DIVERGED, training


@pytest.mark.parametrize("contestant", ["pytorch", "local_sgd", "lightning"])
def test_it_trains_in_a_process_of_its_own(contestant: str) -> None:
    package = CONTESTANTS[contestant].package
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    training = train_apart(task(contestant, until=0.5))
    assert training.ending == EPOCHS, training.why
    assert len(training.looks) == 2


def test_a_process_that_fails_is_a_training_that_failed() -> None:
    training = train_apart(task("pytorch", device="nowhere"))
    assert training.ending == FAILED
    assert training.why is not None
    assert training.why.startswith("RuntimeError: ")


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PATIENCE_S", -119.8)
    training = train_apart(task("pytorch"))
    assert (training.ending, training.why) == (FAILED, "did not end in time")


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize(
    ("codes", "failed"),
    [
        (("", "import time; time.sleep(60)"), []),
        (("", "raise SystemExit(1)"), []),
        (("import time; time.sleep(60)", "raise SystemExit(1)"), [1]),
        (("raise SystemExit(1)", "import time; time.sleep(60)"), [0]),
    ],
    ids=["the other hangs in its end", "the other fails in its end", "the other fails", "the first fails"],
)
def test_the_first_process_decides_and_waits_for_no_other(
    codes: tuple[str, str], failed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    began = time.monotonic()
    started = [python(code) for code in codes]
    if "time" not in codes[0]:
        started[0].wait()
    try:
        assert process._wait(started, 30.0) == failed
    finally:
        for each in started:
            each.kill()
            each.wait()
    assert time.monotonic() - began < 20.0


def test_only_bow_gets_what_its_command_sets() -> None:
    inherited = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "7", "PATH": "/bin"}
    plain_one, bow_one = (environment_of(Choice(name, 16, 0.1, 2), inherited) for name in ("pytorch", "bow"))
    assert plain_one == {"OMP_NUM_THREADS": "2", "PATH": "/bin"}
    assert bow_one == {"OMP_NUM_THREADS": "2", "PATH": "/bin", "OMP_WAIT_POLICY": "PASSIVE"}


def test_who_cannot_take_part_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CONTESTANTS["cuda_graph"].missing("cpu") == "needs a GPU"
    assert CONTESTANTS["local_sgd"].missing("cuda") == "is for CPUs"
    assert CONTESTANTS["pytorch"].missing("cpu") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert CONTESTANTS["lightning"].missing("cpu") == "not installed (pip install lightning)"


@pytest.mark.gpu
def test_a_step_as_a_cuda_graph_trains_as_plain_pytorch_does() -> None:
    graphed, eager = job("cuda_graph", "cuda"), job("pytorch", "cuda")
    cuda_graph.train(graphed)
    plain.train(eager)
    assert graphed.referee.looks[-1].accuracy == pytest.approx(eager.referee.looks[-1].accuracy, abs=0.05)
