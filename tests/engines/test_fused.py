import contextlib
import functools
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook

from bow import SMA, Engine, LocalSGD, Replicas
from bow.engines import batched_layers
from bow.engines.step_state import fits
from bow.engines.task import LearningTask, PureTask, _guards_to_keep
from bow.errors import DataError, LossError
from bow.testing import FakeDevice
from tests.engines.pairs import assert_alike, closed_later
from tests.graph.cases import Averaging, Branching, Delayed
from tests.grouped import of_replicas

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)


@pytest.fixture
def not_compiled():
    with torch.compiler.set_stance("force_eager"):
        yield


def batch(seed: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator).double(), torch.randint(0, 3, (size,), generator=generator)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


def replicas(engine: str, learners: int = 3, template: nn.Module | None = None, **settings) -> Replicas:
    settings = {"optimizer": SGD, "device": "cpu", **settings}
    template = template or model()
    return closed_later(Replicas(template, cross_entropy, **of_replicas(learners=learners, engine=engine, **settings)))


def assert_same(a: Replicas, b: Replicas) -> None:
    assert_alike(a, b)
    for x, y in zip(a.central.buffers(), b.central.buffers(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-10)


def in_both(rounds, **settings) -> tuple[Replicas, Replicas]:
    both = replicas("eager", **settings), replicas("fused", **settings)
    for one in both:
        rounds(one)
    assert both[1].engine == "fused"
    return both


@pytest.fixture
def chosen(monkeypatch) -> Callable[[str], None]:
    """What is the fastest way of all convolutions by now, as it would be measured."""
    return lambda way: monkeypatch.setattr(batched_layers, "_fastest_algorithm", lambda *_: way)


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(6, 3)).double()


def one_convolution() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(6, 3)).double()


@pytest.mark.parametrize("device", [lambda: "cpu", FakeDevice], ids=["cpu", "fake"])
def test_convolutions_of_a_round_are_computed_in_the_way_that_was_chosen(
    device, chosen, not_compiled, monkeypatch
) -> None:
    roles = []

    def product(role: str, *given: object) -> torch.Tensor:
        roles.append(role)
        return batched_layers._product(role, *given)

    monkeypatch.setitem(batched_layers.ALGORITHMS, "product", product)
    chosen("product")
    fused = replicas("fused", template=convolutional(), device=device())
    fused.round([batch(j) for j in range(3)])
    assert fused.engine.startswith("fused")
    assert set(roles) == {"outputs", "inputs", "weights"}


def test_a_training_goes_on_with_the_ways_that_it_has_chosen(chosen, not_compiled, monkeypatch) -> None:
    def training() -> Replicas:
        return replicas("fused", template=convolutional(), device=FakeDevice())

    chosen("in turn")
    first, again = training(), training()
    first.round([batch(j) for j in range(3)])
    again.load_training_state(first.training_state())
    monkeypatch.setattr(batched_layers, "_fastest_algorithm", lambda *_: pytest.fail("it is measured anew"))
    for one in (first, again):
        one.round([batch(3 + j) for j in range(3)])
    assert torch.equal(first.W, again.W)


@pytest.mark.usefixtures("_unchecked_shapes")
def test_code_for_one_way_has_another_key_than_that_for_another(chosen) -> None:
    keys = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        keys.append(torch.compiler.config.cache_key_tag)
        return graph

    for way in ("grouped", "product", "grouped"):
        chosen(way)
        with torch.compiler.set_stance("default", force_backend=backend):
            fused = replicas("fused", template=one_convolution(), optimizer=functools.partial(torch.optim.SGD, lr=0.1))
            fused.round([batch(j) for j in range(3)])
        assert fused.engine == "fused"
    assert len(keys) == 3
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.nightly
@pytest.mark.usefixtures("_unchecked_shapes")
def test_code_that_torch_has_kept_is_used_for_the_ways_that_it_was_made_for(chosen, monkeypatch, tmp_path) -> None:
    # Kernels may be there already, as C++ is compiled by its text; which graphs have them is forgotten.
    graphs = "torch._inductor.codecache.FxGraphCache", "torch._functorch._aot_autograd.autograd_cache.AOTAutogradCache"
    for kind in graphs:
        folder = tmp_path / kind.rpartition(".")[2]
        monkeypatch.setattr(f"{kind}._get_tmp_dir", lambda folder=folder: str(folder))

    def found_code(way: str) -> bool:
        torch._dynamo.reset()  # what this process holds itself
        counters = torch._dynamo.utils.counters
        counters.clear()
        chosen(way)
        fused = replicas("fused", template=one_convolution(), optimizer=functools.partial(torch.optim.SGD, lr=0.1))
        fused.round([batch(j) for j in range(3)])
        assert fused.engine == "fused"
        return counters["aot_autograd"]["autograd_cache_hit"] > 0

    tag = torch.compiler.config.cache_key_tag
    assert [found_code(way) for way in ("grouped", "product", "grouped")] == [False, False, True]
    assert torch.compiler.config.cache_key_tag == tag


