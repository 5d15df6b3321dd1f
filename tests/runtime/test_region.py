"""Compiled regions: the numbers of the graph, to rounding."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bow
from bow.errors import RuntimeUnavailableError
from bow.graph import StepGraph
from bow.models import LSTMLanguageModel, ResNet, Transformer, sequence_cross_entropy
from bow.runtime.job import JobBuilder
from bow.runtime.loading import native
from bow.runtime.region import as_module, compile_region


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(10, (2, 4)), torch.randint(10, (2, 4))


CASES = {
    "mlp-dropout": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3)),
        lambda: (torch.randn(4, 6), torch.randint(3, (4,))),
        F.cross_entropy,
    ),
    "resnet8": (
        lambda: ResNet(8, width=4),
        lambda: (torch.randn(2, 3, 8, 8), torch.randint(10, (2,))),
        F.cross_entropy,
    ),
    "lstm": (lambda: LSTMLanguageModel(10, 8, 8, layers=2), tokens, sequence_cross_entropy),
    "transformer-dropout": (lambda: Transformer(10, context=4, dropout=0.3), tokens, sequence_cross_entropy),
}


def run_region(graph: StepGraph, model: nn.Module, batch: tuple[Tensor, Tensor], seed: int) -> dict[str, Tensor]:
    """Loss, gradients and buffers by the compiled region."""
    builder = JobBuilder([graph], [compile_region(graph)])
    (program,) = builder.copies
    builder.bind(program, dict(model.named_parameters()), dict(model.named_buffers()))
    builder.job.expect(0, list(graph.batch.values()), list(batch))
    assert builder.job.feed(0, list(batch), seed)
    builder.job.schedule(order=[program.nodes], priority=[], num_lanes=1)
    builder.job.run(native().Team([[0]], [1]))
    named = {"loss": graph.loss, **graph.gradients, **graph.new_buffers}
    return {name: builder.job.value(value) for name, value in named.items()}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_region_equals_its_graph_to_rounding(name: str) -> None:
    build, make_batch, loss = CASES[name]
    torch.manual_seed(0)
    model = build().double()
    as_double = [tensor.double() if tensor.is_floating_point() else tensor for tensor in make_batch()]
    graph = bow.capture(model, tuple(as_double), loss)
    for seed in (1, 2):
        batch = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in make_batch())
        expected = graph.run(dict(model.named_parameters()), dict(model.named_buffers()), batch, seed=seed)
        made = run_region(graph, model, batch, seed)
        torch.testing.assert_close(made["loss"], expected.loss, rtol=0, atol=1e-10)
        for group in (expected.gradients, expected.buffers):
            torch.testing.assert_close({n: made[n] for n in group}, group, rtol=0, atol=1e-10)


def test_random_numbers_that_depend_on_computed_values_are_not_compiled() -> None:
    class Sampling(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            made = super().forward(inputs)
            return made * torch.bernoulli(torch.sigmoid(made.detach()))

    model = Sampling(4, 2)
    graph = bow.capture(model, (torch.randn(3, 4), torch.randint(2, (3,))), F.cross_entropy)
    with pytest.raises(RuntimeUnavailableError, match=r"aten.bernoulli.default draws .* runs operator by operator"):
        compile_region(graph)


def test_the_function_that_is_compiled_is_the_graph() -> None:
    model = nn.Linear(4, 2)
    batch = torch.randn(3, 4), torch.randint(2, (3,))
    graph = bow.capture(model, batch, F.cross_entropy)
    reads = [*graph.parameters.values(), *graph.batch.values()]
    makes = [graph.loss, *graph.gradients.values()]
    module = as_module(graph.operators, reads, makes)
    with torch.no_grad():
        loss, *gradients = module(*model.parameters(), *batch)
    expected = graph.run(dict(model.named_parameters()), {}, batch)
    assert torch.equal(loss, expected.loss)
    assert all(map(torch.equal, gradients, expected.gradients.values()))
