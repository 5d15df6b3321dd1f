"""Step graphs on disk: the next training of the same model finds them, and another one's does not."""

import functools
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.engines import captured
from bow.engines.captured import KeptGraphs
from bow.engines.frozen import FrozenValues
from tests.forked import FORKED
from tests.grouped import of_replicas

FEATURES, CLASSES = 6, 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(captured, "cache_folder", lambda: tmp_path)
    return tmp_path / captured.STEPS


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each capture."""
    made: list[int] = []
    capture = captured.capture

    def counting(*arguments: Any, **settings: Any) -> Any:
        made.append(1)
        return capture(*arguments, **settings)

    monkeypatch.setattr(captured, "capture", counting)
    return made


def model(width: int = 5, act: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, width), nn.BatchNorm1d(width), act or nn.Tanh(), nn.Linear(width, CLASSES)]
    return nn.Sequential(*layers)


def smoothed(smoothing: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: cross_entropy(outputs, targets, label_smoothing=smoothing)


def losses(
    loss: Any = cross_entropy, made: nn.Module | None = None, engine: str = "graph", rounds: int = 3, **settings: Any
) -> Any:
    replicas = bow.Replicas(made or model(), loss, **of_replicas(engine=engine, learners=2, device="cpu", **settings))
    generator = torch.Generator().manual_seed(1)

    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(4, FEATURES, generator=generator), torch.randint(CLASSES, (4,), generator=generator)

    try:
        return torch.stack([replicas.round([batch(), batch()]) for _ in range(rounds)]), replicas.engine
    finally:
        replicas.close()


def test_the_next_training_of_a_model_captures_nothing(captures: list[int]) -> None:
    first, engine = losses()
    assert (engine, len(captures)) == ("graph", 1)
    again, engine = losses()
    assert (engine, len(captures)) == ("graph", 1)
    assert torch.equal(first, again)


def test_what_computes_something_else_is_captured(captures: list[int]) -> None:
    losses(smoothed(0.1))
    for count, (loss, made) in enumerate(
        [(smoothed(0.2), None), (cross_entropy, None), (smoothed(0.1), model(7)), (smoothed(0.1), model(act=nn.ReLU()))]
    ):
        found, _ = losses(loss, made)
        assert len(captures) == count + 2
        expected, _ = losses(loss, made, engine="eager")
        assert torch.equal(found, expected)


def test_settings_of_the_training_and_of_torch_are_in_its_key(
    captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses()
    losses(precision="bfloat16")
    losses(accumulate=2)
    with monkeypatch.context() as patched:
        patched.setattr(torch.backends.mkldnn, "enabled", False)
        losses()
        losses(precision="bfloat16")
    assert len(captures) == 5
    losses(accumulate=2)
    assert len(captures) == 5


class Switched(nn.Module):
    def __init__(self, act: Any = torch.tanh) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, CLASSES)
        self.act = act
        self.scales = [1.0, 2.0]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.act(self.first(inputs)) * self.scales[0]


def plain_step(learner: nn.Module, given: Any) -> Tensor:
    return cross_entropy(learner(given[0]), given[1])


def other_step(learner: nn.Module, given: Any) -> Tensor:
    return cross_entropy(learner(given[0]), given[1]) * 2


def bound_step(learner: nn.Module, given: Any, weight: float = 1.0) -> Tensor:
    return cross_entropy(learner(given[0]), given[1]) * weight


def changed(change: Callable[[Any], object], made: nn.Module | None = None) -> nn.Module:
    made = made or Switched()
    change(made)
    return made


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-10, 10)


class ClippedOtherwise(Clipped):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-20, 20)


def through(function: Any) -> Any:
    return lambda learner, given: cross_entropy(function.apply(learner(given[0])), given[1])


def encoder(act: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, activation=act)


def leaky(slope: float) -> Any:
    return functools.partial(nn.functional.leaky_relu, negative_slope=slope)


def held(value: Any) -> nn.Module:
    return changed(lambda made: setattr(made, "scales", value))


def reduced(module: Any) -> Any:
    return lambda learner, given: cross_entropy(module.relu(learner(given[0])), given[1])


STEPS: dict[str, tuple[Any, nn.Module]] = {
    "plain": (plain_step, Switched()),
    "another step": (other_step, Switched()),
    "bound": (functools.partial(bound_step, weight=1.0), Switched()),
    "bound otherwise": (functools.partial(bound_step, weight=2.0), Switched()),
    "another function of torch's": (plain_step, Switched(torch.sigmoid)),
    "a function in Python": (plain_step, Switched(nn.functional.gelu)),
    "another in Python": (plain_step, Switched(nn.functional.relu)),
    "an element": (plain_step, changed(lambda made: made.scales.__setitem__(0, 3.0))),
    "frozen": (plain_step, changed(lambda made: made.first.weight.requires_grad_(False))),
    "evaluation": (plain_step, changed(lambda made: made.eval())),
    "double": (plain_step, changed(lambda made: made.double())),
    "a part of it": (plain_step, changed(lambda made: made.first.eval())),
    "torch's own": (plain_step, nn.TransformerEncoderLayer(8, 2)),
    "torch's own otherwise": (plain_step, encoder(torch.tanh)),
    "torch's own by a partial": (plain_step, encoder(leaky(0.01))),
    "torch's own by another": (plain_step, encoder(leaky(0.02))),
    "NumPy's number": (plain_step, held(np.float32(1.5))),
    "another one": (plain_step, held(np.float32(2.5))),
    "a range": (plain_step, held(slice(0, 2))),
    "another range": (plain_step, held(slice(0, 3))),
    "an overload": (plain_step, Switched(torch.ops.aten.div.Tensor)),
    "another overload": (plain_step, Switched(torch.ops.aten.div.Scalar)),
    "a module": (reduced(torch), Switched()),
    "another module": (reduced(nn.functional), Switched()),
    "a backward pass": (through(Clipped), Switched()),
    "another backward pass": (through(ClippedOtherwise), Switched()),
}


def key(step: Any, made: nn.Module, shape: Any = ((4, 6),)) -> str | None:
    return KeptGraphs().key(made, shape, FrozenValues(step, made))


def test_whatever_a_capture_reads_is_in_its_key() -> None:
    keys = {name: key(step, made) for name, (step, made) in STEPS.items()}
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)
    assert keys == {name: key(step, made) for name, (step, made) in STEPS.items()}
    assert key(plain_step, Switched()) == keys["plain"]
    assert key(plain_step, Switched(), ((5, 6),)) != keys["plain"]


GENERATOR, TABLE = torch.Generator(), torch.ones(CLASSES)


def drawing(learner: nn.Module, given: Any) -> Tensor:
    return plain_step(learner, given) * torch.rand((), generator=GENERATOR)


def weighted(learner: nn.Module, given: Any) -> Tensor:
    return cross_entropy(learner(given[0]), given[1], TABLE)


@pytest.mark.parametrize("step", [drawing, weighted, functools.partial(bound_step, weight=[0.0] * 2000)])
def test_what_words_do_not_tell_has_no_key(step: Any) -> None:
    assert key(step, Switched()) is None


LIBRARY = torch.library.Library("bow_kept", "FRAGMENT")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: 2 * x, "CompositeImplicitAutograd")


@torch.library.custom_op("bow_kept::scale", mutates_args=())
def scale(x: Tensor) -> Tensor:
    return 3 * x


@scale.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


scale.register_autograd(lambda ctx, gradient: 3 * gradient)

OPERATOR, OPERATORS = torch.ops.bow_kept.twice, torch.ops.bow_kept

CUSTOM: dict[str, Callable[[Tensor], Tensor]] = {
    "with a backward pass": lambda x: scale(x),
    "by its name": lambda x: torch.ops.bow_kept.scale(x),
    "taken apart": lambda x: torch.ops.bow_kept.twice(x),
    "held": lambda x: OPERATOR(x),
    "in a namespace that is held": lambda x: OPERATORS.twice(x),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_graphs_with_operators_of_other_libraries_are_not_kept(name: str, captures: list[int], folder: Path) -> None:
    """What is registered for one, its kernel or its backward pass, may be another in the next process."""
    use = CUSTOM[name]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(use(outputs), targets)

    for count in (1, 2):
        found, engine = losses(loss)
        assert (engine, len(captures)) == ("graph", count)
    torch.testing.assert_close(found, losses(loss, engine="eager")[0])
    assert not folder.exists()


def test_a_kept_graph_with_operators_of_other_libraries_is_not_taken(
    captures: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions have left some."""
    losses()
    (path,) = folder.iterdir()
    path.write_text(path.read_text().replace("aten.tanh.default", "bow_kept.scale.default"))
    expected, _ = losses(engine="eager")
    monkeypatch.setattr(captured.KeptGraphs, "invalidate_disk_cache", lambda self: pytest.fail("it was taken"))
    assert torch.equal(losses()[0], expected)
    assert len(captures) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1, "key": 2, "value": 3}'])
