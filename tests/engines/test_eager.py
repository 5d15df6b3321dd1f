import contextlib
import copy
import functools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bow import SMA, SSGD, LocalSGD, Replicas, Run, Variant, sweep
from bow.cluster import TrialWorld
from bow.engines.restarts import HOPELESS_ROUNDS
from bow.errors import DataError, DivergenceError, LossError, ModelError
from tests.engines.pairs import closed_later
from tests.graph.cases import Branching
from tests.grouped import of_replicas

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def batch(seed: int = 0, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def replicas(model: nn.Module | None = None, learners: int = 2, **settings) -> Replicas:
    torch.manual_seed(0)
    model = model or nn.Linear(6, 3)
    settings = {"optimizer": SGD, "engine": "eager", "device": "cpu", **settings}
    loss = None if "step" in settings else cross_entropy
    return closed_later(Replicas(model, loss, **of_replicas(learners=learners, **settings)))


def test_a_step_may_take_any_pytree_and_return_metrics() -> None:
    def step(model: nn.Module, sample: dict[str, torch.Tensor]):
        losses = cross_entropy(model(sample["x"]), sample["y"], reduction="none")
        return (losses * sample["weight"]).mean(), {"largest": losses.max()}

    trained = replicas(step=step)
    x, y = batch()
    losses = trained.round([{"x": x, "y": y, "weight": torch.full((8,), w)} for w in (1.0, 0.0)])
    assert losses[1] == 0.0
    assert trained.last.metrics["largest"].shape == (2,)
    assert trained.last.metrics["largest"][0] > losses[0]


def test_a_metric_may_be_there_for_another_than_the_first_learner_only() -> None:
    def step(model: nn.Module, given: tuple[torch.Tensor, torch.Tensor]):
        some = {"some": given[0].mean()} if len(given[0]) < 8 else {}
        return cross_entropy(model(given[0]), given[1]), {"mean": given[0].mean(), **some}

    trained = replicas(step=step)
    trained.round([batch(0), batch(1, size=5)])
    some = trained.last.metrics["some"]
    assert some[0].isnan()
    assert some[1] == trained.last.metrics["mean"][1]


def test_stacked_batches_are_a_list_of_batches() -> None:
    listed, stacked = replicas(), replicas()
    x, y = (torch.stack(pair) for pair in zip(batch(0), batch(1), strict=True))
    assert torch.equal(listed.round([batch(0), batch(1)]), stacked.round((x, y)))
    assert torch.equal(listed.z, stacked.z)


def test_a_learner_without_a_batch_sits_out() -> None:
    trained = replicas(sync=LocalSGD(every=100))
    before = trained.W.clone()
    losses = trained.round([batch(), None])
    assert losses.isnan().tolist() == [False, True]
    assert torch.equal(trained.W[1], before[1])
    assert not torch.equal(trained.W[0], before[0])


def dropout_run(seed: int, noise: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    trained = replicas(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), seed=seed)
    for _ in range(3):
        if noise:
            torch.rand(7)
        losses = trained.round([batch(), batch()])
    assert losses[0] != losses[1], "learners must draw different random numbers"
    return trained.z


def test_dropout_depends_on_the_seed_and_not_on_what_else_is_drawn() -> None:
    assert torch.equal(dropout_run(0), dropout_run(0, noise=True))
    assert not torch.equal(dropout_run(0), dropout_run(1))


def test_the_callers_random_numbers_are_left_alone() -> None:
    trained = replicas(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained.round([batch(), batch()])
    assert torch.equal(torch.rand(3), expected)


def test_clipping_limits_the_norm_of_each_learner() -> None:
    trained = replicas(optimizer=functools.partial(torch.optim.SGD, lr=1.0), clip_norm=0.01, sync=LocalSGD(every=100))
    before = trained.W.clone()
    trained.round([batch(0), batch(1)])
    steps = (trained.W - before).norm(dim=1)
    torch.testing.assert_close(steps, torch.full((2,), 0.01), rtol=1e-3, atol=0)


def test_bfloat16_is_autocast_and_leaves_weights_in_float32() -> None:
    seen = []
    model = nn.Linear(6, 3)
    trained = replicas(step=lambda m, b: (seen.append(m(b[0]).dtype), m(b[0]).float().pow(2).mean())[1],
                       model=model, precision="bfloat16")  # fmt: skip
    trained.round([batch(), batch()])
    assert seen == [torch.bfloat16] * 2
    assert trained.W.dtype == torch.float32


def poisoned() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch()
    return x * float("nan"), y


@pytest.mark.parametrize("sync", [SMA(), LocalSGD(every=2)], ids=repr)
def test_a_learner_that_diverges_starts_again_from_the_central_model(sync) -> None:
    trained = replicas(learners=3, sync=sync)
    trained.round([batch(i) for i in range(3)])
    with pytest.warns(UserWarning, match="learner 1's loss was nan in round 1: it restarts"):
        trained.round([batch(0), poisoned(), batch(2)])
    assert trained.loop.num_restarts == 1
    assert torch.isfinite(trained.z).all()
    assert torch.equal(trained.W[1], trained.z)
    assert [event.event for event in trained.loop.take_events()] == ["learner restarted"]
    trained.round([batch(i) for i in range(3)])
    assert torch.isfinite(trained.W).all()


def test_divergence_can_be_an_error() -> None:
    with pytest.raises(DivergenceError, match="learner 0's loss was nan in round 0; lower the learning rate"):
        replicas(on_nan="error").round([poisoned(), batch()])


def test_training_in_which_every_learner_diverges_ends() -> None:
    trained = replicas()
    with pytest.warns(UserWarning, match="restarts"):
        trained.round([poisoned(), poisoned()])
    for _ in range(8):
        trained.round([poisoned(), poisoned()])
    with pytest.raises(DivergenceError, match="all others diverged"):
        trained.round([poisoned(), poisoned()])


def test_training_continues_while_one_learner_stays_finite() -> None:
    trained = replicas()
    with pytest.warns(UserWarning, match="restarts"):
        trained.round([poisoned(), batch()])
    for _ in range(HOPELESS_ROUNDS):
        trained.round([poisoned(), batch()])
    assert trained.loop.num_restarts == 1 + HOPELESS_ROUNDS


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_a_loss_keeps_the_precision_that_the_step_computes_it_in(engine: str) -> None:
    def step(model: nn.Module, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model(given[0].bfloat16()).float(), given[1])

    model = nn.Linear(6, 3).bfloat16()
    expected = torch.stack([step(model, batch(seed)) for seed in (1, 2)])
    assert torch.equal(replicas(model, step=step, engine=engine).round([batch(1), batch(2)]), expected)


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (lambda m, b: cross_entropy(m(b[0]), b[1], reduction="none"), LossError, r"shape \(8,\); take its mean"),
        (lambda m, b: 1.0, LossError, "got float"),
        (lambda m, b: b[0].mean(), LossError, "does not depend on the model"),
        (lambda m, b: cross_entropy(m(b[0]).detach(), b[1]), LossError, "does not depend on the model"),
        (lambda m, b: cross_entropy(m(b[0]), b[1] + 5), DataError, "index is out of range"),
    ],
    ids=["vector", "number", "constant", "detached", "label"],
)
def test_bad_steps_are_refused_in_one_sentence(step, error, message: str) -> None:
    with pytest.raises(error, match=message):
        replicas(step=step).round([batch(), batch()])


