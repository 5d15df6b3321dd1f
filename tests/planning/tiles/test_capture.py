"""Models as graphs of operators."""

from __future__ import annotations

import collections
import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import BowError, CaptureError, DataError, LossError
from bow.models import LSTMLanguageModel, ResNet, Transformer, sequence_cross_entropy
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules import RULES
from bow.planning.tiles import capture_operators
from tests.planning.tiles.equality import on_one_device

GENERATOR = torch.Generator()


def kinds(graph: OperatorGraph) -> dict[str, int]:
    return dict(collections.Counter(operator.kind for operator in graph.operators))


def named(graph: OperatorGraph, name: str) -> PlanOperator:
    return next(operator for operator in graph.operators if operator.name == name)


class Net(nn.Module):
    """A bit of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.0)
        self.output = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(self.act(self.norm(self.conv(images))), 2)
        return self.output(self.drop(features.flatten(1)))  # type: ignore[no-any-return]


IMAGES = torch.randn(6, 3, 4, 4), torch.randint(5, (6,))


def test_operators_are_layers() -> None:
    graph = capture_operators(Net(), IMAGES, F.cross_entropy).graph
    assert [(operator.name, operator.kind) for operator in graph.operators] == [
        ("conv", "conv2d"),
        ("norm", "batch_norm"),
        ("act", "pointwise"),
        ("max_pool2d", "max_pool2d"),
        ("flatten", "reshape"),
        ("output", "linear"),
        ("loss.cross_entropy_loss", "cross_entropy"),
        ("loss.cross_entropy_loss.mean", "counted_mean"),
    ]
    assert named(graph, "conv").weights == ("conv.weight", "conv.bias")
    assert named(graph, "output").flops == 2 * 6 * 16 * 5
    assert graph.tensors[graph.loss].shape == ()
    assert [RULES.dimensions(o, graph)[0].kind for o in graph.operators[:-1]] == ["S"] * 7


def test_gradients_flow_from_the_weights_on() -> None:
    graph = capture_operators(Net(), IMAGES, F.cross_entropy).graph
    flows = {number: tensor.differentiable for number, tensor in graph.tensors.items()}
    assert [flows[number] for number in graph.batch] == [False, False]
    assert all(flows[number] for operator in graph.operators for number in operator.outputs)


def test_a_graph_is_the_same_every_time() -> None:
    one, other = (capture_operators(Net(), IMAGES, F.cross_entropy).graph for _ in range(2))
    assert one.hash == other.hash
    larger = torch.randn(8, 3, 4, 4), torch.randint(5, (8,))
    assert capture_operators(Net(), larger, F.cross_entropy).graph.hash != one.hash


def test_a_tensor_that_stands_twice_in_a_batch_is_two_inputs() -> None:
    """As targets that are the inputs, of autoencoders and language models: a loader's batches have two tensors."""
    model, inputs = nn.Linear(3, 3), torch.randn(4, 3)
    twice = capture_operators(model, (inputs, inputs), F.mse_loss)
    apart = capture_operators(model, (inputs, inputs.clone()), F.mse_loss)
    assert twice.graph.hash == apart.graph.hash


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_dropout_in_place_is_dropout(p: float) -> None:
    batch = torch.randn(4, 3), torch.randn(4, 2)
    graphs = []
    for inplace in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(p, inplace=inplace), nn.Linear(5, 2))
        graphs.append(capture_operators(model, batch, F.mse_loss).graph)
    assert graphs[0].hash == graphs[1].hash
    assert kinds(graphs[1]).get("dropout", 0) == (p > 0)


def test_a_model_is_not_changed() -> None:
    model = Net()
    before, weights = copy.deepcopy(model.state_dict()), [id(parameter) for parameter in model.parameters()]
    capture_operators(model, IMAGES, F.cross_entropy)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [id(parameter) for parameter in model.parameters()] == weights


def test_recurrent_layers_are_written_out() -> None:
    model = LSTMLanguageModel(11, embedding=3, hidden=4, layers=2)
    tokens = torch.randint(11, (2, 5))
    graph = capture_operators(model, (tokens, tokens), sequence_cross_entropy).graph
    cells = [operator for operator in graph.operators if operator.kind == "lstm_cell"]
    assert [cell.name for cell in cells[:3]] == ["lstms.0.0", "lstms.0.0@1", "lstms.0.0@2"]
    assert collections.Counter(cell.layer for cell in cells) == {"lstms.0.0": 5, "lstms.1.0": 5}
    assert graph.weights["lstms.0.weight_ih_l0"].shape == (4, 4, 3)
    assert kinds(graph)["stack"] == 2


