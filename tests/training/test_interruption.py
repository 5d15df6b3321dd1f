"""A training that is asked to end: it keeps what it has, and says so by how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bow
from tests.grouped import grouped
from tests.training.blueprints import Ask, Train, assert_equal_models, linear


@pytest.fixture
def train(tmp_path: Path) -> Train:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(96, 5, generator=generator), torch.randint(3, (96,), generator=generator)

    def run(name: str = "run", **settings: Any) -> bow.Result:
        arguments = {"learners": 2, "engine": "eager", "progress": False, "run_dir": tmp_path / name, **settings}
        return bow.train(linear(), data, nn.functional.cross_entropy, **grouped(batch_size=4, epochs=2, **arguments))

    return run


@pytest.fixture(autouse=True)
def _no_signal_is_ignored() -> Iterator[None]:
    """Whatever the tests were started with, such as nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("number", "outcome"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_training_that_is_asked_to_end_goes_on_later(
    train: Train, tmp_path: Path, number: int, outcome: type[BaseException]
) -> None:
    before = signal.getsignal(number)
    whole = train("whole")
    with pytest.raises(outcome) as caught:
        train(callbacks=[Ask(number, at=5, times=2 if number == signal.SIGHUP else 1)])
    assert "round 5; resume with bow.train(..., run=bow.Run(" in caught.value.__notes__[0]
    records = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert f'{signal.Signals(number).name}: the training ends"' in records  # the way on is said once
    assert caught.type is KeyboardInterrupt or caught.value.code == 128 + number
    assert signal.getsignal(number) is before
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["round_00000005.pt"]
    assert (tmp_path / "run" / "model.safetensors").exists()
    resumed = train(resume="auto")
    assert_equal_models(resumed.model, whole.model)


@pytest.mark.parametrize(("engine", "learners"), [("graph", 2), ("eager", 1), ("eager", 2), ("fused", 2)])
def test_a_compiler_that_dies_of_the_same_signal_is_not_complained_of(
    train: Train, engine: str, learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C goes to the whole process group: to bow, and to the g++ that torch's compiler has started."""
    asked: list[object] = []

    def dies(*_: Any, **__: Any) -> Any:
        asked.append(None)
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("C++ compile error")

    def compiled(function: Any) -> Any:
        return dies

    monkeypatch.setattr("torch._inductor.aot_compile", dies)
    monkeypatch.setattr("bow.engines.eager.compiled", compiled)
    monkeypatch.setattr("bow.engines.fused.compiled", compiled)
    monkeypatch.setattr("bow.runtime.region.built", lambda folder, name, make: make(Path(name)))
    settings = {"engine": bow.Engine(engine, compile=engine != "fused"), "learners": learners}
    with pytest.raises(KeyboardInterrupt) as caught:  # and no warning, which would be an error here
        train(**settings)
    assert "round 1; resume with" in caught.value.__notes__[0]
    assert len(asked) == 1
    monkeypatch.undo()
    with torch.compiler.set_stance("default", force_backend="aot_eager"):  # takes a third of the default's time
        resumed = train(resume="auto", **settings)  # which compiles, and says nothing either
    assert resumed.engine == {"graph": "graph (compiled)"}.get(engine, engine)


def test_asked_a_second_time_it_ends_at_once(train: Train, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(callbacks=[Ask(signal.SIGINT, at=5, times=2)])
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_the_result_so_far_is_returned_where_that_is_asked_for(train: Train, number: int) -> None:
    result = train(callbacks=[Ask(number, at=5)], on_interrupt="return")
    assert result.interrupted_by == number
    assert "the training ends; there is a checkpoint of round 5" in (result.run_dir / "metrics.jsonl").read_text()
    assert result.history[-1]["round"] == 5
    assert result.model_path is not None
    resumed = train(resume="auto", on_interrupt="return")
    assert (resumed.interrupted_by, resumed.history[-1]["round"]) == (None, 24)
    assert not (resumed.run_dir / "checkpoints").exists()
