"""Running a captured step equals autograd to the last bit."""

import copy
import functools
import itertools
import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bow
from bow.devices import num_threads
from bow.engines.random import NumbersOfGraph
from bow.graph import StepGraph, kinds, tracing
from bow.runtime.local import LocalRuntime
from tests.graph.cases import PAPER_MODELS, Eager, Remembering, assert_equal, captured, onednn, state


@pytest.mark.sample(2)
@pytest.mark.parametrize("loaded", [False, True], ids=["captured", "loaded"])
@pytest.mark.parametrize("name", PAPER_MODELS)
def test_running_the_graph_equals_autograd_exactly_on_two_batches(name: str, loaded: bool) -> None:
    case = PAPER_MODELS[name]
    model, graph = captured(name)
    graph = StepGraph.from_json(graph.to_json()) if loaded else graph
    with onednn(case.mkldnn):
        for _ in range(2):
            inputs, targets = batch = case.batch()
            outputs = graph.run(*state(model), batch)

            def step(learner: nn.Module, inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                return case.loss(learner(inputs), targets)

            assert_equal(outputs, Eager.step(model, step))


@pytest.mark.parametrize(("middle", "passes"), [(nn.ReLU(), 1), (nn.ReLU(inplace=True), 2), (nn.BatchNorm1d(4), 2)])
def test_only_a_step_that_writes_is_traced_a_second_time(
    middle: nn.Module, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fx, traced = tracing.make_fx, []
    monkeypatch.setattr(tracing, "make_fx", lambda *args, **settings: traced.append(1) or make_fx(*args, **settings))
    model = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2))
    bow.capture(model, (torch.randn(5, 3), torch.randn(5, 2)), F.mse_loss)
    assert len(traced) == passes


def test_torch_makes_no_records_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [handler])
    monkeypatch.setattr("torch.utils._traceback.CapturedTraceback.extract", lambda **_: pytest.fail("a stack trace"))
    bow.capture(nn.Linear(3, 2), (torch.randn(5, 3), torch.randn(5, 2)), F.mse_loss)
    assert logging.getLogger("torch.__trace").handlers == [handler]


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s + x * s * (1 - s))


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return Swish.apply(self.linear(x))