@pytest.mark.parametrize("settings", [{}, {"batch_first": True}, {"bidirectional": True}, {"bias": False}], ids=str)
def test_a_written_out_layer_is_the_layer(settings: dict[str, Any]) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, num_layers=2, **settings)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs, (hidden, cell) = self.lstm(inputs)
            return torch.cat([outputs.flatten(), hidden.flatten(), cell.flatten()])

    torch.manual_seed(0)
    model = Recurrent().double()
    inputs = torch.randn(5, 2, 3, dtype=torch.float64)
    compare(model, (inputs, torch.randn_like(model(inputs))), F.mse_loss)


def compare(model: nn.Module, batch: Any, loss: Callable[[Any, Any], Tensor]) -> OperatorGraph:
    """A captured step on one device, against the step itself."""
    captured = capture_operators(model, batch, loss)
    expected = loss(model(batch[0]), batch[1])
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    gradients = torch.autograd.grad(expected, parameters, allow_unused=True)
    runtime = on_one_device(captured, model)
    torch.testing.assert_close(runtime.step(batch, 0), expected.detach(), rtol=1e-10, atol=1e-12)
    found = runtime.gradients()
    assert found.keys() == {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is not None:
            torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)
    return captured.graph


def test_samples_are_followed_through_a_transformer() -> None:
    model = Transformer(11, width=8, heads=2, layers=1, context=8).double()
    tokens = torch.randint(11, (4, 6))
    graph = compare(model, (tokens, tokens), sequence_cross_entropy)
    assert not any(operator.kind.startswith("aten.") for operator in graph.operators)
    by_head = next(o for o in graph.operators if o.kind == "permute" and len(graph.output_shape(o)) == 5)
    assert [each.kind for each in RULES.dimensions(by_head, graph)] == ["A", "S", "A", "A", "A"]
    scores = next(operator for operator in graph.operators if operator.kind == "matmul")
    assert RULES.dimensions(scores, graph)[0].kind == "S"


def test_an_operator_without_a_rule_keeps_its_name() -> None:
    class Ranked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            values, _ = self.norm(self.linear(inputs)).sort(dim=1)
            return torch.einsum("ij,ij->i", values, values.cumsum(1))

    graph = compare(Ranked().double(), (torch.randn(3, 4).double(), torch.randn(3).double()), F.mse_loss)
    whole = [operator for operator in graph.operators if operator.kind not in RULES]
    assert [operator.kind for operator in whole] == [
        "aten.group_norm.default",
        "aten.sort.default",
        "aten.cumsum.default",
        "aten.einsum.default",
    ]
    assert whole[0].weights == ("norm.weight", "norm.bias")
    assert all(each.kind is None for operator in whole for each in RULES.dimensions(operator, graph))


def test_parameters_may_stand_anywhere() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.output = nn.Linear(4, 7)
            self.output.weight = self.table.weight  # tied
            self.shift = nn.Parameter(torch.randn(1, 4))
            self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
            self.unused = nn.Parameter(torch.randn(4))

        def forward(self, tokens: Tensor) -> Tensor:
            features = self.shift[0] - self.table(tokens) * self.frozen
            return self.output(features + self.table.weight.detach()[0] + torch.ones(4).cumsum(0))  # type: ignore[no-any-return]

    model = Odd().double()
    graph = compare(model, (torch.tensor([1, 3, 0]), torch.tensor([2, 2, 5])), F.cross_entropy)
    assert set(graph.weights) == {"table.weight", "output.bias", "shift", "frozen"}
    assert not graph.weights["frozen"].differentiable
    readers = [operator.name for operator in graph.operators if "table.weight" in operator.weights]
    assert readers == ["table", "detach", "output"]


