"""How many members train at once where the user does not say: measured on GPUs, by a rule of thumb on a CPU."""

import dataclasses
import math
from collections.abc import Callable, Iterable

import torch

from bow.devices import StreamDevice, available_cores, cuda_device
from bow.engines.memory import is_cpu
from bow.errors import SettingError
from bow.members.config import SweepConfig
from bow.members.member import Progress
from bow.replicas import prepare_template
from bow.sync import Members
from bow.training.batches import DataSource
from bow.training.replicas import ReplicasConfig
from bow.training.trials import MOST_CUDA, Request
from bow.training.tuning import tune
from bow.tuner import Tuner

MOST_ROWS = 16  # on a CPU rounded up to a multiple of the cores, so that none is idle at the end of a round


def rows_of_device(
    config: SweepConfig, waiting: Iterable[Progress], device: torch.device | StreamDevice, say: Callable[[str], None]
) -> tuple[int, int]:
    """Return how many members train at once on a device, and how many rows fit in its memory."""
    if isinstance(device, torch.device) and device.type == "cuda":
        device = cuda_device(device)
    on_cpu, is_search, members = is_cpu(device), config.search is not None, config.num_members
    rule = len(available_cores()) * math.ceil(MOST_ROWS / len(available_cores())) if on_cpu else MOST_ROWS
    asked = rule if config.at_once == "auto" else config.at_once
    engine = config.engine_name
    fitting = 2 * (asked if on_cpu or config.at_once != "auto" else MOST_CUDA)
    for kind, variant in {progress.kind: progress.member.variant for progress in waiting}.items():
        train = config.of(variant)
        opened = None if on_cpu else DataSource(train.data, **train.stream_settings)
        learners = ReplicasConfig(
            model=prepare_template(train.model, variant.seed),
            task=dataclasses.replace(train.task, batch_size=config.usual_batches.get(kind)),
            optimizer=train.optimizer,
            sync=Members(),
            device=device,
            buffers="average",
            example=None if opened is None or train.step is not None else opened.example,
        )
        fitting = max(1, learners.most_learners(engine, fitting))
    if config.at_once != "auto" and fitting < (asked if is_search else min(asked, members)):
        raise SettingError(f"at_once={asked} members do not fit in memory; use at_once={fitting}")
    # On a CPU nothing is measured: `graph` runs the turns of a member on one core, however many others there are,
    # `eager` runs members one after another, and rounds cost least with many members (docs/members.md has the times).
    # Nor for a search and asynchronous halving, whose results depend on the number. Of several kinds, one is measured.
    is_settled = is_search or (config.halving is not None and config.halving.asynchronous)
    if opened is None or config.at_once != "auto" or is_settled:
        return min(asked, fitting), fitting
    rounds = config.most_rounds[kind]
    most, batch = min(members, MOST_CUDA), opened.batch_size
    samples = None if rounds is None else rounds * batch * members
    in_all = None if rounds is None else math.ceil(rounds * members / min(rule, members))
    request = Request(engine, "auto", train.engine.compile, batch, most, samples, in_all, min(rule, members), learners)
    return tune(request, opened, Tuner(), loss=train.step_or_loss, say=say).learners, fitting