class AssignedBuffer(Custom):
    """Replaces a buffer instead of writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.linear(x)
        self.average = 0.9 * self.average + 0.1 * outputs.detach().mean(0)
        return outputs + self.average


class Constants(Custom):
    """Uses tensors that are neither parameters nor buffers, and writes to what it made itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.tensor([1.0, 0.0, 1.0, math.inf, 1.0, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.linear(x) * 1
        outputs[:, 0] = torch.tensor([3.0])
        outputs[1:3].mul_(2)
        return outputs.clamp(max=self.mask).masked_fill(torch.eye(4, 6).bool(), -1.0)


class Autocast(Custom):
    """Uses a weight twice: autocast casts it once."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(self.linear(x).relu()).float()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x)))


class Attention(Custom):
    def forward(self, x: Tensor) -> Tensor:
        q = self.linear(x).view(1, 2, 2, 6)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def _convolutions() -> nn.Module:
    layers = nn.Conv2d(3, 6, 3, groups=3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.ConvTranspose2d(6, 4, 3)
    return nn.Sequential(*layers, nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.AdaptiveAvgPool2d(2))


def _images() -> Tensor:
    return torch.randn(4, 3, 8, 8)


TRICKY = {
    "custom autograd function": (Custom, lambda: torch.randn(4, 6)),
    "buffer that is assigned": (AssignedBuffer, lambda: torch.randn(4, 6)),
    "constants and writes": (Constants, lambda: torch.randn(4, 6)),
    "autocast": (Autocast, lambda: torch.randn(4, 6)),
    "tied, frozen and unused parameters": (Tied, lambda: torch.randn(4, 6)),
    "fused attention": (Attention, lambda: torch.randn(4, 6)),
    "convolutions and norms": (_convolutions, _images),
    "double precision": (lambda: _convolutions().double(), lambda: _images().double()),
    "channels last": (
        lambda: _convolutions().to(memory_format=torch.channels_last),
        lambda: _images().to(memory_format=torch.channels_last),
    ),
    "evaluation mode": (lambda: _convolutions().eval(), _images),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", TRICKY)
def test_whatever_a_model_does_the_graph_equals_autograd_exactly(name: str) -> None:
    build, inputs = TRICKY[name]
    torch.manual_seed(0)
    model = build()

    def step(learner: nn.Module, batch: Tensor) -> Tensor:
        return learner(batch).square().mean()

    graph = StepGraph.from_json(bow.capture(model, inputs(), step=step).to_json())
    for _ in range(2):
        batch = inputs()
        assert_equal(graph.run(*state(model), batch), Eager.step(model, lambda learner, b=batch: step(learner, b)))


def test_a_step_of_its_own_takes_any_batch_and_returns_metrics() -> None:
    model = nn.Linear(3, 2)
    batch = {"x": torch.randn(4, 3), "more": [torch.randn(4, 2)]}

    def step(learner, b):
        error = learner(b["x"]) - b["more"][0]
        return error.square().mean(), {"worst": error.abs().max()}

    outputs = bow.capture(model, batch, step=step).run(*state(model), batch)
    loss, metrics = step(model, batch)
    assert outputs.loss.item() == loss.item()
    assert outputs.metrics["worst"].item() == metrics["worst"].item()


def test_capturing_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2))
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before, pointers = copy.deepcopy(model.state_dict()), [p.data_ptr() for p in model.parameters()]
    random_state = torch.get_rng_state()
    graph = bow.capture(model, (_images(), torch.tensor([0, 1, 1, 0])), F.cross_entropy)
    graph.run(*state(model), (_images(), torch.tensor([0, 1, 1, 0])), seed=1)
    torch.set_rng_state(random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[1].weight.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_flags_of_torch_are_put_back_after_a_refusal() -> None:
    before = torch.backends.mkldnn.is_available(), torch._C._get_mkldnn_enabled(), torch.is_autocast_cache_enabled()
    with pytest.raises(bow.BowError):
        bow.capture(nn.LSTM(2, 2), (torch.randn(3, 1, 2),), step=lambda model, batch: model(batch[0])[0].sum().item())
    after = torch.backends.mkldnn.is_available(), torch._C._get_mkldnn_enabled(), torch.is_autocast_cache_enabled()
    assert before == after


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_no_operator_writes_to_what_another_one_made(name: str) -> None:
    _, graph = captured(name)
    assert not any(kinds.writes(kind) for kind in graph.count())
    seen = {*graph.parameters.values(), *graph.buffers.values(), *graph.batch.values(), *graph.constants}
    for operator in graph.operators:
        assert seen.issuperset(operator.reads)
        made = [value for value in operator.results if value is not None]
        assert seen.isdisjoint(made)
        seen.update(made)


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_what_computes_nothing_is_gone_and_views_are_marked(name: str) -> None:
    _, graph = captured(name)
    assert not {"aten.detach.default", "aten.alias.default", "aten.lift_fresh_copy.default"} & set(graph.count())
    read = {value for operator in graph.operators for value in operator.reads} | graph.results
    for operator in graph.operators:
        assert operator.is_random or not read.isdisjoint(operator.results), operator
        assert not operator.is_view or (operator.flops, operator.bytes_moved) == (0, 0)


def test_convolution_backward_is_two_operators_that_do_not_wait_for_each_other() -> None:
    _, graph = captured("resnet14")
    halves = [operator for operator in graph.operators if operator.kind == "aten.convolution_backward.default"]
    assert len(halves) == 13 + 12  # the first convolution has no use for the gradient of the images
    assert all(sum(operator.arguments[-1]) == 1 for operator in halves)
    for left, right in itertools.combinations(halves, 2):
        if left.forward == right.forward:
            assert not set(left.reads) & set(right.results)
            assert not set(right.reads) & set(left.results)
            assert left.reads == right.reads


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_backward_operators_know_the_forward_operator_and_module_they_belong_to(name: str) -> None:
    model, graph = captured(name)
    paths = {path for path, _ in model.named_modules()}
    heavy = [o for o in graph.operators if (o.flops > 100 and "mm" in o.kind) or "convolution" in o.kind]
    assert {operator.phase for operator in heavy} == {"forward", "backward"}
    for operator in heavy:
        assert operator.module in paths
        if operator.phase == "forward":
            assert operator.forward is None
        else:
            assert operator.forward is not None
            assert graph.operators[operator.forward].phase == "forward"
            assert graph.operators[operator.forward].module == operator.module


def test_operators_name_the_parameters_that_they_read_through_views() -> None:
    _, graph = captured("transformer")
    (product,) = [o for o in graph.operators if o.kind == "aten.addmm.default" and o.module == "blocks.0.expand"]
    assert product.parameters == ("blocks.0.expand.bias", "blocks.0.expand.weight")
    _, graph = captured("resnet14")
    (norm,) = [o for o in graph.operators if "batch_norm_legit" in o.kind and o.module == "norm"]
    assert norm.parameters == ("norm.weight", "norm.bias")


LSTMS = {
    "two layers": lambda: nn.LSTM(6, 8, num_layers=2, batch_first=True),
    "dropout, both directions": lambda: nn.LSTM(6, 8, num_layers=2, dropout=0.5, bidirectional=True, batch_first=True),
    "time first, no bias": lambda: nn.LSTM(6, 8, bias=False),
    "GRU, not oneDNN's": lambda: nn.GRU(6, 8, batch_first=True),
    "projections, not oneDNN's": lambda: nn.LSTM(6, 8, proj_size=4, batch_first=True),
    "float64, not oneDNN's": lambda: nn.LSTM(6, 8, batch_first=True).double(),
}


class Sequences(nn.Module):
    """What a recurrent layer makes of sequences."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, last = self.layer(inputs)
        return outputs.mean() + sum(part.sin().mean() for part in (last if isinstance(last, tuple) else (last,)))


@pytest.mark.parametrize("name", LSTMS)
def test_an_lstm_that_is_not_unrolled_is_eagers_bit_for_bit(name: str) -> None:
    torch.manual_seed(0)
    model = Sequences(LSTMS[name]())
    batch = torch.randn(2, 2, 6, dtype=next(model.parameters()).dtype)

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch)

    graph = bow.capture(model, batch, step=step, unrolled=False)
    is_library = "not oneDNN's" not in name and torch.backends.mkldnn.is_available()
    assert any(map(kinds.has_recurrent_layer, graph.operators)) == is_library
    assert not any(map(kinds.has_recurrent_layer, bow.capture(model, batch, step=step).operators))
    graph = StepGraph.from_json(graph.to_json())
    parameters, buffers = state(model)
    for native, seed in itertools.product((False, True), range(2)):
        with LocalRuntime(graph, use_native=native) as runtime, num_threads(1):
            outputs = runtime.run(parameters, buffers, batch, seed=seed)
            draws = [operator.index for operator in graph.operators if operator.is_random]
            with NumbersOfGraph(seed, draws):
                expected = Eager.step(model, lambda learner: learner(batch))
            if isinstance(model.layer, nn.GRU):  # whose gradients eager adds up in another order
                torch.testing.assert_close(outputs.gradients, expected.gradients)
            else:
                assert_equal(outputs, expected)


def test_a_recurrent_layer_counts_the_products_that_it_unrolls_to() -> None:
    model, batch = Sequences(nn.LSTM(64, 64, num_layers=2)), torch.randn(5, 4, 64)
    whole, unrolled = (
        bow.capture(model, batch, step=lambda model, batch: model(batch), unrolled=unrolled).flops
        for unrolled in (False, True)
    )
    assert whole == pytest.approx(unrolled, rel=0.15)  # the gradient of the input is in the whole layer


def test_copies_of_parameters_are_not_changed_by_the_optimizer() -> None:
    def step(model: Remembering, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return model(x).square().mean(), {"weight": model.linear.weight[0, 0]}

    model, x = Remembering(), torch.randn(3, 6)
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    graph = bow.capture(model, x, step=step, optimizer=sgd)
    before = model.linear.weight.detach().clone()
    outputs = graph.run(*state(model), x, optimizer=sgd(model.parameters()))
    assert not torch.equal(model.linear.weight, before)
    assert torch.equal(outputs.buffers["before"], before)
    assert torch.equal(outputs.buffers["row"], before[1])
    assert torch.equal(outputs.metrics["weight"], before[0, 0])