def test_short_rounds_and_odd_batches_run_in_turn_and_agree(not_compiled) -> None:
    def rounds(one: Replicas) -> None:
        one.round([batch(0), batch(1), batch(2)])
        one.round([batch(3), None, batch(4)])
        one.round([batch(5), batch(6, size=5), batch(7)])
        one.round([batch(8), batch(9), batch(10)])

    assert_same(*in_both(rounds))


def test_learners_come_and_go_and_agree(not_compiled) -> None:
    def rounds(one: Replicas) -> None:
        for learners in (1, 2, 3, 2, 2):
            one.resize(learners)
            for i in range(3):
                one.round([batch(i + j) for j in range(one.learners)])

    assert_same(*in_both(rounds, learners=1))


def test_a_changed_learning_rate_and_momentum_take_effect(not_compiled) -> None:
    def rounds(one: Replicas) -> None:
        for i, (lr, momentum) in enumerate([(0.1, 0.9), (0.01, 0.9), (0.05, 0.5)]):
            one.optimizer.param_groups[0].update(lr=lr, momentum=momentum)
            one.round([batch(i + j) for j in range(3)])

    assert_same(*in_both(rounds))


@pytest.mark.sample(4, 3)
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("sync", [SMA(), SMA(alpha=0.2, mu=0.9, every=2)], ids=repr)
def test_whole_rounds_in_one_compiled_region_agree_and_survive_a_label_out_of_range(nesterov: bool, sync: SMA) -> None:
    def rounds(one: Replicas) -> None:
        for i in range(6):
            one.round([batch(i + j) for j in range(3)])

    both = in_both(rounds, optimizer=functools.partial(SGD, nesterov=nesterov), sync=sync)
    assert_same(*both)
    x, y = batch(0)
    with pytest.raises(DataError, match="out of range"):
        both[1].round([(x, y + 7), batch(1), batch(2)])


def test_a_learner_that_diverges_in_one_region_starts_again_alike(not_compiled) -> None:
    def rounds(one: Replicas) -> None:
        one.round([batch(0), batch(1), batch(2)])
        x, y = batch(3)
        with pytest.warns(UserWarning, match="learner 2's loss was nan in round 1"):
            one.round([batch(4), batch(5), (x * float("nan"), y)])
        one.round([batch(6), batch(7), batch(8)])

    both = in_both(rounds)
    assert_same(*both)
    assert torch.isfinite(both[1].W).all()


def test_states_move_between_engines(not_compiled) -> None:
    eager, fused = replicas("eager"), replicas("fused")
    for i in range(3):
        eager.round([batch(i + j) for j in range(3)])
    fused.load_training_state(eager.training_state())
    for one in (eager, fused):
        one.round([batch(9 + j) for j in range(3)])
    assert_same(eager, fused)


def test_the_learning_task_has_a_name_since_torch_2_11_cannot_trace_its_repr() -> None:
    task = LearningTask(model(), lambda module, given: module(given).sum(), torch.device("cpu"), None)
    assert PureTask(task, replicas("eager").group.layout).__name__ == "learning_task"


def test_only_plain_sgd_under_sma_runs_in_one_region() -> None:
    def whole(**settings) -> bool:
        one = replicas("eager", **settings)
        return fits(one.group, one.loop.sync, one.loop.settings)

    assert whole()
    assert not whole(sync=LocalSGD())
    assert not whole(clip_norm=1.0)
    assert not whole(optimizer=torch.optim.AdamW)
    assert not whole(optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5))


