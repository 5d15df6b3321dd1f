"""Choose engine and number of learners before a training and during it, where the user leaves them open."""

import dataclasses
import functools
import math
import os
import platform
import re
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bow.cluster import World
from bow.compiling import cache_folder
from bow.devices import StreamDevice, available_cores, processor, threads_loss
from bow.engines.choice import MIN_ROUNDS_PER_EPOCH
from bow.engines.config import MemoryFormat
from bow.errors import DeviceMemoryError, SettingError, reason, warn_user
from bow.graph.refusal import code_text
from bow.observe.text import duration_text, learners_text
from bow.replicas.layout import memory_order
from bow.replicas.model import check_trainable
from bow.replicas.optimizer import make_optimizer
from bow.runtime.loading import BUILD_S, can_be_built, content_hash, is_built
from bow.training.batches import DataSource
from bow.training.checks import engine_for
from bow.training.replicas import Replicas, ReplicasConfig
from bow.training.signals import Signals
from bow.training.trials import (
    CHANNELS_LAST,
    COMPILED,
    ENGINES_CPU,
    MOST_CUDA,
    PROBE_S,
    Request,
    Trials,
    candidates,
    most_tried,
    split,
)
from bow.tuner import CachedChoice, Calibration, ChoiceCache, DeviceTuners, EngineSetting, OnlineTuner, Tuner, balance

FEWEST_ROUNDS = 100  # shorter trainings run no trials
LEAST_BUDGET_S = 1.0  # smallest budget that allows a comparison
PLANNED = 0.5  # planned part of the user's share: compiling may take longer than expected, and the training less
MOST_BUDGET_S = 120.0  # upper limit for trainings of any length
UNKNOWN_BUDGET_S = 10.0  # budget if the length of the training is unknown
SPINNING_LOSS = 3.0  # use one thread if several take at least this many times as long, in every turn
CLEAR_LOSS = 10.0  # at once if in a single turn they take longer than this
SPINNING_S = 0.1  # limit of the measurement
RECIPE = 7  # version of what a calibration tries: invalidates choices of earlier versions
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
Source: TypeAlias = Literal["given", "rule", "checkpoint", "pinned", "cache", "calibration"]


@dataclass(frozen=True)
class Tuned:
    """The initial engine and number of learners of a training, and how they were chosen."""

    engine: str  # that runs the learners
    learners: int  # how many
    threads: int | None  # torch's threads; None: unchanged
    compile: bool  # whether the learning task is compiled
    source: Source  # how it was chosen
    summary: str = ""  # the choice in one line; empty if the user gave it
    # the decision table as plain values; empty if nothing was measured
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    seconds: float = 0.0  # of the whole choice
    # gradient statistics of the trials, with the objective `goodput`
    signals: Signals | None = field(default=None, repr=False)
    is_complete: bool = False  # whether no worthwhile trial was skipped, so that later trainings can reuse it
    memory_format: MemoryFormat = None  # that was chosen; None: that of the user's engine or model
    compiles_later: bool = False  # whether the learning task is compiled beside the rounds, to switch if it is faster

    @property
    def setting(self) -> dict[str, Any]:
        how = {"threads": self.threads, "compile": self.compile, "memory_format": self.memory_format}
        return {"engine": self.engine, **how, "source": self.source}

    @property
    def engine_setting(self) -> EngineSetting:
        engine = f"{self.engine}{COMPILED * self.compile}{CHANNELS_LAST * (self.memory_format is not None)}"
        return EngineSetting(engine, self.learners, self.threads or 1)

    @property
    def record(self) -> dict[str, Any]:
        chosen = {"engine": self.engine, "learners": self.learners}
        how: dict[str, Any] = {"threads": self.threads, "compile": self.compile, "calibration_s": self.seconds}
        how |= {} if self.memory_format is None else {"memory_format": self.memory_format}
        why = {"source": self.source, "summary": self.summary, "rows": self.rows}
        return {"kind": "calibration", **chosen, **how, **why}


def tune(
    request: Request, opened: DataSource, tuner: Tuner, *, loss: Callable[..., Any], say: Callable[[str], None]
) -> Tuned:
    if not request.is_open:
        assert request.learners != "auto"
        return Tuned(request.engine, request.learners, None, request.compile, "given")
    signals = _signals(request, tuner)
    return dataclasses.replace(_found(request, opened, tuner, loss, say, signals), signals=signals)