def test_constants_come_with_the_batch() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("scale", torch.arange(4.0))

        def forward(self, inputs: Tensor) -> Tensor:
            mask = torch.ones(4, 4).triu(1).bool()
            hidden = inputs.new_zeros(len(inputs), 4) + self.linear(inputs)
            return (hidden @ torch.ones(4, 4).masked_fill(mask, 0.5).to(inputs.dtype)) * (self.scale + 1)

    graph = compare(Masked().double(), (torch.randn(3, 4).double(), torch.randn(3, 4).double()), F.mse_loss)
    assert kinds(graph) == {"linear": 1, "pointwise": 3, "matmul": 1, "reduction": 2}
    assert [graph.tensors[number].shape for number in graph.batch] == [(3, 4), (3, 4), (3, 4), (4, 4), (4,)]


def test_what_is_captured_can_be_sent_to_other_processes() -> None:
    model, batch = Transformer(11, width=8, heads=2, layers=1, context=8), torch.randint(11, (2, 3, 6))
    captured = capture_operators(model, (batch[0], batch[1]), sequence_cross_entropy)
    again = pickle.loads(pickle.dumps(captured))
    assert again.graph.hash == captured.graph.hash
    one, other = (each.constants(model, torch.device("cpu")) for each in (captured, again))
    (mask,) = one
    assert torch.equal(one[mask], torch.ones(6, 6, dtype=torch.bool).triu(1))
    assert torch.equal(one[mask], other[mask])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_are_taken_apart(reduction: str) -> None:
    model = nn.Linear(3, 4).double()
    targets = torch.tensor([1, -100, 3, 0, -100])
    inputs = torch.randn(5, 3).double()
    losses: list[tuple[Callable[..., Tensor], Tensor]] = [
        (functools.partial(F.cross_entropy, label_smoothing=0.1, reduction=reduction), targets),
        (F.cross_entropy, torch.rand(5, 4).double()),
        (functools.partial(F.cross_entropy, weight=torch.rand(4).double()), targets),
        (functools.partial(F.smooth_l1_loss, beta=0.5, reduction=reduction), torch.randn(5, 4).double()),
        (functools.partial(F.binary_cross_entropy_with_logits, reduction=reduction), torch.rand(5, 4).double()),
        (lambda outputs, wanted: F.nll_loss(outputs.log_softmax(1), wanted, reduction=reduction), targets),
        (lambda outputs, wanted: (outputs - wanted).abs().mean(), torch.randn(5, 4).double()),
    ]
    for loss, wanted in losses:
        compare(model, (inputs, wanted), loss)


def test_a_step_takes_any_batch() -> None:
    model = nn.Linear(3, 1)
    batch = {"x": torch.randn(4, 3), "y": [torch.randn(4, 1)]}
    captured = capture_operators(model, batch, step=lambda model, b: F.mse_loss(model(b["x"]), b["y"][0]))
    assert [captured.graph.tensors[number].shape for number in captured.inputs] == [(4, 3), (4, 1)]
    assert captured.leaves(batch, torch.device("cpu"))[captured.inputs[1]] is batch["y"][0]
    with pytest.raises(
        DataError, match=r"tensor 0 of the batch has shape \(5, 3\), the partition was planned for \(4, 3\)"
    ):
        captured.leaves({"x": torch.randn(5, 3), "y": [torch.randn(4, 1)]}, torch.device("cpu"))