@pytest.mark.nightly
def test_compiled_learning_tasks_equal_eager_ones() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    runs = [replicas(model, compile=compile) for compile in (False, True)]
    for trained in runs:
        for i in range(4):
            trained.round([tuple(t.double() if t.is_floating_point() else t for t in batch(i + j)) for j in range(2)])
    torch.testing.assert_close(runs[0].z, runs[1].z, rtol=0, atol=1e-10)
    torch.testing.assert_close(runs[0].central[1].running_var, runs[1].central[1].running_var, rtol=0, atol=1e-10)


# What torch generates code with does not matter for when it is generated anew, but takes most of the time.
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_compiled_learning_tasks_see_numbers_and_keys_that_change(backend: str) -> None:
    def step(m: nn.Module, sample: dict) -> torch.Tensor:
        loss = cross_entropy(m(sample["x"]), sample["y"]) / sample["n"]
        return loss * sample["w"] if "w" in sample else loss

    x, y = batch()
    samples = [{"x": x, "y": y, "n": 8}, {"x": x, "y": y, "n": 8000}, {"x": x, "y": y, "n": 8, "w": torch.zeros(())}]
    plain, compiled = (replicas(step=step, compile=compile, learners=1) for compile in (False, True))
    with torch.compiler.set_stance("default", force_backend=backend):
        for sample in samples:
            torch.testing.assert_close(compiled.round([sample]), plain.round([sample]))