def _signals(request: Request, tuner: Tuner) -> Signals | None:
    return Signals(request.batch_size, request.replicas.sync) if tuner.objective == "goodput" else None


def _found(
    request: Request,
    opened: DataSource,
    tuner: Tuner,
    loss: Callable[..., Any],
    say: Callable[[str], None],
    signals: Signals | None,
) -> Tuned:
    if tuner.pinned is not None:
        return _from_setting(tuner.pinned, "pinned", f"pinned: {tuner.pinned}")
    cache = ChoiceCache(cache_folder() / "choices") if tuner.cache else None
    description = describe(request, opened, tuner, loss)
    known = None if cache is None else cache.find(description)
    if cache is not None and known is not None and (known.pinned or _fits(known.setting, request)):
        if tuner.pin and not known.pinned:
            cache.pin(description, known.setting)
        how = "pinned earlier" if known.pinned else "measured for an earlier training"
        summary = f"{known.setting} ({how}; tuner.cache=false remeasures)"
        chosen = _from_setting(known.setting, "pinned" if known.pinned else "cache", summary)
        return dataclasses.replace(chosen, rows=known.rows)
    if request.rounds is not None and request.rounds < FEWEST_ROUNDS:
        return _by_rule(request, f"{request.rounds} rounds are too few to measure")
    trials = Trials(request.replicas, opened.feed(), signals)
    began = time.perf_counter()
    try:
        tuned = _measured(request, trials, tuner, say, signals)
    finally:
        trials.close()
    if cache is not None and tuned.source == "calibration":
        setting = tuned.engine_setting
        if tuned.is_complete:  # else the budget has cut it short, and users may pin it all the same
            cache.store(description, CachedChoice(setting, tuned.rows))
        if tuner.pin:
            cache.pin(description, setting)
    return dataclasses.replace(tuned, seconds=time.perf_counter() - began)


def _measured(
    request: Request, trials: Trials, tuner: Tuner, say: Callable[[str], None], signals: Signals | None
) -> Tuned:
    began = time.perf_counter()
    engine, count = _probed(request), 1 if request.learners == "auto" else request.learners
    rate = trials.probe(EngineSetting(engine, count))
    setup_s = max(0.0, time.perf_counter() - began - PROBE_S)
    if request.replicas.on_cpu:  # each idle core would add as much
        cores = len(available_cores())
        rate *= cores / (min(count, cores) if engine == "graph" else 1)
    expected = None if request.samples is None else request.samples / rate
    budget = UNKNOWN_BUDGET_S if expected is None else min(MOST_BUDGET_S, PLANNED * tuner.share * expected)
    if expected is not None and budget - (time.perf_counter() - began) < LEAST_BUDGET_S:
        long = duration_text(expected)
        return _by_rule(request, f"a training of about {long} is too short to measure in {100 * tuner.share:g} % of it")
    possible = [dataclasses.replace(each, setup_s=setup_s) for each in candidates(request, trials)]
    if not possible:
        has_room = request.engine != "auto" and _fits(EngineSetting(request.engine, count), request)
        why = "its learning task cannot be compiled" if has_room else "not enough memory for any engine"
        return _by_rule(request, why)
    calibration = Calibration(
        possible,
        budget,
        samples=request.samples,
        share=PLANNED * tuner.share,
        threshold=tuner.threshold,
        efficiency=signals,
        spent_s=time.perf_counter() - began,
    )
    say(f"measuring engines and numbers of learners, for at most {duration_text(budget)}")
    while (trial := calibration.next_trial()) is not None:
        calibration.report(trials.run(trial))
    rows = list(map(dataclasses.asdict, calibration.rows))
    tried = [row["status"] for row in rows if row["status"] != "not tried"]
    if calibration.choice is None or (len(tried) == 1 and not calibration.is_complete):
        why = "no setting ran" if "failed" in tried else f"{duration_text(budget)} are too short to compare anything"
        return dataclasses.replace(_by_rule(request, why), rows=rows)
    found = _from_setting(calibration.choice, "calibration", calibration.summary)
    # What is pinned is what runs.
    later = not tuner.pin and _compiles_later(request, found, trials, rows, tuner.share)
    complete = calibration.is_complete and not later  # a later training finds it compiled, and tries it
    return dataclasses.replace(found, rows=rows, is_complete=complete, compiles_later=later)