def test_a_damaged_file_is_captured_anew(captures: list[int], folder: Path, content: str) -> None:
    expected, _ = losses()
    (path,) = folder.iterdir()
    path.write_text(content)
    found, _ = losses()
    assert len(captures) == 2
    assert torch.equal(found, expected)
    losses()
    assert len(captures) == 2


def test_a_graph_that_does_something_else_is_found_out_and_captured_anew(captures: list[int], folder: Path) -> None:
    losses()
    (right,) = folder.iterdir()
    losses(smoothed(0.3))
    (other,) = set(folder.iterdir()) - {right}
    wrong = other.read_text().replace(other.stem, right.stem)
    content = right.read_text()
    own_key = content[content.index('"key"') : content.index('"value"')]
    right.write_text(wrong[: wrong.index('"key"')] + own_key + wrong[wrong.index('"value"') :])
    expected, _ = losses(engine="eager")
    found, engine = losses()
    assert engine == "graph"
    assert len(captures) == 3
    assert torch.equal(found, expected)
    found, _ = losses()
    assert torch.equal(found, expected)


PRIOR = torch.distributions.Normal(0.0, 1.0, validate_args=False)


def with_prior(learner: nn.Module, given: Any) -> Tensor:
    return cross_entropy(learner(given[0]), given[1]) - PRIOR.log_prob(given[0]).mean()


