import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bow
from bow.errors import GraphError
from bow.graph import StepGraph, kinds
from tests.graph.cases import captured, state


def _small() -> tuple[nn.Module, StepGraph, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2))
    batch = torch.randint(4, (5, 2)), torch.randint(2, (5,))
    return model, bow.capture(model, batch, F.cross_entropy), batch


def test_the_table_has_a_line_for_every_operator_and_one_that_sums_up() -> None:
    _, graph = captured("resnet14")
    summary, header, *lines = str(graph).splitlines()
    assert summary.startswith(f"{len(graph.operators)} operators (69 forward, 78 backward; ")
    assert header.split()[:3] == ["#", "phase", "operator"]
    assert len(lines) == len(graph.operators)
    assert "stages.1.0.conv1" in str(graph)
    assert repr(graph) == f"StepGraph({summary})"


def test_saving_and_loading_changes_nothing(tmp_path: Path) -> None:
    for name in ("resnet14", "lstm", "transformer"):
        _, graph = captured(name)
        graph.save(tmp_path / "graph.json")
        loaded = StepGraph.load(tmp_path / "graph.json")
        assert loaded.operators == graph.operators
        assert loaded.values == graph.values
        assert loaded.to_json() == graph.to_json()


def test_constants_that_are_conjugated_or_negated_by_a_bit_are_saved() -> None:
    turn = torch.tensor([1 + 2j, 3 - 4j]).conj()
    sign = torch._neg_view(torch.tensor([1.0, -2.0]))

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) * turn * turn.imag[:1] + sign).abs().sum()

    model, batch = nn.Linear(3, 2), torch.randn(4, 3)
    graph = bow.capture(model, batch, step=step)
    read = bow.StepGraph.from_json(graph.to_json())
    assert read.to_json() == graph.to_json()
    assert torch.equal(*(each.run(dict(model.named_parameters()), {}, batch).loss for each in (graph, read)))


def test_modules_may_have_names_with_braces() -> None:
    model = nn.ModuleDict({"{a}": nn.Linear(3, 2)})
    graph = bow.capture(model, torch.randn(4, 3), step=lambda model, batch: model["{a}"](batch).square().sum())
    assert set(graph.gradients) == {"{a}.weight", "{a}.bias"}


def test_infinite_numbers_are_valid_json() -> None:
    _, graph = captured("transformer")  # fills the future with -inf
    read = json.loads(graph.to_json(), parse_constant=pytest.fail)
    assert read["version"] == 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "[]", "is not a"),
        (lambda text: text.replace('"version": 1', '"version": 99'), "has version 99, this bow reads 1"),
        (lambda text: text.replace('"results"', '"resluts"'), "is damaged"),
    ],
)
def test_damaged_files_are_refused_in_one_sentence(change, match: str) -> None:
    _, graph, _ = _small()
    with pytest.raises(GraphError, match=match):
        StepGraph.from_json(change(graph.to_json()))


def test_an_operator_that_this_torch_does_not_have_is_named() -> None:
    model, graph, batch = _small()
    other = StepGraph.from_json(graph.to_json().replace("aten.addmm.default", "aten.addmm_of_old.default"))
    with pytest.raises(GraphError, match=r"no operator 'aten\.addmm_of_old\.default'"):
        other.run(*state(model), batch)


def test_tensors_that_do_not_fit_are_named() -> None:
    model, graph, (inputs, targets) = _small()
    parameters, buffers = state(model)
    with pytest.raises(GraphError, match=r"batch\[0\] is int64\[4, 2\], the graph was captured with int64\[5, 2\]"):
        graph.run(parameters, buffers, (inputs[:4], targets))
    with pytest.raises(GraphError, match=r"parameter 0\.weight is missing"):
        graph.run({n: p for n, p in parameters.items() if n != "0.weight"}, buffers, (inputs, targets))
    with pytest.raises(GraphError, match="buffer extra is not in the graph"):
        graph.run(parameters, {"extra": torch.zeros(1)}, (inputs, targets))


def test_a_batch_in_another_memory_order_is_put_in_order() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    inputs, targets = torch.randn(5, 2, 3), torch.randint(2, (5,))
    graph = bow.capture(model, (inputs, targets), F.cross_entropy)
    expected = graph.run(*state(model), (inputs, targets)).loss
    transposed = inputs.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(graph.run(*state(model), (transposed, targets)).loss, expected)


def test_an_operator_that_fails_is_named_with_its_shapes_and_the_graph_runs_on() -> None:
    model, graph, (inputs, targets) = _small()
    with pytest.raises(
        GraphError, match=r"operator 0, aten\.embedding\.default\(float32\[4, 3\], int64\[5, 2\]\) of 0"
    ):
        graph.run(*state(model), (inputs + 4, targets))
    assert graph.run(*state(model), (inputs, targets)).loss.isfinite()


def test_memory_goes_as_soon_as_its_last_reader_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph, batch = _small()
    made: list[weakref.ref[Tensor]] = []
    alive = []
    original = kinds.kernel_of

    def watched(kind: str):
        def call(*args, **kwargs):
            alive.append(sum(reference() is not None for reference in made))
            result = original(kind)(*args, **kwargs)
            made.extend(weakref.ref(r) for r in (result if isinstance(result, tuple) else (result,)) if r is not None)
            return result

        return call

    monkeypatch.setattr(kinds, "kernel_of", watched)
    outputs = graph.run(*state(model), batch)
    gc.collect()
    results = [outputs.loss, *outputs.gradients.values()]
    kept = {id(tensor) for result in results for tensor in (result, result._base)}
    assert {id(reference()) for reference in made if reference() is not None} <= kept
    assert max(alive) < len(made) / 2


def test_values_are_let_go_exactly_once_and_results_never() -> None:
    _, graph = captured("lstm")
    finished = [value for values in graph.last_uses for value in values]
    assert len(finished) == len(set(finished))
    assert not graph.results & set(finished)
    made = {value for operator in graph.operators for value in operator.results if value is not None}
    assert made <= graph.results | set(finished)