@pytest.mark.parametrize("engine", ["fused", "graph"])
@pytest.mark.parametrize("of_all", [False, True], ids=["of the optimizer", "of all optimizers"])
def test_hooks_of_the_optimizer_are_called_from_the_next_round_on(engine: str, of_all: bool, not_compiled) -> None:
    def shrink(optimizer: torch.optim.Optimizer, *_: object) -> None:
        next(each for each in (one, eager) if each.optimizer is optimizer).W.clamp_(-0.1, 0.1)

    one, eager = replicas(engine), replicas("eager")
    for t in range(6):
        if t == 2:
            handles = [register_optimizer_step_post_hook(shrink)] if of_all else []
            handles += [] if of_all else [each.optimizer.register_step_post_hook(shrink) for each in (one, eager)]
        if t == 4:
            for handle in handles:
                handle.remove()
        for each in (one, eager):
            each.round([batch(3 * t + j) for j in range(3)])
        assert_same(one, eager)
        if t in (2, 3):  # gradients are measured in such a round
            torch.testing.assert_close(one.G, eager.G, rtol=0, atol=1e-10)
    assert one.engine == engine


def test_flags_of_the_optimizer_are_followed(not_compiled) -> None:
    def rounds(one: Replicas) -> None:
        for t in range(6):
            one.optimizer.param_groups[0].update(maximize=t in (2, 3), dampening=0.5 if t == 4 else 0)
            one.round([batch(3 * t + j) for j in range(3)])

    assert_same(*in_both(rounds))


