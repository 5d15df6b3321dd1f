"""Checks of a sweep's settings before it starts."""

import contextlib
import copy
import dataclasses
import functools
import hashlib
from collections.abc import Hashable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset, Subset

from bow.data import is_in_memory, open_stream
from bow.data.opening import PrivateRandom, allows_one_pass, read_batch
from bow.devices import StreamDevice
from bow.engines.frozen import FrozenValues, generators_kept
from bow.errors import BowError, DataError, SettingError, warn_user
from bow.graph.refusal import python_random_kept, state_of
from bow.members.cohort import SharedSamples
from bow.members.config import SweepConfig
from bow.members.group import is_same
from bow.members.loop import held_out
from bow.members.member import Variant, check_indices
from bow.members.saving import GroupLogger
from bow.replicas import prepare_template
from bow.replicas.optimizer import check_parameterwise, is_elementwise, make_optimizer
from bow.training.batches import DataSource, check_last_batch, check_round
from bow.training.checks import (
    all_labels,
    check_first_batch,
    check_sampler,
    choose_devices,
    make_scheduler,
)
from bow.training.config import TrainConfig
from bow.training.epoch import MOST_LOST
from bow.training.evaluation import Evaluator
from bow.training.stopping import names_of_epochs, with_directions
from bow.training.train import check_scheduler_lasts, scheduler_steps
from bow.values import shortened

FEW = 4  # samples that are read twice: one that is mirrored at random may be the same both times


def checked(config: SweepConfig) -> SweepConfig:
    """Check the settings, before anything is written; return them with sample indices as tensors."""
    train = config.train
    if config.batches not in ("own", "shared"):
        raise SettingError(f'batches must be "own" or "shared", got {config.batches!r}')
    if (why := why_no_member(train, config.has_learners)) is not None:
        raise SettingError(why)
    metrics = train.validation.metrics
    alone = [v.name for v in config.variants if v.validate_on is None and train.validation.data is None]
    is_evaluated = len(alone) < len(config.variants)
    if is_evaluated and alone:
        raise SettingError(
            f"variant {alone[0]!r} is not evaluated and others are, so that they cannot be compared; give it "
            "validate_on, or the sweep validation data"
        )
    names = None if train.step is not None else names_of_epochs(metrics if is_evaluated else ())
    rules = with_directions(config.stop, metrics, names)
    for logger in train.run.loggers:
        if not isinstance(logger, GroupLogger):
            raise SettingError(f"loggers of a sweep need a method for_member(name, group), which {logger!r} lacks")
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
            "bow.Halving and a search are not supported on a cluster, as they compare members during training; "
            "use bow.EarlyStopping and a list of variants, or leave out cluster"
        )
    is_split = any(variant.train_on is not None or variant.validate_on is not None for variant in config.variants)
    num_samples = open_stream(train.data, **train.stream_settings).samples_per_epoch
    if is_split and (num_samples is None or isinstance(train.data, DataLoader)):
        kind = type(train.data).__name__
        raise SettingError(f"train_on and validate_on need tensors or a Dataset as data, got {kind}")
    variants, known = [], dict[int, Tensor | None]({id(None): None})
    for variant in config.variants:
        for name, given in (("train_on", variant.train_on), ("validate_on", variant.validate_on)):
            if id(given) not in known:
                made = check_indices(f"{name} of variant {variant.name!r}", given, num_samples or 0).cpu()
                known[id(given)] = config.parts.setdefault(hashlib.sha256(made.numpy().tobytes()).digest(), made)
        own = known[id(variant.train_on)], known[id(variant.validate_on)]
        variants.append(dataclasses.replace(variant, train_on=own[0], validate_on=own[1]))
    config = dataclasses.replace(config, variants=variants, stop=rules)
    _try_first_batches(config)
    _check_halving(config, num_samples)
    if is_split:
        _warn_of_leaks(variants, num_samples or 0)
    return config


def check_shared(config: SweepConfig) -> None:
    """Check what all members share, those that a search will propose included."""
    if config.part_of is not None:
        return
    _warn_of_random_samples(config)
    if config.num_members == 1 and config.search is None:
        return
    if config.at_once != 1 and not config.has_learners and allows_one_pass(config.train.data):
        raise DataError(
            "the loader given as data allows one pass at a time, and each member that trains needs its own; use "
            "at_once=1, or a DataLoader"
        )
    if (state := state_of_step(config.train)) is not None:
        raise SettingError(
            f"the step or loss changes {state} in Python, which all members would share; keep it in a buffer of the "
            "model, or train them one by one with bow.train"
        )
    _warn_of_generators(config.train.data)


