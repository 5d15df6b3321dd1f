"""What is refused before a sweep begins."""

import dataclasses
from collections.abc import Hashable
from importlib.util import find_spec

from torch import Tensor, nn

from bow.data import open_stream
from bow.errors import DataError, SettingError
from bow.members.config import SweepConfig
from bow.members.feed import SharedSamples
from bow.members.saving import GroupLogger
from bow.members.variant import check_indices
from bow.replicas import prepare_template
from bow.replicas.optimizer import make_optimizer
from bow.training.checks import all_labels, check_first_batch, make_scheduler
from bow.training.config import TrainConfig
from bow.training.data_source import DataSource, check_round
from bow.training.epoch import MOST_LOST
from bow.training.stopping import directed, names_of_epochs


def checked(config: SweepConfig) -> SweepConfig:
    """Refuse what cannot be trained, before anything is written; numbers of samples become tensors."""
    train = config.train
    if config.batches not in ("own", "shared"):
        raise SettingError(f'batches must be "own" or "shared", got {config.batches!r}')
    if (why := why_no_member(train, config.has_learners)) is not None:
        raise SettingError(why)
    metrics = train.validation.metrics
    is_evaluated = train.validation.data is not None or any(v.validate_on is not None for v in config.variants)
    names = None if train.step is not None else names_of_epochs(metrics if is_evaluated else ())
    rules = directed(config.stop, metrics, names)
    for logger in train.run.loggers:
        if not isinstance(logger, GroupLogger):
            raise SettingError(f"loggers of a sweep need a method for_member(name, group), which {logger!r} has not")
    if config.has_learners and (config.batches == "shared" or config.at_once not in ("auto", 1)):
        raise SettingError(
            f"members of {train.num_learners} learners train one after another, each in the order of its seed, got "
            f"at_once={config.at_once!r} and batches={config.batches!r}; leave them out, or use learners=1"
        )
    if config.cluster not in (None, "ray"):
        raise SettingError(f'cluster must be "ray" or None, got {config.cluster!r}')
    if config.cluster is not None and find_spec("ray") is None:
        raise SettingError('cluster="ray" needs Ray, which is not installed; pip install "bow-trainer[ray]"')
    if config.cluster is not None and (config.search is not None or config.halving is not None):
        raise SettingError(
            "members on a cluster are not compared while they train, and stop has bow.Halving, or variants is a "
            "search; use bow.EarlyStopping and a list of variants, or leave out cluster"
        )
    is_split = any(variant.train_on is not None or variant.validate_on is not None for variant in config.variants)
    num_samples = open_stream(train.data, **train.stream_settings).samples_per_epoch
    if is_split and num_samples is None:
        raise SettingError("members with samples of their own need data with a length; give tensors or a Dataset")
    variants, known = [], dict[int, Tensor | None]({id(None): None})
    for variant in config.variants:
        for name, given in (("train_on", variant.train_on), ("validate_on", variant.validate_on)):
            if id(given) not in known:
                known[id(given)] = check_indices(f"{name} of variant {variant.name!r}", given, num_samples or 0)
        own = known[id(variant.train_on)], known[id(variant.validate_on)]
        variants.append(dataclasses.replace(variant, train_on=own[0], validate_on=own[1]))
    config = dataclasses.replace(config, variants=variants, stop=rules)
    _try_first_batches(config)
    return config


def why_no_member(train: TrainConfig, has_learners: bool) -> str | None:
    """What a training alone can do and members cannot; None: they can."""
    validation, engine = train.validation, train.engine
    if validation.every != 1:
        return f"validation.every={validation.every}: members are evaluated after every epoch; use 1"
    if validation.ema is not None:
        return f"validation.ema={validation.ema:g}: members have no moving average; leave it out"
    if engine.dispatch != "fixed" or engine.schedule is not None or engine.capture == "round":
        return 'members take no dispatch, schedule or capture="round"; leave them out'
    if engine.name == "fused" and not has_learners:
        return (
            'engine="fused" computes all rows in one task, whose random numbers members would share; use engine="graph"'
        )
    return None


def _try_first_batches(config: SweepConfig) -> None:
    """Make every member's optimizer and stream, and run a batch through the model of each kind of member."""
    train, templates = config.train, dict[Hashable, nn.Module]()
    for variant in config.variants:
        kind = config.kind_of(variant)
        is_new = kind not in templates
        if is_new:
            templates[kind] = prepare_template(config.of(variant).model, variant.seed)
        stream = SharedSamples(train.data).open(config, variant)
        try:
            check_round(stream, 1)
        except DataError as error:
            whose = "" if variant.train_on is None else f"samples of variant {variant.name!r}: "
            raise DataError(f"{whose}{error}") from None
        if is_new:
            opened = DataSource(train.data, **config.of(variant).stream_settings)
            config.usual_batches[kind] = opened.usual_batch
            labels, step = all_labels(train.data), train.step_or_loss
            check_first_batch(templates[kind], opened.example, train.loss, step, labels, most_bad=MOST_LOST)
        optimizer = make_optimizer(config.of(variant).optimizer, templates[kind])
        make_scheduler(config.of(variant).scheduler_factory, optimizer, train.steps or stream.rounds_left(1))
