"""The networks of the device placement paper, in its sizes, with a loss at every step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.placement_machine import K80
from bow.models import NETWORKS
from bow.models.networks import Size
from bow.models.recurrent import RNNLanguageModel, Translator
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.tiles.capture import capture_operators

ADAM, RMSPROP = 2.0, 1.0  # bytes of optimizer state for each byte of a weight


@dataclass(frozen=True)
class PlacedNetwork:
    title: str  # display name
    network: str  # key in `bow.models.NETWORKS`, which has its model and its batches
    step: Callable[[Any, Any], Tensor]  # `step(model, batch) -> loss`
    paper: Size  # size in the paper, section 4.1
    large: Size | None  # size in section 4.3, larger than a device; None: there is none
    tiny: Size  # a size for tests
    optimizer_bytes_per_weight_byte: float  # of the optimizer in the paper
    memory_gib: Mapping[str, float] = field(default_factory=dict)

    @property
    def sizes(self) -> Mapping[str, Size]:
        known = {"paper": self.paper, "large": self.large, "tiny": self.tiny}
        return {name: size for name, size in known.items() if size is not None}

    def memory(self, size: str) -> float:
        """Memory of each GPU in GiB."""
        return self.memory_gib.get(size, K80.memory_gib)

    def graph(self, size: Size) -> OperatorGraph:
        """Capture its step as operators; computes nothing, and allocates no weights."""
        network = NETWORKS[self.network]
        with torch.device("meta"):
            model = network.model(**size.arguments)
            batch = network.samples(size, size.batch)
        return capture_operators(model, batch, step=self.step).graph


def language_model_step(model: RNNLanguageModel, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A lookup, the cells, a prediction and its loss at each step, like graphs of the paper's time."""
    tokens, targets = batch
    outputs, _ = model.lstm(_looked_up(model.embedding, tokens))
    return _mean_loss([model.output(output) for output in outputs], targets)


def translation_step(model: Translator, batch: tuple[tuple[Tensor, Tensor], Tensor]) -> Tensor:
    """Lookups, cells, attention, prediction and loss at each step."""
    (source, target), targets = batch
    encoded, states = model.encoder(_looked_up(model.source_embedding, source))
    decoded, _ = model.decoder(_looked_up(model.target_embedding, target), states)
    values = torch.stack(list(encoded), dim=1)
    keys = model.attention.key(values)
    mixed = [torch.cat([step, model.attention(step, keys, values)], dim=1) for step in decoded]
    return _mean_loss([model.output(torch.tanh(model.mix(each))) for each in mixed], targets)


def image_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A forward pass and the cross entropy."""
    images, classes = batch
    return F.cross_entropy(model(images), classes)


def _looked_up(embedding: nn.Embedding, tokens: Tensor) -> list[Tensor]:
    return [embedding(step) for step in tokens.unbind(1)]


def _mean_loss(logits: list[Tensor], targets: Tensor) -> Tensor:
    losses = [F.cross_entropy(each, step) for each, step in zip(logits, targets.unbind(1), strict=True)]
    return torch.stack(losses).mean()


def _text(hidden: int, batch: int, length: int = 40, vocabulary: int = 10_000) -> Size:
    return Size({"vocabulary": vocabulary, "hidden": hidden, "layers": 2}, (length,), batch)


def _sentences(hidden: int, batch: int, length: int = 40, vocabulary: int = 32_000) -> Size:
    arguments = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary, "hidden": hidden, "layers": 2}
    return Size(arguments, (length, length), batch)


def _images(batch: int, pixels: int = 299, width: float = 1.0, classes: int = 1000) -> Size:
    return Size({"classes": classes, "channels": 3, "width": width, "dropout": 0.2}, (3, pixels, pixels), batch)


# By name on the command line
PLACED: Mapping[str, PlacedNetwork] = {
    "rnnlm": PlacedNetwork(
        "RNNLM",
        "rnnlm",
        language_model_step,
        _text(2048, 64),
        _text(4096, 256),
        _text(16, 4, 4, 50),
        ADAM,
        {"large": 5.0},
    ),
    "nmt": PlacedNetwork(
        "NMT",
        "nmt",
        translation_step,
        _sentences(1024, 64),
        _sentences(2048, 256),
        _sentences(16, 4, 4, 50),
        ADAM,
        {"paper": 3.5},
    ),
    "inception": PlacedNetwork(
        "Inception-v3", "inception", image_step, _images(32), None, _images(4, 75, 0.125, 10), RMSPROP
    ),
}