def test_a_model_in_bfloat16_follows_eager_with_a_momentum_that_bfloat16_does_not_have(not_compiled) -> None:
    def step(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
        return (model(given) * given).sum()

    made = []
    for engine in ("eager", "fused"):
        template = nn.Linear(1, 1, bias=False).bfloat16()
        nn.init.ones_(template.weight)
        optimizer = functools.partial(torch.optim.SGD, lr=2**-10, momentum=0.99)  # 0.9883 in bfloat16
        settings = of_replicas(step=step, optimizer=optimizer, learners=2, engine=engine, device="cpu")
        with contextlib.closing(Replicas(template, **settings)) as one:
            for _ in range(60):
                one.round([torch.ones(1, 1, dtype=torch.bfloat16)] * 2)
            made.append(one.W.clone())
    assert torch.equal(*made)


@pytest.mark.parametrize("engine", ["fused", Engine("eager", compile=True), Engine("eager", accumulate=2)], ids=str)
def test_a_loss_that_trains_nothing_is_refused(engine: str | Engine, not_compiled) -> None:
    """`torch.func` has zeros as its gradient."""

    def step(model: nn.Module, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            outputs = model(given[0])
        return nn.functional.cross_entropy(outputs, given[1])

    settings = of_replicas(step=step, optimizer=SGD, learners=2, engine=engine, device="cpu")
    with (
        contextlib.closing(Replicas(model(), **settings)) as one,
        pytest.raises(LossError, match="the loss does not depend on the model's parameters"),
    ):
        one.round([batch(0), batch(1)])


class Shared(nn.Module):
    """Two layers that share a buffer: one writes to it, the other reads it."""

    def __init__(self, *, assigns: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6).double(), nn.Linear(6, 3).double()
        calls = torch.ones((), dtype=torch.float64)
        self.first.register_buffer("calls", calls)
        self.second.register_buffer("calls", calls)
        self.assigns = assigns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.assigns:
            self.first.calls = self.first.calls + 1
        else:
            self.first.calls += 1
        return self.second(self.first(x)) / self.second.calls


@pytest.mark.parametrize(
    ("engine", "assigns"), [("fused", False), pytest.param("fused", True, marks=pytest.mark.nightly), ("eager", False)]
)
def test_a_buffer_of_two_modules_stays_one(engine: str, assigns: bool) -> None:
    template = Shared(assigns=assigns)
    stance = {"stance": "force_eager"} if assigns else {"stance": "default", "force_backend": "aot_eager"}
    one, eager = replicas(engine, template=template, compile=True), replicas("eager", template=template)
    with (
        torch.compiler.set_stance(**stance),
        pytest.warns(UserWarning, match="assigns to buffer 'second.calls'") if assigns else contextlib.nullcontext(),
    ):
        for t in range(6):
            sizes = [5 if t == 3 else 8, 8, 8]
            for each in (one, eager):
                if t == 4:
                    each.resize(4)
                each.round([batch(4 * t + j, size) for j, size in enumerate([*sizes, *[8] * (t >= 4)])])
            assert_same(one, eager)


@pytest.mark.parametrize("optimizer", [SGD, torch.optim.AdamW], ids=["whole", "in parts"])
def test_a_metric_that_is_a_weight_has_its_value_before_the_step(optimizer: Callable, not_compiled) -> None:
    def step(
        model: nn.Module, given: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return cross_entropy(model(given[0]), given[1]), {"weight": model.weight[0, 0]}

    settings = of_replicas(step=step, optimizer=optimizer, learners=2, engine="fused", device="cpu")
    with contextlib.closing(Replicas(nn.Linear(6, 3).double(), **settings)) as one:
        for t in range(3):
            before = one.W[:, 0].clone()
            one.round([batch(2 * t + j) for j in range(2)])
            torch.testing.assert_close(one.last.metrics["weight"].double(), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("optimizer", [SGD, torch.optim.AdamW], ids=["whole", "in parts"])
def test_a_buffer_that_keeps_the_value_of_another_has_the_one_before(optimizer: Callable, backend: str) -> None:
    def rounds(one: Replicas) -> None:
        for t in range(4):
            one.round([batch(3 * t + j) for j in range(3)])

    with torch.compiler.set_stance("default", force_backend=backend):
        assert_same(*in_both(rounds, template=Delayed(), optimizer=optimizer))


def follows_with_a_warning(said: str, rounds: int, **settings) -> Replicas:
    """`fused`, which warns in its first round, and `eager`; in the fourth round a batch is shorter."""
    fused, eager = replicas("fused", **settings), replicas("eager", **settings)
    for t in range(rounds):
        given = [batch(3 * t + j, 5 if (t, j) == (3, 1) else 8) for j in range(3)]
        with pytest.warns(UserWarning, match=said) if t == 0 else contextlib.nullcontext():
            fused.round(given)
        eager.round(given)
        assert_same(fused, eager)
    return fused


class Adding(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "act"):
            self.act = nn.Tanh()
        return self.act(super().forward(x))


@pytest.mark.parametrize("optimizer", [SGD, torch.optim.AdamW], ids=["whole", "in parts"])
def test_a_step_may_add_modules_in_its_first_pass(optimizer: Callable, not_compiled) -> None:
    follows_with_a_warning("of module 'act' in", 3, template=Adding(6, 3).double(), optimizer=optimizer)


class Counting(nn.Linear):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class Collecting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.calls: set[int] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add(len(self.calls))
        return super().forward(x) / len(self.calls)


class Starting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "calls"):
            return super().forward(x)
        del self.calls
        return 2 * super().forward(x)


@pytest.mark.parametrize("optimizer", [SGD, torch.optim.AdamW], ids=["whole", "in parts"])
@pytest.mark.parametrize("kind", [Counting, Collecting, Starting])
def test_a_model_that_counts_in_python_counts_for_every_learner(
    kind: type[nn.Linear], optimizer: Callable, not_compiled
) -> None:
    fused = follows_with_a_warning("changes attribute 'calls'", 5, template=kind(6, 3).double(), optimizer=optimizer)
    assert fused.engine == "eager"


def test_a_model_that_branches_on_data_falls_back_to_eager_with_the_reason() -> None:
    fused = replicas("fused", template=Branching(6, 3).double())
    eager = replicas("eager", template=fused.export().requires_grad_())
    batches = [batch(i) for i in range(3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fused.round(batches)
    eager.round(batches)
    assert fused.engine == "eager"
    assert any("data-dependent control flow" in str(w.message) for w in caught)
    assert [event.event for event in fused.loop.take_events()] == ["engine changed"] * 3
    assert_same(fused, eager)


def test_dropout_is_reproducible_and_differs_between_learners(not_compiled) -> None:
    def run() -> Replicas:
        torch.manual_seed(0)
        one = replicas("fused", template=nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).double())
        losses = one.round([batch(0)] * 3)
        assert len(losses.unique()) == 3
        return one

    assert torch.equal(run().z, run().z)


@pytest.mark.sample(2)
@pytest.mark.parametrize("stance", ["force_eager", "default"])
def test_buffers_that_a_model_assigns_anew_agree(stance: str) -> None:
    torch.manual_seed(0)
    template = Averaging().double()

    def rounds(one: Replicas) -> None:
        for i in range(4):
            one.round([batch(i + j) for j in range(3)])

    with torch.compiler.set_stance(stance):
        both = in_both(rounds, template=template)
    assert both[0].central.mean.abs().sum() > 0
    assert_same(*both)


class Keeping(nn.Linear):
    """Assigns to its buffer what a function makes of the batch and the buffer."""

    def __init__(self, before: torch.Tensor | None, make: Callable) -> None:
        super().__init__(6, 3, dtype=torch.float64)
        self.make = make
        self.register_buffer("kept", before)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = 0 if self.kept is None else self.kept.sum()
        self.kept = self.make(x.detach(), self.kept)
        return super().forward(x) * (1 + before)


KEPT: dict[str, tuple[torch.Tensor | None, Callable]] = {
    "shape": (torch.zeros(1).double(), lambda x, _: x.mean(0)),
    "fewer elements": (torch.zeros(6).double(), lambda x, _: x.mean(0)[:1]),
    "type": (torch.zeros((), dtype=torch.int64), lambda _, kept: kept + 0.5),
    "made": (None, lambda x, _: x.mean(0)),
    "made of no batch": (None, lambda _, __: torch.full((3,), 0.1)),
}


@pytest.mark.parametrize("optimizer", [SGD, torch.optim.AdamW], ids=["whole", "in parts"])
@pytest.mark.parametrize("kept", KEPT)
def test_a_step_may_give_a_buffer_another_shape_or_type(kept: str, optimizer: Callable, not_compiled) -> None:
    fused = follows_with_a_warning("buffer 'kept'", 3, template=Keeping(*KEPT[kept]), optimizer=optimizer)
    assert fused.engine == "eager"


SCALE = 1.0


@pytest.mark.nightly
def test_a_value_outside_that_changes_takes_effect_in_compiled_rounds() -> None:
    weight = {"value": 1.0}

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return weight["value"] * SCALE * cross_entropy(outputs, targets)

    global SCALE
    fused = Replicas(model(), loss, optimizer=SGD, learners=3, engine="fused", device="cpu")
    batches = [batch(i) for i in range(3)]
    assert (fused.round(batches) > 0).all()
    weight["value"] = 0.0
    assert (fused.round(batches) == 0).all()
    weight["value"], SCALE = 1.0, 0.0
    assert (fused.round(batches) == 0).all()
    SCALE = 1.0
    assert fused.engine == "fused"


def test_a_model_that_cannot_be_vectorised_is_not_tried_again_when_learners_come() -> None:
    fused = replicas("fused", template=Branching(6, 3).double())
    with pytest.warns(UserWarning, match="fused"):
        fused.round([batch(i) for i in range(3)])
    fused.loop.take_events()
    fused.resize(fused.learners + 1)
    fused.round([batch(i) for i in range(4)])
    assert fused.loop.take_events() == []
    assert fused.engine == "eager"


def test_running_statistics_that_are_part_of_a_buffer_follow_eager(not_compiled) -> None:
    class Domains(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.register_buffer("means", torch.zeros(2, 3))
            self.register_buffer("vars", torch.ones(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.batch_norm(super().forward(x), self.means[0], self.vars[0], training=self.training)

    template = Domains().double()
    one, eager = replicas("fused", template=template), replicas("eager", template=template)
    for t in range(2):
        for each in (one, eager):
            each.round([batch(3 * t + j) for j in range(3)])
        assert_same(one, eager)
    assert eager.learner(0).means[0].abs().min() > 0


def test_guards_on_modules_of_users_are_kept() -> None:
    names = ["G['__import_torch']", "G['__import_torch_dot_nn']", "G['__import_torch_utils'].SCALE"]
    assert _guards_to_keep([SimpleNamespace(name=name) for name in names]) == [False, False, True]


def test_a_step_with_activation_checkpointing_runs_in_eager_and_leaves_hooks_allowed() -> None:
    class Checkpointed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    template = Checkpointed(6, 3).double()
    one, eager = replicas("fused", template=template), replicas("eager", template=template)
    with warnings.catch_warnings(record=True) as told:  # torch's compiler, when first imported, warns as well
        warnings.simplefilter("always")
        one.round([batch(j) for j in range(3)])
    assert any("running eager" in str(each.message) for each in told)
    eager.round([batch(j) for j in range(3)])
    assert_same(one, eager)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        template(batch(0)[0])