def test_a_learning_task_that_cannot_be_compiled_runs_all_the_same() -> None:
    trained = replicas(Branching(6, 3), compile=True)
    with pytest.warns(UserWarning, match="runs without torch.compile"):
        losses = trained.round([batch(), batch(1)])
    torch.testing.assert_close(losses, replicas(trained.export()).round([batch(), batch(1)]), rtol=1, atol=1)
    assert torch.isfinite(trained.z).all()


@pytest.mark.parametrize("sync", [SMA(), SSGD()], ids=repr)
@pytest.mark.parametrize("num_diverged", [1, 2, 3])
def test_the_buffers_of_diverged_learners_do_not_reach_the_central_model(sync, num_diverged: int) -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    trained = replicas(model, learners=3, sync=sync)
    trained.round([batch(i) for i in range(3)])
    with pytest.warns(UserWarning, match="learner 0's loss was nan"):
        trained.round([poisoned() if i < num_diverged else batch(i) for i in range(3)])
    trained.round([batch(i) for i in range(3)])
    assert torch.isfinite(trained.central[0].running_mean).all()
    assert torch.isfinite(trained(batch()[0])).all()


@pytest.mark.parametrize("engine", ["eager", "graph", "fused", "streams"])
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 1.0}, {"sync": SSGD()}], ids=["plain", "clipped", "SSGD"])
def test_a_round_without_a_healthy_learner_leaves_the_buffers_of_the_training(settings: dict, engine: str) -> None:
    with torch.compiler.set_stance("force_eager"):
        model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
        model.register_buffer("unknown", torch.tensor(float("nan")))  # no sign of a failed task
        trained = replicas(model, engine=engine, **settings)
        for t in range(3):
            trained.round([batch(2 * t), batch(2 * t + 1)])
        means = [trained.learner(index)[0].running_mean.clone() for index in range(2)]
        with pytest.warns(UserWarning, match="learner 0's loss was nan"):
            trained.round([poisoned(), poisoned()])
    torch.testing.assert_close(trained.central[0].running_mean, sum(means) / 2)
    assert trained.learner(1)[0].num_batches_tracked == 3


def test_zero_grad_does_not_end_learning() -> None:
    trained = replicas()
    trained.optimizer.zero_grad()
    before = trained.W.clone()
    trained.round([batch(), batch(1)])
    assert not torch.equal(trained.W, before)


def test_a_module_that_is_used_twice_is_left_whole() -> None:
    layer = nn.Linear(6, 6)
    for engine in ("eager", "fused"):
        with torch.compiler.set_stance("force_eager"):
            trained = replicas(nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3)), engine=engine)
            trained.round([batch(), batch(1)])
        assert trained.learner(0)[0].weight.is_leaf
        trained.learner(0)(batch()[0])


def test_a_central_model_that_was_never_synchronised_is_told_of() -> None:
    trained = replicas(sync=LocalSGD(every=100))
    trained.round([batch(), batch(1)])
    with pytest.warns(UserWarning, match=r"LocalSGD\(every=100\) has not synchronised in 1 rounds"):
        trained.export()


