"""Models that compute their loss themselves, by Hugging Face's convention, beside the loop that their users write."""

from __future__ import annotations

import functools
import itertools
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import bow
from benchmarks.models import let_torchvision_be_imported
from bow.errors import BowError, LossError, ModelError
from tests.training.blueprints import Behind, assert_equal_models, dealt

Data = dict[str, Tensor]

# Biases of keys in attention have no gradient but rounding noise, which AdamW would divide by itself.
OPTIMIZER = functools.partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.01, eps=1e-3)
WORDS, LENGTH, SAMPLES = 30, 8, 20


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Tied(nn.Module):
    """A language model of the same conventions: keywords, an object with a loss, an output that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Output:
        logits = self.head(self.inner(self.embedding(input_ids)).tanh())
        loss = None if labels is None else F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])
        return Output(loss, logits)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Output:
        logits = self.head(self.embedding(input_ids).mean(1))
        return Output(None if labels is None else F.cross_entropy(logits, labels), logits)


def gpt2() -> nn.Module:
    let_torchvision_be_imported()  # which transformers import where it is there
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **off))


def bert() -> nn.Module:
    let_torchvision_be_imported()  # which transformers import where it is there
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 16, "max_position_embeddings": LENGTH, "classifier_dropout": 0.0}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, **more, **off))


def words() -> Tensor:
    return torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(3))


def of_tokens() -> Data:
    return {"input_ids": words(), "labels": words()}


def of_samples() -> Data:
    return {"input_ids": words(), "labels": words()[:, 0] % 2}


def masked() -> Data:
    return {**of_samples(), "attention_mask": (torch.arange(LENGTH) < LENGTH - 2).long().expand(SAMPLES, -1)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data]]] = {
    "tied": (Tied, of_tokens),
    "classifier": (Classifier, of_samples),
    "gpt2": (gpt2, of_tokens),
    "bert": (bert, masked),
}


def made(name: str) -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    build, data = MODELS[name]
    return build(), data()


def train(model: nn.Module, data: Any, folder: Path, **settings: Any) -> bow.Result:
    run = bow.Run(folder / "run", progress=False)
    defaults = {"optimizer": OPTIMIZER, "learners": 1, "engine": "eager", "devices": "cpu", "run": run}
    return bow.train(model, data, **{**defaults, **settings})


def native(model: nn.Module, data: Data, steps: int) -> list[float]:
    """What a user of such models writes, with the order of the samples taken from bow."""
    optimizer, losses = OPTIMIZER(model.parameters()), []
    for batch in itertools.islice(dealt(data, 4, steps=steps), steps):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(name, engine, marks=[pytest.mark.nightly] * ((name, engine) == ("bert", "graph")))
        for name in MODELS
        for engine in ("eager", "graph")
    ],
)
def test_one_learner_has_the_loss_curve_of_the_native_loop(name: str, engine: str, tmp_path: Path) -> None:
    (model, data), losses = made(name), []
    noting = Behind(lambda run: losses.extend(run.replicas.last.losses.tolist()))
    result = train(model, data, tmp_path, engine=engine, batch_size=4, steps=6, callbacks=[noting])
    assert result.engine == engine
    expected, _ = made(name)
    expected.train()
    assert losses == pytest.approx(native(expected, data, 6), rel=1e-6)
    for own, other in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["tied", "gpt2"])
def test_tied_weights_load_strictly_again(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = made(name)
    run = bow.Run(tmp_path / "run")
    result = train(model, data, tmp_path, learners=2, batch_size=4, run=run)
    again, _ = made(name)
    assert result.model_path is not None
    assert load_model(again, result.model_path, strict=True) == (set(), [])
    assert_equal_models(again, result.model)
    with pytest.raises(RuntimeError, match="Missing key"):  # which is why the output says how
        again.load_state_dict(load_file(result.model_path))
    assert "tied weights are stored once" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_result_is_saved_as_hugging_face_reads_it(name: str, tmp_path: Path) -> None:
    model, data = made(name)
    result = train(model, data, tmp_path, batch_size=4)
    result.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")
    assert_equal_models(again, result.model)


def test_other_models_have_no_way_to_be_saved_so(tmp_path: Path) -> None:
    result = train(*made("tied"), tmp_path)
    with pytest.raises(ModelError, match=r"Tied has no save_pretrained; .*load_model"):
        result.save_pretrained(tmp_path / "saved")


def test_metrics_are_those_of_labels_of_samples_only(tmp_path: Path) -> None:
    model, data = made("classifier")
    result = train(model, data, tmp_path, validation=data)
    with torch.no_grad():
        logits = result.model(data["input_ids"]).logits
    assert result.metrics["accuracy"] == pytest.approx(float((logits.argmax(1) == data["labels"]).float().mean()))
    assert result.metrics["loss"] == pytest.approx(float(F.cross_entropy(logits, data["labels"])))
    assert bow.evaluate(result.model, data) == pytest.approx(result.metrics)
    tokens = train(*made("tied"), tmp_path / "tokens", validation=of_tokens())
    assert list(tokens.metrics) == ["loss"]


def test_what_a_tokenizer_gives_is_a_dictionary_too(tmp_path: Path) -> None:
    model, data = made("classifier")
    rows = [{name: value[index] for name, value in data.items()} for index in range(SAMPLES)]

    def collate(samples: list[Data]) -> UserDict[str, Tensor]:
        return UserDict({name: torch.stack([sample[name] for sample in samples]) for name in data})

    loader = DataLoader(rows, batch_size=5, collate_fn=collate)  # type: ignore[arg-type]
    expected = train(model, DataLoader(rows, batch_size=5), tmp_path / "plain")  # type: ignore[arg-type]
    result = train(model, loader, tmp_path, validation=loader)
    assert result.history[-1]["train_loss"] == expected.history[-1]["train_loss"]


def test_members_take_them(tmp_path: Path) -> None:
    data = of_samples()
    settings = {"optimizer": OPTIMIZER, "engine": "eager", "validation": data}
    run = bow.Run(tmp_path / "sweep", progress=False)
    swept = bow.sweep(Classifier, data, variants=bow.grid(seed=range(2)), run=run, **settings)
    torch.set_num_threads(1)
    alone = train(Classifier, data, tmp_path, seed=1, **settings)
    assert swept[1].metrics == alone.metrics


@pytest.mark.parametrize(
    ("model", "data", "error", "message"),
    [
        (Classifier(), {"input_ids": words()}, LossError, "the model returns Output without a loss; give it labels"),
        (Classifier(), {"inputs": words()}, ModelError, "unexpected keyword argument 'inputs'"),
    ],
)
def test_what_has_no_loss_is_refused(
    model: nn.Module, data: Any, error: type[BowError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        train(model, data, tmp_path)
    assert not list(tmp_path.iterdir())