def why_no_member(train: TrainConfig, has_learners: bool) -> str | None:
    validation, engine = train.validation, train.engine
    if validation.every != 1:
        return f"validation.every={validation.every}: members are evaluated after every epoch; use 1"
    if validation.ema is not None:
        return f"validation.ema={validation.ema:g}: members have no moving average; leave it out"
    if validation.buffers == "recalibrate" and not has_learners:
        return 'validation.buffers="recalibrate": members keep the statistics of their training; leave it out'
    if engine.dispatch != "fixed" or engine.schedule is not None or engine.capture == "round":
        return 'members do not support dispatch, schedule or capture="round"; leave them out'
    if engine.name == "fused" and not has_learners:
        return 'engine="fused" is not supported: members would share random numbers; use engine="graph"'
    return None


def state_of_step(train: TrainConfig) -> str | None:
    """Run step or loss; return the name of a value outside the model that it changes on every call, or None."""
    step, loss = train.step_or_loss, train.loss
    while isinstance(loss, functools.partial):
        loss = loss.func
    if train.step is None and str(getattr(loss, "__module__", "")).startswith("torch."):
        return None
    template = copy.deepcopy(prepare_template(train.model, train.seed)).train()
    batch = DataSource(train.data, **train.stream_settings).example
    with python_random_kept(), torch.random.fork_rng(devices=[]):
        for _ in range(2):  # the first call may fill a cache
            frozen = FrozenValues(step, nn.Module())
            tensors = [(tensor, tensor._version) for tensor in frozen.tensors]
            generators = [(each, state_of(each)) for each in frozen.generators]
            try:
                step(template, tree_map_only(Tensor, Tensor.clone, batch))
            except Exception:  # it may need the training's device; errors are reported there
                return None
    if any(tensor._version != version for tensor, version in tensors):
        return "a tensor"
    if not all(is_same(state_of(generator), state) for generator, state in generators):
        return "the state of a random generator"
    name = frozen.changed()
    return None if name is None else repr(name)


def _check_halving(config: SweepConfig, num_samples: int | None) -> None:
    rule, train = config.halving, config.train
    if rule is None or (train.steps is not None and (num_samples is None or config.search is not None)):
        return

    def epochs(variant: Variant) -> float:
        if train.steps is None:
            return train.epochs
        samples = num_samples if variant.train_on is None else len(variant.train_on)
        return train.steps * (config.batch_size_of(variant) or 1) / (samples or 1)

    most = max(map(epochs, config.variants))
    if most <= rule.first:
        given = f"epochs={train.epochs}" if train.steps is None else f"steps={train.steps}, {most:.2g} epochs"
        raise SettingError(
            f"bow.Halving compares members after {rule.first} epoch{'s' * (rule.first > 1)} at the earliest, and none "
            f"trains longer ({given}); train for longer, or leave out stop"
        )


def _warn_of_generators(data: Any) -> None:
    """Warn if samples are drawn from a generator of the data set's own, which is not seeded for each batch."""
    while isinstance(data, Subset) or (isinstance(data, DataLoader) and data.num_workers == 0):
        data = data.dataset
    if not isinstance(data, Dataset) or is_in_memory(data):
        return
    generators = FrozenValues(data.__getitem__, nn.Module()).generators
    states: list[Any] = []
    with generators_kept(generators):
        for _ in range(2 if generators else 0):  # every sample may seed it
            with contextlib.suppress(Exception), python_random_kept(), torch.random.fork_rng(devices=[]):
                _ = data[0]  # where it fails, reading the batches says so
            states.append([state_of(each) for each in generators])
    if not is_same(states[:1], states[1:]):
        warn_user(
            "the data set draws from a random generator of its own, which members share, so that their samples depend "
            "on each other; draw from the global ones of torch, Python or NumPy, which are seeded for each batch"
        )


