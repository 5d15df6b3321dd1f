"""The model that `bow schedule` and `bow plan` work on: of a recipe, or a network of the papers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from bow.cli.checking import suggestion
from bow.engines import Step
from bow.errors import SettingError
from bow.planning.tiles.tile_costs import OPTIMIZER
from bow.replicas import OptimizerFactory

SIZE = "tiny"  # default size of a network


class Parts(NamedTuple):
    """A model, a learner's batch, the step of a learning task, and the optimizer's factory."""

    model: nn.Module
    batch: Any
    step: Step
    optimizer: OptimizerFactory


def parts(network: str, size: str, others: Sequence[str]) -> Parts:
    if not network and size:
        raise SettingError(f"size={size} is for network=NAME; give both, or leave it out")
    if network and others:
        raise SettingError(f"network={network} takes no settings of a model, got {others[0]!r}; leave one out")
    return _network(network, size or SIZE) if network else _recipe(others)


def _network(name: str, size: str) -> Parts:
    from bow.engines import step_from_loss
    from bow.models.networks import NETWORKS

    if name not in NETWORKS:
        raise SettingError(f"network={name!r} does not exist; {suggestion(name, NETWORKS)}")
    network = NETWORKS[name]
    if size not in network.sizes:
        raise SettingError(f"network={name} has no size {size!r}; {suggestion(size, network.sizes)}")
    return Parts(network.build(size), network.batch(size), step_from_loss(network.loss), OPTIMIZER)


def _recipe(words: Sequence[str]) -> Parts:
    from bow.cli.arguments import build
    from bow.cli.composition import compose
    from bow.engines import step_from_loss
    from bow.engines.captured import with_autocast
    from bow.training.batches import DataSource

    given = build(compose(words))
    opened = DataSource(given["data"], batch_size=given["batch_size"], epochs=1, steps=None, seed=given["seed"])
    step = with_autocast(given["step"] or step_from_loss(given["loss"]), torch.device("cpu"), given["engine"].precision)
    return Parts(given["model"](), opened.example, step, given["optimizer"])
