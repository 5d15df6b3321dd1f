"""Preparation of a training, before anything is written: check settings, open data, try the first batch."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from bow.cluster import WorkerJob, is_leader, is_member
from bow.devices import StreamDevice
from bow.engines import choose_learners
from bow.errors import SettingError
from bow.observe import ProgressBar
from bow.replicas import prepare_template
from bow.training.batches import DataSource, check_round
from bow.training.checks import all_labels, check_first_batch, choose_devices
from bow.training.config import TrainConfig
from bow.training.epoch import MOST_LOST
from bow.training.evaluation import Evaluator
from bow.training.replicas import ReplicasConfig
from bow.training.trials import Request
from bow.training.tuning import make_request

if TYPE_CHECKING:
    from bow.training.placed import Placed


@dataclass(frozen=True)
class Prepared:
    """A validated training, ready to begin."""

    config: TrainConfig
    place: torch.device
    count: int | None  # number of devices; None: one per process
    job: WorkerJob | None  # to run in other processes; None: this one starts none
    opened: DataSource
    evaluator: Evaluator | None
    request: Request
    placed: "Placed | None"


def prepare(config: TrainConfig, pack: Callable[[int | None], WorkerJob | None]) -> Prepared:
    step, learners = config.step_or_loss, config.num_learners
    device, count = choose_devices(config.devices.count)
    engine, schedule, partition = config.engine.runner, None, config.partition
    if config.engine.schedule is not None:
        from bow.training.schedule import decide, engine_with, read_schedule  # few trainings need it

        schedule = read_schedule(config.engine.schedule)
        engine = engine_with(schedule, config.engine, device)
    if partition is not None:
        from bow.training.placed import check_settings, devices_of, placed_step

        check_settings(partition, config)
        learners = partition.learners
        assert isinstance(device, torch.device)  # check_settings refuses stream devices
        count = devices_of(partition, config.devices.count, count, device)
    template = prepare_template(config.model, config.seed)
    job = pack(count)  # before anything is read from the data
    opened = DataSource(config.data, **config.stream_settings)
    stream = opened.stream
    if config.validation.every < 1 and stream.samples_per_epoch is None:
        raise SettingError(
            f"validation.every={config.validation.every} needs data whose length is known; give a Dataset or tensors, "
            "or leave it out"
        )
    rule = learners
    if rule == "auto":
        rule = choose_learners(device, template, stream.samples_per_epoch, stream.batch_size)
    check_round(stream, rule)
    most_bad = 1.0 if config.on_nan == "continue" else MOST_LOST
    check_first_batch(template, opened.example, config.loss, step, all_labels(config.data), most_bad=most_bad)
    validation, evaluator = config.validation, None
    if validation.data is not None:
        evaluator = Evaluator(validation.data, config.loss, validation.metrics, validation.batch_size)
        batch, labels = evaluator.first_batch(), all_labels(validation.data)
        check_first_batch(template, batch, config.loss, step, labels, data="validation", most_bad=MOST_LOST)
    replicas_config = ReplicasConfig(
        model=template,
        task=dataclasses.replace(config.task, batch_size=opened.usual_batch),
        optimizer=config.optimizer,
        sync=config.sync,
        device=device,
        buffers=validation.buffers,
        example=None if config.step is not None else opened.example,
        moving_average=validation.ema is not None,
    )
    placed = None
    if partition is not None:
        placed = placed_step(partition, replicas_config, opened, None if is_member() else count or 1)
    say = ProgressBar(enabled=config.run.progress and is_leader()).say
    if schedule is not None:
        decided = decide(schedule, replicas_config, opened.example, say, 1 if learners == "auto" else learners)
        replicas_config = replicas_config.with_engine(schedule=decided)
        if decided is not None:
            engine = "graph"
            if learners == "auto":
                learners = rule = 1
    request = make_request(replicas_config, opened, rule, engine, learners, epochs=config.epochs, steps=config.steps)
    place = device.torch_device if isinstance(device, StreamDevice) else device
    return Prepared(config, place, count, job, opened, evaluator, request, placed)