class Written(nn.Linear):
    """Writes to its parameters in the forward pass."""

    def __init__(self, how: str) -> None:
        super().__init__(6, 3)
        self.how = how
        self.follows = nn.Parameter(torch.zeros(3, 6), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "assigned":
            self.weight.data = self.weight.data.clamp(-0.1, 0.1)
        elif self.how == "in place":
            self.weight.data.clamp_(-0.1, 0.1)
        elif self.how == "frozen at once":
            torch._foreach_add_([self.follows], 0.1)
        else:
            self.follows.data.mul_(0.9).add_(self.weight.data, alpha=0.1)
        return super().forward(x) + nn.functional.linear(x, self.follows)


@pytest.mark.parametrize("engine", ["eager", "graph", "streams"])
@pytest.mark.parametrize("how", ["in place", "frozen"])
@pytest.mark.filterwarnings("ignore:.*changes a parameter in place")
def test_parameters_that_the_step_writes_to_are_those_of_plain_pytorch(how: str, engine: str) -> None:
    trained = replicas(Written(how), learners=1, engine=engine)
    plain = copy.deepcopy(trained.group.template)
    optimizer = SGD([plain.weight, plain.bias])
    for t in range(4):
        optimizer.zero_grad()
        cross_entropy(plain(batch(t)[0]), batch(t)[1]).backward()
        optimizer.step()
        trained.round([batch(t)])
    exported = trained.export()
    torch.testing.assert_close(exported.weight, plain.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(exported.follows, plain.follows, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*changes a parameter in place", "ignore:There is a performance drop")
@pytest.mark.parametrize("engine", ["fused", "graph", "streams"])
def test_weights_that_the_step_writes_to_are_averaged_as_in_eager(engine: str) -> None:
    template = Written("in place")
    made = [replicas(template, engine=each) for each in ("eager", engine)]
    with torch.compiler.set_stance("force_eager"):
        for t in range(4):
            for trained in made:
                trained.round([batch(2 * t), batch(2 * t + 1)])
    torch.testing.assert_close(made[1].W, made[0].W, rtol=0, atol=1e-6)


@pytest.mark.parametrize("engine", ["eager", "graph", "fused", "streams"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("assigned", "assigns to the data of parameter 'weight'.*copy_"),
        ("frozen", "changes parameter 'follows'.*buffer"),
        ("frozen at once", "changes parameter 'follows'.*buffer"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*cannot be captured", "ignore:.*does not work for this model")
def test_parameters_that_cannot_be_written_to_are_told_of(how: str, message: str, engine: str) -> None:
    trained = replicas(Written(how), engine=engine)
    with torch.compiler.set_stance("force_eager"), pytest.raises(ModelError, match=message):
        trained.round([batch(0), batch(1)])


def test_a_compiled_step_may_not_write_to_what_learners_share() -> None:
    trained = replicas(Written("frozen at once"), compile=True)
    with torch.compiler.set_stance("force_eager"), pytest.raises(ModelError, match="changes parameter 'follows'"):
        trained.round([batch(0), batch(1)])


def test_a_compiled_step_that_makes_a_buffer_makes_one_for_every_learner() -> None:
    class Centering(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = x.detach().mean(0) if self.mean is None else self.mean
            return super().forward(x - self.mean)

    model = Centering(6, 3)
    model.register_buffer("mean", None)
    plain, compiled = (replicas(model, compile=compile) for compile in (False, True))
    for t in range(2):
        told = pytest.warns(UserWarning, match="makes buffer 'mean'; register") if t == 0 else contextlib.nullcontext()
        plain.round([batch(2 * t), batch(2 * t + 1)])
        with torch.compiler.set_stance("force_eager"), told:
            compiled.round([batch(2 * t), batch(2 * t + 1)])
    torch.testing.assert_close(compiled.W, plain.W)


@pytest.mark.parametrize("engine", ["eager", "streams", "fused"])
def test_compiled_steps_read_what_a_bit_negates_as_the_numbers_that_it_is(engine: str) -> None:
    def negated(x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, -x).conj().imag

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        """Reads memory, as compiled code does."""
        return lambda *given: graph(*(torch._neg_view(each) if each.is_neg() else each for each in given))

    class Shifting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x - self.shift)

    model = Shifting(6, 3)
    model.register_buffer("shift", torch.ones(6))
    plain = replicas(model)
    with contextlib.closing(replicas(model, engine=engine, compile=True)) as compiled:
        for index in range(2 if engine != "fused" else 0):  # which has them in a stack
            compiled.learner(index)._buffers["shift"] = negated(torch.ones(6))
        for t in range(3):
            (x, y), (other, labels) = batch(2 * t), batch(2 * t + 1)
            plain.round([(x, y), (other, labels)])
            given = (negated(torch.stack([x, other])), torch.stack([y, labels]))
            with torch.compiler.set_stance("default", force_backend=backend):
                compiled.round(given if t % 2 else [(negated(x), y), (other, labels)])
        torch.testing.assert_close(compiled.W, plain.W)
        assert compiled.engine == engine


def test_a_frozen_parameter_may_not_change_on_one_of_several_devices() -> None:
    class Two(TrialWorld):
        size = 2

        def all_gather(self, value):
            return [value, value]

    trained = replicas(Written("frozen"), learners=1, world=Two())
    with pytest.raises(ModelError, match="changes parameter 'follows'"):
        trained.round([batch(0)])


def test_members_have_frozen_parameters_of_their_own(tmp_path: Path) -> None:
    data = (torch.randn(16, 6), torch.randint(3, (16,)))
    settings = {"epochs": 2, "batch_size": 4, "optimizer": SGD, "engine": "eager", "run": Run(tmp_path, progress=False)}
    build = functools.partial(Written, "frozen")
    made = sweep(build, data, cross_entropy, variants=[Variant(seed=0), Variant(seed=1)], **settings)
    alone = sweep(build, data, cross_entropy, variants=[Variant(seed=1)], **{**settings, "run": Run(progress=False)})
    assert made.members[1].model.follows.abs().sum() > 0
    torch.testing.assert_close(made.members[1].model.follows, alone.members[0].model.follows)


def test_an_error_after_a_step_has_assigned_an_expanded_buffer_is_the_users() -> None:
    class Averaged(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = x.detach().mean().expand(3)
            if len(x) < 8:
                raise ZeroDivisionError("mine")
            return super().forward(x) - self.mean

    model = Averaged(6, 3)
    model.register_buffer("mean", torch.zeros(3))
    trained = replicas(model)
    trained.round([batch(0), batch(1)])
    with pytest.raises(ZeroDivisionError, match="mine"):
        trained.round([batch(2), batch(3, size=5)])
    assert torch.equal(trained.learner(0).mean, batch(0)[0].mean().expand(3))


def test_an_error_leaves_a_buffer_that_is_one_element_of_an_expanded_tensor() -> None:
    class Calls(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return super().forward(x) / (len(x) == 8)

    model = Calls(6, 3)
    model.register_buffer("calls", torch.zeros(1))
    trained = replicas(model)
    trained.learner(0)._buffers["calls"] = torch.zeros(1).expand(2)[:1]
    with pytest.raises(ValueError, match="batch_size"):
        trained.round([batch(0), (batch(1)[0], batch(1, size=5)[1])])
    assert trained.learner(0).calls == 0


def test_sparse_gradients_are_refused_with_the_remedy() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 3))
    tokens, labels = torch.zeros(8, 2, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(ModelError, match="sparse=False"):
        replicas(model).round([(tokens, labels)] * 2)


COMPILED = """
import torch, bow
def trained(compile):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    engine = bow.Engine("eager", compile=compile)
    replicas = bow.Replicas(model, torch.nn.functional.cross_entropy, learners=2, engine=engine,
                            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for t in range(4):
        replicas.round([(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(2)])
    return replicas.W
print(float((trained(False) - trained(True)).abs().max()))
"""


@pytest.mark.nightly
def test_code_that_torch_has_kept_for_other_instructions_is_not_taken(tmp_path: Path) -> None:
    for capability in (None, "avx2", "default", None):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        environment |= {} if capability is None else {"ATEN_CPU_CAPABILITY": capability}
        made = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, check=True)
        assert float(made.stdout) < 1e-5, capability


class Drawing(nn.Linear):
    """Libraries keep such a generator for names of files; nothing says how far it is."""

    numbers = random.SystemRandom()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) * min(1, 2 + self.numbers.random())


@pytest.mark.parametrize("engine", ["eager", "graph", "streams", "fused"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_generator_without_a_state_is_left_alone(engine: str) -> None:
    plain, drawing = nn.Linear(6, 3), Drawing(6, 3)
    drawing.load_state_dict(plain.state_dict())
    expected, found = replicas(plain), replicas(drawing, engine=engine)
    for t in range(3):
        for each in (expected, found):
            each.round([batch(t), batch(t + 9)])
    torch.testing.assert_close(found.W, expected.W, rtol=1e-5, atol=1e-6)