def _compiles_later(
    request: Request, found: Tuned, trials: Trials, rows: Sequence[Mapping[str, Any]], share: float
) -> bool:
    """Return whether to compile beside the rounds, which takes a core at low priority: at most a share of them."""
    is_open = request.engine == "auto" and found.engine == "graph" and not found.compile
    if not is_open or not request.replicas.on_cpu or request.replicas.is_several or request.samples is None:
        return False
    rate = next(row["samples_per_s"] for row in rows if row["status"] == "chosen")
    compile_s = trials.compile_s(found.engine_setting)
    return compile_s is not None and 0 < compile_s <= share * request.samples / rate


def _probed(request: Request) -> str:
    """Return the engine to estimate the training's length with: cheap to start and among the fastest."""
    if request.engine != "auto":
        return request.engine if request.engine in ("graph", "graph+round") else "eager"
    return "graph" if request.replicas.on_cpu and is_built() else "eager"


def _from_setting(setting: EngineSetting, source: Source, summary: str) -> Tuned:
    name, compiles, memory_format = split(setting.engine)
    return Tuned(name, setting.learners, setting.threads, compiles, source, summary, memory_format=memory_format)


def _fits(setting: EngineSetting, request: Request) -> bool:
    """Return whether a choice of an earlier training still fits in memory, which others may be using."""
    engine, _, _ = split(setting.engine)
    return request.replicas.most_learners(engine, setting.learners) == setting.learners


def _by_rule(request: Request, why: str) -> Tuned:
    replicas = request.replicas
    engine = engine_for(replicas.task.engine.run_by(request.engine, request.compile), request.rounds, replicas.device)
    if request.engine == "auto" and engine == "eager" and replicas.on_cpu and can_be_built():
        why += f"; python -m bow.runtime builds what engine graph needs, in {BUILD_S:.0f} s"
    count = max(1, replicas.most_learners(engine, request.rule)) if request.learners == "auto" else request.learners
    summary = f"{engine}, {learners_text(count)}, by rule of thumb: {why}"
    return Tuned(engine, count, None, request.compile, "rule", summary)