def _warn_of_random_samples(config: SweepConfig) -> None:
    """Warn if samples that members are evaluated on are changed at random, as training samples may be."""
    data = config.train.data
    indices = next((each.validate_on for each in config.variants if each.validate_on is not None), None)
    if indices is None or not isinstance(data, Dataset):
        return
    some = held_out(data, torch.as_tensor(indices)[:FEW])
    if is_in_memory(some):
        return
    draws = False
    with contextlib.suppress(Exception), generators_kept(FrozenValues(data.__getitem__, nn.Module()).generators):
        first, second = (_read(some, seed) for seed in range(2))  # where it fails, reading the batches says so
        draws = not is_same(first, second)
    if draws:
        warn_user(
            f"samples of the data set {type(data).__name__} are changed at random, also where members are evaluated on "
            "them; change them in the model or step while the model trains, or evaluate on other data"
        )


def _read(data: Any, seed: int) -> Any:
    with PrivateRandom(seed).active():
        return read_batch(data, list(range(len(data))))


def _warn_of_leaks(variants: Sequence[Variant], num_samples: int) -> None:
    shared, leaking = dict[tuple[int, int], int](), []
    for variant in variants:
        train, held_out = variant.train_on, variant.validate_on
        if held_out is None:
            continue
        key = id(train), id(held_out)
        if key not in shared:
            is_trained_on = torch.zeros(num_samples, dtype=torch.bool)
            is_trained_on[slice(None) if train is None else torch.as_tensor(train)] = True
            shared[key] = int(is_trained_on[torch.unique(torch.as_tensor(held_out))].sum())
        if shared[key]:
            leaking.append((variant.name, shared[key]))
    if leaking:
        name, count = leaking[0]
        others = f" (other variants affected: {len(leaking) - 1})" if len(leaking) > 1 else ""
        warn_user(
            f"variant {name!r} is evaluated on {count} samples that it is trained on{others}; leave them out of "
            "train_on or validate_on"
        )


def _try_first_batches(config: SweepConfig) -> None:
    """Build every member's optimizer, scheduler and stream, and run a batch through the model of each kind."""
    train, validation, templates = config.train, config.train.validation, dict[Hashable, nn.Module]()
    place, count = choose_devices(train.devices.count)
    for name, data in (("data", train.data), ("the validation data", validation.data)):
        check_sampler(data, name, count)
    device = place.torch_device if isinstance(place, StreamDevice) else place
    learners = train.num_learners if isinstance(train.num_learners, int) else 1

    @functools.cache
    def example() -> Any:
        return Evaluator(validation.data, train.loss, validation.metrics, validation.batch_size).first_batch()

    for variant in config.variants:
        kind = config.kind_of(variant)
        is_new = kind not in templates
        if is_new:
            templates[kind] = prepare_template(config.of(variant).model, variant.seed)
        stream = SharedSamples(train.data).open(config, variant)
        with _named(variant, variant.batch_size is not None or variant.train_on is not None):
            check_round(stream, learners)
        rounds, longest = train.steps or stream.rounds_left(learners), config.most_rounds.get(kind)
        config.most_rounds[kind] = rounds if rounds is None or longest is None else max(rounds, longest)
        if is_new:
            needs_validation = validation.data is not None and kind not in config.usual_batches  # known in a search
            opened = DataSource(train.data, **config.of(variant).stream_settings)
            config.usual_batches[kind] = opened.usual_batch
            labels, step = all_labels(train.data), train.step_or_loss
            check_first_batch(templates[kind], opened.example, train.loss, step, labels, most_bad=MOST_LOST)
            if needs_validation:
                labels, of = all_labels(validation.data), "validation"
                check_first_batch(templates[kind], example(), train.loss, step, labels, data=of, most_bad=MOST_LOST)
        with _named(variant, variant.batch_size is not None or variant.train_on is not None):
            check_last_batch(stream, train.engine.accumulate, templates[kind], train.loss, train.step_or_loss)
        with _named(variant, bool(variant.settings or variant.optimizer or variant.scheduler)):
            optimizer = make_optimizer(config.of(variant).optimizer, templates[kind])
            if not is_elementwise(optimizer, device):
                check_parameterwise(optimizer, device)
            scheduler = make_scheduler(config.of(variant).scheduler_factory, optimizer, rounds)
            unit, steps = scheduler_steps(config.of(variant), stream, learners, {})
            check_scheduler_lasts(scheduler, steps, unit)


@contextlib.contextmanager
def _named(variant: Variant, has_own: bool) -> Iterator[None]:
    """Name the variant in errors that settings of its own may have caused."""
    try:
        yield
    except BowError as error:
        if not has_own:
            raise
        given = f" with {shortened(dict(variant.settings))}" if variant.settings else ""
        raise type(error)(f"variant {shortened(variant.name)}{given}: {error}") from error.__cause__
