"""One table for all networks of the papers: they fit their data, can be captured exactly, and learn."""

import functools
from collections.abc import Collection, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import bow
from bow.errors import SettingError
from bow.graph import StepGraph
from bow.models import NETWORKS
from tests.graph.cases import Eager, assert_equal, state
from tests.models.test_models import check_learning

SIZES = [
    (name, size)
    for name, network in NETWORKS.items()
    for size in network.sizes
    if size not in ("tiny", "flexflow")  # those are run in full below; these differ in the batch only
]
TWINS = {"rnnlm": "lstm"}
"""Networks of two papers that are the same one when tiny."""
DEEPER = {"resnet101": "resnet50"}
"""Networks that are another one with more of the same layers."""
KINDS = [name for name in NETWORKS if name not in TWINS | DEEPER]
ALONE = [name for name in KINDS if name != "dcgan"]
"""Networks whose loss can only fall while they learn, which that of two opponents need not; one of each kind."""


BY_DAY = ("lstm", "dcgan", "alexnet")
"""Of each kind the network that is captured fastest: recurrent, normalised with two losses, convolutional."""


def _wide(names: list[str], wide: Collection[str] = ("inception",)) -> list[object]:
    """With some in the wide table; inception has the layers of two others, and takes longest."""
    return [pytest.param(name, marks=pytest.mark.nightly) if name in wide else name for name in names]


@functools.cache
def captured(name: str) -> tuple[nn.Module, StepGraph]:
    """A tiny network and its graph, captured once for all tests."""
    torch.manual_seed(0)
    model = NETWORKS[name].build()
    return model, bow.capture(model, NETWORKS[name].batch(), NETWORKS[name].loss)


def test_twins_are_the_same_network() -> None:
    for name, other in TWINS.items():
        assert NETWORKS[name].model is NETWORKS[other].model
        assert NETWORKS[name].size("tiny") == NETWORKS[other].size("tiny")
    for name, other in DEEPER.items():
        assert NETWORKS[name].model is NETWORKS[other].model
        assert {**NETWORKS[name].size("tiny").arguments, "depth": 50} == NETWORKS[other].size("tiny").arguments


def tensors(nested: object) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, tuple):
        for part in nested:
            yield from tensors(part)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "size"), SIZES)
def test_every_size_fits_the_data_that_it_names(name: str, size: str) -> None:
    network = NETWORKS[name]
    with torch.device("meta"):  # tens of gigabytes otherwise
        inputs, targets = network.batch(size, samples=2)
        outputs = network.build(size)(inputs)
        assert network.loss(outputs, targets).shape == ()
    shape = (2, targets.shape[1]) if targets.dim() == 2 else (2,)
    assert {output.shape[: len(shape)] for output in tensors(outputs)} == {shape}


@pytest.mark.parametrize(
    ("name", "size", "image", "parameters", "products"),
    [
        ("googlenet", "small", 224, 6_624_904, 1.498e9),
        ("inception", "paper", 299, 23_834_568, 5.713e9),
        ("resnet50", "imagenet", 224, 25_557_032, 4.089e9),
        ("resnet101", "paper", 224, 44_549_160, 7.801e9),
        ("alexnet", "paper", 224, 61_100_840, 0.714e9),
    ],
)
def test_networks_have_as_many_parameters_and_products_as_torchvision_publishes(
    name: str, size: str, image: int, parameters: int, products: float
) -> None:
    with torch.device("meta"):
        model = NETWORKS[name].build(size).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, image, image))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert counter.get_total_flops() / 2 == pytest.approx(products, abs=1e6)


@pytest.mark.parametrize("name", _wide(KINDS, {*KINDS} - {*BY_DAY}))
def test_running_the_captured_step_equals_autograd_exactly(name: str) -> None:
    network, (model, graph) = NETWORKS[name], captured(name)
    inputs, targets = network.batch(seed=1)
    expected = Eager.step(model, lambda learner: network.loss(learner(inputs), targets))
    assert_equal(graph.run(*state(model), (inputs, targets)), expected)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", _wide(ALONE))
def test_training_on_one_batch_lowers_the_loss(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]
    model, (inputs, targets) = network.build(), network.batch()
    check_learning(model, lambda: network.loss(model(inputs), targets), rate=3e-3, steps=30, part=0.95)


@pytest.mark.parametrize("name", NETWORKS)
def test_batches_are_reproducible_and_leave_torch_s_generator_alone(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (list(tensors(NETWORKS[name].batch(seed=seed))) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(left, right) for left, right in zip(first, again, strict=True))
    assert not any(torch.equal(left, right) for left, right in zip(first, other, strict=True))


def test_a_batch_has_the_size_s_samples_or_as_many_as_are_asked_for() -> None:
    network = NETWORKS["alexnet"]
    with torch.device("meta"):
        assert [len(part) for part in network.batch("paper")] == [16, 16]
        assert [len(part) for part in network.batch("flexflow", samples=3)] == [3, 3]


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingError, match="one of tiny, small, medium, large for PathNet, got huge"):
        NETWORKS["pathnet"].build("huge")
    with pytest.raises(SettingError, match="samples must be at least 1, got 0"):
        NETWORKS["pathnet"].batch(samples=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "path"), [("lstm", "lstm.cells"), ("phased_lstm", "cells")])
def test_a_cell_waits_for_the_cells_before_and_below_it_only(name: str, path: str) -> None:
    """Cells on a diagonal of layers and steps can run at once: none is among what another one needs."""
    model, graph = captured(name)
    made_by = {value: operator.index for operator in graph.operators for value in operator.results if value is not None}
    needs: list[set[int]] = []
    for operator in graph.operators:
        direct = {made_by[value] for value in operator.reads if value in made_by}
        needs.append(direct.union(*(needs[index] for index in direct)))
    last_of_cell: dict[tuple[int, int], int] = {}
    for layer in range(len(model.get_submodule(path))):
        inside = f"{path}.{layer}" if name == "lstm" else f"{path}.{layer}.cell"
        hidden = [
            operator.index
            for operator in graph.operators
            if (operator.phase, operator.module, operator.kind) == ("forward", inside, "aten.tanh.default")
        ][1::2]  # each cell has one for its candidate, one for its output
        last_of_cell |= {(layer, step): index for step, index in enumerate(hidden)}
    assert len(last_of_cell) == 2 * 6
    for (layer, step), index in last_of_cell.items():
        needed = {cell for cell, other in last_of_cell.items() if other in needs[index]}
        assert needed == {
            (below, before)
            for below in range(layer + 1)
            for before in range(step + 1)
            if (below, before) != (layer, step)
        }