def make_request(
    replicas: ReplicasConfig,
    opened: DataSource,
    rule: int,
    engine: str = "auto",
    learners: int | Literal["auto"] = "auto",
    *,
    epochs: int = 1,
    steps: int | None = None,
) -> Request:
    per_epoch, batch = opened.stream.samples_per_epoch, opened.batch_size
    samples = None if per_epoch is None else epochs * per_epoch
    if steps is not None:
        samples = steps * batch * rule
    most = MOST_CUDA if per_epoch is None else max(1, per_epoch // (batch * MIN_ROUNDS_PER_EPOCH))
    rounds = opened.stream.rounds_left(rule) if steps is None else steps
    return Request(engine, learners, replicas.task.engine.compile, batch, most, samples, rounds, rule, replicas)


def part_of_training(request: Request, devices: int) -> Request:
    samples = None if request.samples is None else math.ceil(request.samples / devices)
    rounds = None if request.rounds is None else math.ceil(request.rounds / devices)
    replicas = dataclasses.replace(request.replicas, is_several=True)
    return dataclasses.replace(request, samples=samples, rounds=rounds, replicas=replicas)


def check_tuner(tuner: Tuner | None, request: Request) -> Tuner:
    if tuner is None:
        return Tuner()
    if not request.is_open:
        warn_user(
            f'learners={tuner!r} has no effect with engine="{request.engine}"; use bow.Tuner(learners="auto") or '
            'engine="auto", or a number of learners',
        )
    if tuner.pinned is not None:
        engine, _, _ = split(tuner.pinned.engine)
        given = (("engine", request.engine, engine), ("learners", request.learners, tuner.pinned.learners))
        for name, value, own in given:
            if value not in ("auto", own):
                raise SettingError(f"{name}={value!r} contradicts the tuner's pinned {tuner.pinned}; leave one out")
    return tuner


def describe(request: Request, opened: DataSource, tuner: Tuner, loss: Callable[..., Any]) -> Any:
    """Return all that a choice depends on, the key of the cache of choices."""
    replicas_config, task, model = request.replicas, request.replicas.task, request.replicas.model
    named = [*model.named_parameters(), *model.named_buffers()]
    # The text and tensors of modules outside torch do not determine what they compute.
    kinds = {type(module) for module in model.modules() if not type(module).__module__.startswith("torch.")}
    given = replicas_config.device
    place = given.torch_device if isinstance(given, StreamDevice) else given
    device = [type(given).__name__, torch.cuda.get_device_name(place)] if place.type == "cuda" else [str(place)]
    tensors = [f"{name} {_tensor(tensor)} {tensor.requires_grad}" for name, tensor in named]
    check_trainable([parameter for parameter in model.parameters() if parameter.requires_grad])
    optimizer = make_optimizer(replicas_config.optimizer, model)
    # The learning rate does not affect speed.
    settings = [{k: v for k, v in group.items() if k not in ("params", "lr")} for group in optimizer.param_groups]
    return {
        "recipe": RECIPE,
        "model": [_text(model), *tensors, *sorted(_name(kind.forward) for kind in kinds)],
        "task": _name(loss),
        "optimizer": [type(optimizer).__qualname__, *map(_text, settings)],
        "sync": repr(replicas_config.sync),
        "batch": [_tensor(leaf) for leaf in tree_leaves(opened.example) if isinstance(leaf, Tensor)],
        "stream": type(opened.stream).__name__,
        "task settings": [
            task.engine.precision,
            task.clip_norm,
            task.engine.offload,
            task.engine.accumulate,
            task.engine.dispatch,
            task.engine.memory_format,
            [memory_order(parameter) for parameter in model.parameters()],
        ],
        "schedule": None if task.schedule is None else content_hash(task.schedule.to_json()),
        "asked for": [request.engine, request.learners, request.compile, request.most],
        "length": None if request.samples is None else math.floor(math.log(max(request.samples, 1), 4)),
        "tuner": [tuner.objective, tuner.threshold, tuner.share],
        "machine": [processor(), len(available_cores()), torch.get_num_threads(), *device],
        "native runtime": is_built() if replicas_config.on_cpu else None,
        "versions": [sys.modules["bow"].__version__, torch.__version__, platform.python_version()],
    }


def _tensor(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def _name(function: Any) -> str:
    """Identify functions by name, code hash and arguments bound by `functools.partial`, other values by their text."""
    if isinstance(function, functools.partial):
        bound = [*map(_name, function.args), *(f"{name}={_name(value)}" for name, value in function.keywords.items())]
        return f"{_name(function.func)}({', '.join(bound)})"
    if isinstance(function, Tensor):
        return _tensor(function)
    if isinstance(function, types.FunctionType):
        return f"{function.__module__}.{function.__qualname__} {content_hash(*code_text(function.__code__))}"
    return _text(function)


def _text(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__} {_ADDRESS.sub('', repr(value))}"


def tuned_before(state: Mapping[str, Any], request: Request, tuner: Tuner) -> Tuned:
    """Return the setting of the training to be resumed, unless the user asks for another; the rows keep their order."""
    tuned, before = _tuned_before(state, request, tuner), state["tuned"]
    later = tuned.source == "checkpoint" and before["compiles_later"]
    return dataclasses.replace(tuned, memory_format=before["memory_format"], compiles_later=later)


def _tuned_before(state: Mapping[str, Any], request: Request, tuner: Tuner) -> Tuned:
    before = dict(state["tuned"])
    if request.replicas.on_cpu and before["engine"] not in ENGINES_CPU:  # of a GPU, or "auto" of a partition
        wanted = request.replicas.task.engine.run_by("auto")
        engine = engine_for(wanted, request.rounds, request.replicas.device)
        before.update(engine=engine, threads=None, source="rule")
    learners = state["learners"] if request.learners == "auto" else request.learners
    if not request.is_open or request.engine not in ("auto", before["engine"]):
        threads = before["threads"] if before["source"] in ("given", "rule") else None
        return Tuned(request.engine, learners, threads, request.compile, "given")
    signals = _signals(request, tuner)
    if tuner.pinned is not None:
        return dataclasses.replace(_from_setting(tuner.pinned, "pinned", f"pinned: {tuner.pinned}"), signals=signals)
    source: Source = before["source"] if before["source"] in ("rule", "pinned") else "checkpoint"
    compiles = before["compile"] or request.compile
    summary = f"{before['engine']}, as the checkpoint has it"
    return Tuned(before["engine"], learners, before["threads"], compiles, source, summary, signals=signals)


def without_spinning(tuned: Tuned, replicas: ReplicasConfig, say: Callable[[str], None]) -> Tuned:
    """Use one thread if several spinning ones are far slower, unless trials have chosen the number."""
    threads = torch.get_num_threads()
    waits = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
    if tuned.threads is not None or threads == 1 or waits or not replicas.on_cpu:
        return tuned
    low, loss, _ = threads_loss(threads, unclear=(SPINNING_LOSS, CLEAR_LOSS), limit_s=SPINNING_S)
    if low < SPINNING_LOSS:
        return tuned
    say(f"torch's {threads} threads take {loss:.0f} times as long as one on this busy machine: one is used")
    return dataclasses.replace(tuned, threads=1)


def balanced(tuned: Tuned, request: Request, world: World) -> Tuned:
    batch = request.batch_size
    setting = tuned.engine_setting.engine, tuned.engine_setting.threads
    alike = [row for row in tuned.rows if (row["engine"], row["threads"]) == setting and row["samples_per_s"]]
    own = {row["learners"]: row["learners"] * batch / row["samples_per_s"] for row in alike}
    round_s = world.all_gather(own if request.learners == "auto" and tuned.source == "calibration" else {})
    if world.is_one or not all(round_s):
        return tuned
    learners = balance(round_s)
    if learners[world.rank] == tuned.learners:
        return tuned
    alone, among = f"{tuned.learners} learners on this device alone", learners[world.rank]
    summary = f"{tuned.summary}; {alone}, {among} when balanced with the other devices"
    return dataclasses.replace(tuned, learners=among, summary=summary)


def build(tuned: Tuned, replicas: ReplicasConfig, rounds: int | None, world: World, learners: int) -> Replicas:
    if tuned.threads is not None and replicas.on_cpu:
        torch.set_num_threads(tuned.threads)
    expected = rounds if tuned.source in ("given", "rule") else None
    how: dict[str, Any] = {"compile": tuned.compile, "memory_format": tuned.memory_format}
    return replicas.build(tuned.engine, learners, **how, expected_rounds=expected, world=world)


def most_while_training(tuned: Tuned, request: Request, tuner: Tuner) -> int:
    """Return the upper limit of learners while training; 0 if their number is fixed."""
    stays = request.learners != "auto" or not tuner.online or tuned.source not in ("calibration", "cache", "checkpoint")
    if stays or tuned.engine == "fused" or (tuned.engine == "eager" and request.replicas.on_cpu):
        return 0
    return request.replicas.most_learners(tuned.engine, most_tried(request))


class Watch:
    """Passes measurement windows to the tuners of all devices and applies their decisions, alike in all processes."""

    def __init__(self, replicas: Replicas, tuner: Tuner, most: Sequence[int], signals: Signals | None = None) -> None:
        self._replicas = replicas
        self._window_s = tuner.window_s
        self._signals = signals
        self._learners = list(replicas.group.by_device)
        self._tuners = DeviceTuners(
            [
                OnlineTuner(count, limit, threshold=tuner.threshold, efficiency=signals, calibrated=True)
                for count, limit in zip(self._learners, most, strict=True)
            ]
        )
        self._began: tuple[float, int] | None = None

    def round_ended(self, seconds: float, samples: int) -> str | None:
        """Process rounds that have ended; return a message if learners changed. All processes call this together."""
        if self._signals is not None:
            self._signals.observe(self._replicas)
        learners = list(self._replicas.group.by_device)
        if self._began is None or learners != self._learners:
            self._began, self._learners = (seconds, samples), learners
            return None
        since, before = self._began
        if seconds - since < self._window_s:
            return None
        self._began = seconds, samples
        for device, decision in enumerate(self._tuners.update(samples - before, seconds - since, learners)):
            if decision.step:
                self._began = None  # no window includes the change itself
                return self._change(device, decision.step, decision.why)
        return None

    def ran_out_of_memory(self, error: DeviceMemoryError) -> str:
        """Remove a learner after a round ran out of memory; this many are never tried again."""
        learners = self._replicas.learners
        self._replicas.resize(learners - 1)
        self._tuners.failed(0, learners)
        self._began = None
        return f"learners: {learners} to {learners - 1} ({reason(error)})"

    def _change(self, device: int, step: int, why: str) -> str:
        replicas = self._replicas
        before = replicas.group.by_device[device]
        try:
            replicas.resize(replicas.learners + (step if device == replicas.world.rank else 0))
        except (DeviceMemoryError, SettingError) as error:
            if step < 0:
                raise
            why = reason(error)  # the others see from the numbers that it failed
        after, where = replicas.group.by_device[device], "" if replicas.world.is_one else f" on device {device}"
        if after == before:
            self._tuners.failed(device, before + step)
            return f"no further learner{where} ({why})"
        return f"learners{where}: {before} to {after} ({why})"
