import functools

import torch
from torch import nn

import bow
from bow.graph import StepGraph
from bow.models import LSTMLanguageModel, Transformer, sequence_cross_entropy
from bow.seeds import derive_seed
from tests.graph.cases import Eager, assert_equal, state


@functools.cache
def _with_dropout() -> tuple[nn.Module, StepGraph, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = Transformer(20, width=16, layers=1, context=8, dropout=0.3)
    batch = torch.randint(20, (2, 8)), torch.randint(20, (2, 8))
    return model, bow.capture(model, batch, sequence_cross_entropy), batch


def test_a_seed_repeats_the_step_whatever_was_drawn_before() -> None:
    model, graph, batch = _with_dropout()
    first = graph.run(*state(model), batch, seed=7)
    torch.rand(3)
    again = StepGraph.from_json(graph.to_json()).run(*state(model), batch, seed=7)
    assert torch.equal(first.loss, again.loss)
    assert all(torch.equal(gradient, again.gradients[name]) for name, gradient in first.gradients.items())


def test_learners_and_rounds_draw_different_numbers() -> None:
    model, graph, batch = _with_dropout()
    losses = {
        graph.run(*state(model), batch, seed=derive_seed(0, round_, learner)).loss.item()
        for round_ in range(2)
        for learner in range(2)
    }
    assert len(losses) == 4


def test_random_operators_of_one_step_draw_different_numbers() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Dropout(0.5))

    def step(learner, x):
        return (learner(x) - learner(x)).abs().sum()

    x = torch.ones(64, 1)
    assert bow.capture(model, x, step=step).run(*state(model), x, seed=0).loss.item() > 0


def test_a_seeded_step_leaves_the_callers_generator_alone() -> None:
    model, graph, batch = _with_dropout()
    before = torch.get_rng_state()
    graph.run(*state(model), batch, seed=7)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_the_numbers_are_those_of_eager_pytorch() -> None:
    model, graph, batch = _with_dropout()
    torch.manual_seed(3)
    outputs = graph.run(*state(model), batch)
    torch.manual_seed(3)
    assert_equal(outputs, Eager.step(model, lambda learner: sequence_cross_entropy(learner(batch[0]), batch[1])))


def test_masks_keep_the_memory_order_of_what_they_mask() -> None:
    torch.manual_seed(0)
    model = LSTMLanguageModel(20, 8, 16, dropout=0.3)  # batch_first: its outputs are transposed
    batch = torch.randint(20, (3, 2)), torch.randint(20, (3, 2))
    graph = bow.capture(model, batch, sequence_cross_entropy)
    masks = [operator for operator in graph.operators if operator.is_random]
    products = [o for o in graph.operators if o.kind == "aten.mul.Tensor" and o.module == "dropout"]
    forward = [product for product in products if product.phase == "forward"]
    assert (len(masks), len(forward)) == (3, 3)
    for product in forward:
        outputs, mask = (graph.values[value].strides for value in product.reads)
        assert outputs == mask