def module(forward: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    """A model of one linear layer with another forward pass."""
    model = nn.Linear(4, 4)
    model.register_buffer("seen", torch.zeros(4))
    model.register_buffer("calls", torch.zeros((), dtype=torch.long))
    kind = type("Model", (nn.Linear,), {"forward": forward})
    model.__class__ = kind
    return model


def on_a_buffer_at_last(model: Any, inputs: Tensor) -> Tensor:
    model.seen.copy_(inputs.mean())
    return F.linear(inputs, model.weight)


def on_rows_of_a_buffer_at_last(model: Any, inputs: Tensor) -> Tensor:
    for value in model.seen:
        value.copy_(inputs.mean())
    return F.linear(inputs, model.weight)


def adding_a_counter(model: Any, inputs: Tensor) -> Tensor:
    model.calls += 1
    outputs = F.linear(inputs, model.weight)
    outputs += model.calls
    return outputs


def on_an_assigned_buffer(model: Any, inputs: Tensor) -> Tensor:
    outputs = F.linear(inputs, model.weight)
    model.seen = 0.9 * model.seen + 0.1 * outputs.detach().mean(0)
    return outputs - model.seen


def on_a_part(model: Any, inputs: Tensor) -> Tensor:
    outputs = F.linear(inputs, model.weight)
    outputs[:, 0] = 0
    return outputs


def on_running_statistics(model: Any, inputs: Tensor) -> Tensor:
    return F.instance_norm(F.linear(inputs, model.weight).view(-1, 4, 4), model.seen, model.seen + 1).view(-1, 4)


def by_autocast(model: Any, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(inputs, model.weight)


def in_place(model: Any, inputs: Tensor) -> Tensor:
    hidden = F.linear(inputs, model.weight)
    view = hidden[:, 1:]
    hidden.add_(1)
    return hidden * view.sum()


def in_place_inside_disabled_autocast(model: Any, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        hidden = F.linear(inputs, model.weight)
        with torch.no_grad():
            hidden.mul_(2)
    return hidden


def in_place_without_gradient(model: Any, inputs: Tensor) -> Tensor:
    hidden = F.linear(inputs, model.weight)
    with torch.no_grad():
        hidden.view(-1).mul_(2)
    return hidden


def positive(model: Any, inputs: Tensor) -> Tensor:
    outputs = F.linear(inputs, model.weight)
    return outputs + outputs[outputs > 0].sum()


def counting(model: Any, inputs: Tensor) -> Tensor:
    model.in_features += 1
    return F.linear(inputs, model.weight) / model.in_features


def drawing(model: Any, inputs: Tensor) -> Tensor:
    return F.linear(inputs, model.weight) * torch.rand(4, generator=GENERATOR)


def on_a_buffer(model: Any, inputs: Tensor) -> Tensor:
    model.seen.mul_(0.9)
    return F.linear(inputs, model.weight) * model.seen


@pytest.mark.parametrize(
    ("forward", "error", "message"),
    [
        (lambda m, x: F.linear(x, m.weight) * torch.rand(4), CaptureError, "draws random numbers with aten.rand"),
        (
            lambda m, x: F.rrelu(F.linear(x, m.weight), training=True),
            CaptureError,
            "draws random numbers with aten.rrelu",
        ),
        (
            lambda m, x: F.linear(x, m.weight) * float(x.sum()),
            CaptureError,
            "(reads a tensor's value in Python|branches).*, or train without a partition",
        ),
        (positive, CaptureError, "shape depends on values.* aten.index.Tensor.*, or train without a partition"),
        (
            lambda m, x: F.linear(x, m.weight) + m.weight.repeat_interleave(torch.ones(4, dtype=torch.long), 1).sum(),
            CaptureError,
            "reads a value, in aten.repeat_interleave",
        ),
        (drawing, CaptureError, "draws from a torch.Generator; use torch's default"),
        (counting, CaptureError, "changes attribute 'in_features' of the model.*, or train without a partition"),
        (in_place, CaptureError, "changes a tensor in place .* that is used again elsewhere"),
        (on_a_buffer, CaptureError, "in place .*; change nothing but counters, or train without a partition"),
        (on_a_buffer_at_last, CaptureError, "in place .*; change nothing but counters"),
        (on_rows_of_a_buffer_at_last, CaptureError, "in place .*; change nothing but counters"),
        (adding_a_counter, CaptureError, "calls in place .*; change nothing but counters"),
        (on_an_assigned_buffer, CaptureError, "change nothing but counters"),
        (on_a_part, CaptureError, "changes a tensor in place .* that is used again elsewhere"),
        (on_running_statistics, CaptureError, "running statistics of instance norm; set track_running_stats=False, or"),
        (by_autocast, CaptureError, "wrap_with_autocast.*leave out autocast.*, or train without a partition"),
        (in_place_without_gradient, CaptureError, "in place under torch.no_grad.*; change a copy"),
        (in_place_inside_disabled_autocast, CaptureError, "in place under torch.no_grad.*; change a copy"),
        (lambda m, x: F.linear(x, m.weight.detach()), LossError, "the loss does not depend on the model's parameters"),
        (lambda m, x: x * 2, LossError, "the loss does not depend on the model's parameters"),
    ],
)
def test_what_cannot_be_captured_is_refused(
    forward: Callable[[Any, Tensor], Tensor],
    error: type[BowError],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    batch = torch.randn(4, 4), torch.randn(4, 4)
    with pytest.raises(error, match=message) as raised:
        capture_operators(module(forward), batch, F.mse_loss)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("layer", [nn.GRU, nn.RNN, functools.partial(nn.LSTM, proj_size=2)])
def test_recurrent_layers_that_cannot_be_split_stay_whole_and_may_drop_nothing(layer: Callable[..., nn.Module]) -> None:
    class Recurrent(nn.Module):
        def __init__(self, **settings: Any) -> None:
            super().__init__()
            self.layer = layer(4, 3, 2, batch_first=True, **settings)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs)[0].mean(2)  # type: ignore[no-any-return]

    batch = torch.randn(5, 6, 4), torch.randn(5, 6)
    model = Recurrent()
    captured = capture_operators(model, batch, F.mse_loss)
    assert captured.graph.operators[0].kind.startswith("aten.")
    made = on_one_device(captured, model).step(batch, 0)
    torch.testing.assert_close(made, F.mse_loss(model(batch[0]), batch[1]).detach())
    with pytest.raises(CaptureError, match="draws random numbers"):
        capture_operators(Recurrent(dropout=0.5), batch, F.mse_loss)


class Regions(nn.Module):
    """Has regions that compute without gradients, and without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.one(inputs)
        with torch.no_grad():
            factor = self.other(inputs)
            with torch.autocast("cpu", enabled=False):
                factor = factor.sigmoid().mul_(2) + hidden
            itself, view, copied = hidden.to(hidden.dtype), hidden.view(-1, 4), hidden.clone().mul_(2)
        with torch.autocast("cpu", enabled=False):
            outputs = self.other(hidden) * factor + itself
            with torch.no_grad():
                outputs = outputs + inputs * self.one(inputs).clone().mul_(2)
                with torch.autocast("cpu", enabled=False), torch.enable_grad():
                    outputs = outputs + self.one(inputs)
            outputs = outputs + self.one(inputs)
        with torch.no_grad():
            pass
        return outputs + view * copied  # type: ignore[no-any-return]


def test_regions_without_gradients_or_autocast_are_part_of_the_graph() -> None:
    torch.manual_seed(0)
    model = Regions().double()
    inputs = torch.randn(3, 4, dtype=torch.float64)
    graph = compare(model, (inputs, torch.randn_like(inputs)), F.mse_loss)
    assert [name for name in kinds(graph) if "wrap" in name] == []


_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_causal_models_of_transformers_are_captured(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, vocab_size=11, max_position_embeddings=32, **_SMALL)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    tokens = torch.randint(11, (4, 6))
    compare(model, (tokens, tokens), lambda outputs, targets: sequence_cross_entropy(outputs.logits, targets))


class Keeping(nn.Module):
    """Keeps a tensor as an attribute: the first, or its last features too, which the next pass reads."""

    def __init__(self, carries: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.carries, self.kept = carries, None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.arange(4.0)
        features = self.layer(inputs) + self.kept
        if self.carries:
            self.kept = features.detach()
        return features  # type: ignore[no-any-return]


def test_an_attribute_may_be_computed_once_and_kept_but_not_carried_on() -> None:
    batch = torch.randn(6, 4), torch.randint(4, (6,))
    model = Keeping(carries=False)
    graph = capture_operators(model, batch, F.cross_entropy).graph
    assert graph == capture_operators(model, batch, F.cross_entropy).graph
    assert model.kept is None
    model(batch[0])
    assert graph == capture_operators(model, batch, F.cross_entropy).graph
    with pytest.raises(CaptureError, match="changes attribute 'kept'"):
        capture_operators(Keeping(carries=True), batch, F.cross_entropy)


def test_one_of_loss_and_step_is_wanted() -> None:
    with pytest.raises(LossError, match="give either loss or step, got neither"):
        capture_operators(Net(), IMAGES)


def test_a_residual_network_keeps_its_shortcuts() -> None:
    model = ResNet(8, width=4).double()
    batch = torch.randn(4, 3, 8, 8).double(), torch.randint(10, (4,))
    found = kinds(compare(model, batch, F.cross_entropy))
    assert (found["conv2d"], found["batch_norm"], found["pad"], found["slice"]) == (7, 7, 2, 4)