def test_a_graph_with_tensors_of_its_own_is_not_kept(captures: list[int]) -> None:
    """Somebody else may change them, as in a distribution that is annealed; a copy would not follow."""
    for count in (1, 2):
        of_eager, of_graph = (
            bow.Replicas(model(), step=with_prior, learners=1, engine=engine, device="cpu")
            for engine in ("eager", "graph")
        )
        for scale in (1.0, 2.0):
            PRIOR.scale.fill_(scale)
            batch = torch.ones(4, FEATURES), torch.zeros(4, dtype=torch.int64)
            assert torch.equal(of_graph.round([batch]), of_eager.round([batch]))
        assert (of_graph.engine, len(captures)) == ("graph", count)
        of_graph.close()


def test_a_graph_that_draws_otherwise_is_found_out_as_well(captures: list[int], folder: Path) -> None:
    expected, _ = losses(made=model(act=nn.Dropout(0.5)))
    (drawing,) = folder.iterdir()
    losses(made=model(act=nn.Identity()))
    (plain,) = set(folder.iterdir()) - {drawing}
    key, value = drawing.read_text().partition('"value"')[0], plain.read_text().partition('"value"')[2]
    drawing.write_text(f'{key}"value"{value}')
    found, engine = losses(made=model(act=nn.Dropout(0.5)))
    assert (engine, len(captures)) == ("graph", 3)
    assert torch.equal(found, expected)


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(captures: list[int], folder: Path) -> None:
    folder.write_text("a file is in the way")
    losses()
    assert losses()[1] == "graph"
    assert len(captures) == 2


SCRIPT = """
import functools, sys, torch, bow
class Looking(bow.Callback):
    def on_round_end(self, run):
        assert len(sys.argv) == 1 or not {"torch._dynamo", "sympy"}.intersection(sys.modules)
data = torch.ones(64, 6), torch.zeros(64, dtype=torch.int64)
bow.train(torch.nn.Linear(6, 3), data, torch.nn.functional.cross_entropy, engine="graph", learners=2, steps=3,
          optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), callbacks=[Looking()],
          run=bow.Run("run" + str(len(sys.argv)), progress=False))
"""


def test_the_second_process_does_without_torchs_compiler(tmp_path: Path) -> None:
    for command in ([*FORKED, "-c", SCRIPT], [sys.executable, "-c", SCRIPT, "second"]):
        subprocess.run(command, cwd=tmp_path, check=True)


class Hidden(threading.local):
    """What is in no place that can be looked at."""

    beta = 1.0


HIDDEN = Hidden()


def with_hidden(learner: nn.Module, given: Any) -> Tensor:
    return plain_step(learner, given) * HIDDEN.beta


def test_a_kept_graph_that_was_once_equal_is_trusted_and_a_later_difference_is_told(captures: list[int]) -> None:
    for _ in range(2):
        HIDDEN.beta = 1.0
        replicas = bow.Replicas(model(), step=with_hidden, learners=1, engine="graph", device="cpu")
        batch = torch.ones(4, FEATURES), torch.zeros(4, dtype=torch.int64)
        for _ in range(3):
            replicas.round([batch])
        HIDDEN.beta = 2.0
        with pytest.warns(UserWarning, match="last matched in round 1,"):
            replicas.run(itertools.repeat(batch), 3)
        assert [event.event for event in replicas.loop.take_events()] == ["engine changed"]
        assert (replicas.engine, len(captures)) == ("eager", 1)
        replicas.close()
