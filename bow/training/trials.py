"""Timed trials, whose results are discarded: short runs of rounds on the user's own model and data; what is tried."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from bow.devices import StreamDevice, available_cores, num_threads, share_cores
from bow.engines.config import MemoryFormat
from bow.engines.offload import OFFLOADING
from bow.errors import BowError, DeviceMemoryError, SettingError, reason
from bow.graph.refusal import python_random_kept
from bow.replicas import num_trainable
from bow.replicas.layout import memory_order
from bow.runtime.loading import BUILD_S, is_built
from bow.training.batches import TrialFeed
from bow.training.replicas import Replicas, ReplicasConfig
from bow.training.signals import Signals
from bow.tuner import Candidate, EngineSetting, Trial, TrialResult, doubling

COMPILED = "+compiled"  # suffix of an engine's name: it compiles the learning task
CHANNELS_LAST = "+channels_last"  # suffix of an engine's name, after that: the memory format of convolutions
MOST_HELD_BYTES = 2**28  # of weights and gradients, up to which learners of several engines are kept for later trials
PROBE_S = 0.05  # shortest probe, after a first round
WARM_UP_S = 0.02  # shortest warm-up of a measurement, after a first round, which captures and allocates


class Trials:
    """Runs the trials that a `Calibration` requests; learners of an engine are kept for its next trial."""

    def __init__(
        self,
        replicas_config: ReplicasConfig,
        feed: TrialFeed,
        signals: Signals | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = replicas_config
        self._feed = feed
        self._signals = signals
        self._clock = clock
        self._made: dict[tuple[str, int], Replicas] = {}
        self._current: Replicas | None = None

    def run(self, trial: Trial) -> TrialResult:
        setting, began = trial.setting, self._clock()
        compile_s = 0.0
        rates: list[float] = []
        failure: str | None = None
        out_of_memory = no_room = False
        try:
            with self._apart(setting.threads):
                replicas, compile_s, cold = self._first_round(setting)
                if self._clock() - began - compile_s >= trial.most_s:
                    rates.append(cold)
                else:
                    self._stretch(replicas, WARM_UP_S)
                while not trial.is_over(rates, self._clock() - began - compile_s):
                    rates.append(self._stretch(replicas, trial.seconds / trial.repeats))
        except DeviceMemoryError:
            failure, out_of_memory = "out of memory", True
        except SettingError as error:  # rejected before it ran
            failure, no_room = f"not enough memory: {reason(error)}", True
        except Exception as error:  # any failure of an engine on this model
            failure = reason(error)
        if failure is not None:
            rates.clear()
            self._forget(setting)
        seconds = max(0.0, self._clock() - began - compile_s)
        return TrialResult(setting, rates, seconds, compile_s, failure, out_of_memory, no_room)

    def probe(self, setting: EngineSetting, seconds: float = PROBE_S) -> float:
        with self._apart(setting.threads):
            replicas = self._replicas(setting)
            self._stretch(replicas, 0.0)
            return self._stretch(replicas, seconds)

    def compile_s(self, setting: EngineSetting) -> float | None:
        """Return the expected seconds to compile engine `graph`'s learning task; None if it cannot be compiled."""
        from bow.engines.captured import expected_compile_s  # loaded by engine `graph`

        try:
            with self._apart(setting.threads):
                replicas = self._replicas(setting)
                if replicas.loop.compilable is None:
                    self._stretch(replicas, 0.0)
                graph = replicas.loop.compilable
                return None if graph is None else expected_compile_s(graph)
        except Exception:
            self._forget(setting)
            return None

    def close(self) -> None:
        for replicas in self._made.values():
            replicas.close()
        self._made.clear()
        self._current = None

    def _first_round(self, setting: EngineSetting) -> tuple[Replicas, float, float]:
        """Return the learners of a setting, the seconds of compiling, and the samples per second of the first round."""
        engine, compiles, _ = split(setting.engine)
        is_new = _key(setting) not in self._made
        builds = is_new and engine == "graph" and self._config.on_cpu and not is_built()
        began = self._clock()
        replicas = self._replicas(setting)
        made = self._clock()
        cold = self._stretch(replicas, 0.0)
        compile_s = self._clock() - made if (compiles and is_new) or engine == "fused" else 0.0
        compile_s += made - began if builds else 0.0
        is_compiled = compiles and engine == "graph" and replicas.device.type == "cpu"  # part of its description
        if replicas.engine != (f"{engine} (compiled)" if is_compiled else engine):
            raise BowError(f"it runs as {replicas.engine}")
        return replicas, compile_s, cold

    def _replicas(self, setting: EngineSetting) -> Replicas:
        engine, compiles, memory_format = split(setting.engine)
        key = _key(setting)
        replicas = self._made.get(key)
        if self._current is not None and self._current is not replicas:
            self._current.close()  # its threads would disturb the trial
            held = sum(each.W.nbytes + each.G.nbytes for each in self._made.values())  # other memory is proportional
            if not self._config.on_cpu or held > MOST_HELD_BYTES:
                self.close()
                replicas = None
        if replicas is None:
            replicas = self._config.build(engine, setting.learners, compile=compiles, memory_format=memory_format)
            stand_still(replicas)
            self._made[key] = replicas
            if self._feed.stream is not None:
                replicas.batches.reside(self._feed.stream)
        self._current = replicas
        if replicas.learners != setting.learners:
            replicas.resize(setting.learners)
        return replicas

    def _stretch(self, replicas: Replicas, seconds: float) -> float:
        """Run rounds for at least `seconds`, and at least one; return their samples per second."""
        samples, began = 0, self._clock()
        signals = None if self._feed.stream is None else self._signals  # equal batches would show no noise
        while True:
            rounds = 1 if self._config.is_watched else replicas.loop.period
            deals = [self._feed.deal(replicas.learners) for _ in range(rounds)]
            replicas.rounds_at_once([batches for batches, _ in deals])
            samples += sum(count for _, count in deals)
            if signals is not None:
                signals.observe(replicas)
            if self._clock() - began >= seconds:
                break
        replicas.loop.catch_up()
        return samples / max(self._clock() - began, 1e-9)

    def _forget(self, setting: EngineSetting) -> None:
        if (replicas := self._made.pop(_key(setting), None)) is not None:
            replicas.close()
        self._current = None

    @contextlib.contextmanager
    def _apart(self, threads: int) -> Iterator[None]:
        own = num_threads(threads) if self._config.on_cpu else contextlib.nullcontext()
        with without_a_trace(self._config.device), own:
            yield


@contextlib.contextmanager
def without_a_trace(place: torch.device | StreamDevice) -> Iterator[None]:
    """Suppress warnings, and restore the state of all random number generators."""
    device = place.torch_device if isinstance(place, StreamDevice) else place
    generators = [device] if device.type == "cuda" else []
    with warnings.catch_warnings(), python_random_kept(), torch.random.fork_rng(devices=generators):
        warnings.simplefilter("ignore")
        yield


def split(name: str) -> tuple[str, bool, MemoryFormat]:
    """Return the engine of a setting, whether it compiles the learning task, and the memory format."""
    engine = name.removesuffix(CHANNELS_LAST)
    memory_format: MemoryFormat = None if engine == name else "channels_last"
    return engine.removesuffix(COMPILED), engine.endswith(COMPILED), memory_format


def stand_still(replicas: Replicas) -> None:
    """Set learning rates to 0, so that repeated samples cannot cause divergence."""
    for group in replicas.optimizer.param_groups:
        if "lr" in group:
            group["lr"] = 0 * group["lr"]  # keeps a tensor a tensor


def _key(setting: EngineSetting) -> tuple[str, int]:
    return setting.engine, setting.threads


# In the order of measurement, those that are most often best first: a short budget ends early.
ENGINES_CPU: tuple[str, ...] = ("graph", "streams", "eager", "fused")
ENGINES_CUDA: tuple[str, ...] = ("graph", "graph+round", "streams", "fused", "eager")

MOST_PER_CORE = 4  # most learners per core: beyond one, they only save overhead of rounds
MOST_CPU, MOST_CUDA = 8, 64  # upper limits of learners to try: on a CPU more if it has many cores
FUSED_COMPILE_S = 12.0
COMPILE_S = 20.0  # approximate time to compile a learning task with `torch.compile`
FUSED_GAIN, TINY_PARAMETERS = 1.2, 50_000  # expected speed-up by engine `fused`, for models of up to so many parameters
# Modules that `vmap` on a CPU runs learner by learner or slower, as `benchmarks/results/engines.md` shows.
UNFIT_FOR_FUSED = (nn.modules.conv._ConvNd, nn.RNNBase)


@dataclass(frozen=True)
class Request:
    """The user's settings, and which of them the tuner is to choose."""

    engine: str  # a name, or `"auto"`
    learners: int | Literal["auto"]  # a number, or `"auto"`
    compile: bool  # whether the learning task is to be compiled
    batch_size: int  # samples of a batch
    most: int  # upper limit of learners given the data, if their number is open
    samples: float | None  # that the training will process; None: unknown
    rounds: int | None  # of the training with the rule's number of learners; None: unknown
    rule: int  # number of learners by the rule of thumb
    replicas: ReplicasConfig  # settings to build the learners

    @property
    def is_open(self) -> bool:
        return self.engine == "auto" or self.learners == "auto"


def candidates(request: Request, trials: Trials) -> list[Candidate]:
    """Return all candidates; captures a learning task to find out whether its compiled code is cached."""
    engine = request.replicas.task.engine
    engines = ENGINES_CPU if request.replicas.on_cpu else ENGINES_CUDA
    if engine.offload and not request.replicas.on_cpu:
        engines = tuple(name for name in engines if name in OFFLOADING)
    if engine.accumulate > 1:
        engines = tuple(name for name in engines if name != "fused")
    if request.engine != "auto":
        engines = (request.engine,)
    counts = {name: _counts(request, name) for name in engines}
    return [each for name in engines if counts[name] for each in _of_engine(name, counts[name], request, trials)]


def has_choice_of_format(replicas: ReplicasConfig) -> bool:
    if replicas.is_several or replicas.task.engine.memory_format is not None:
        return False  # rows of several devices are added up, and must have one order
    layers = [module for module in replicas.model.modules() if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)]
    weights = [weight for layer in layers for weight in layer.parameters(recurse=False) if weight.requires_grad]
    return bool(weights) and all(memory_order(weight) == tuple(range(weight.dim())) for weight in weights)


def _counts(request: Request, engine: str) -> tuple[int, ...]:
    replicas, learners = request.replicas, request.learners
    if learners != "auto":
        return (learners,) if replicas.most_learners(engine, learners) == learners else ()
    if replicas.on_cpu and engine == "eager" and request.engine == "auto":
        return (1,)  # learners run in turn on all threads: more of them would only add averaging
    most = replicas.most_learners(engine, most_tried(request))
    return doubling(most) if most else ()


def most_tried(request: Request) -> int:
    wanted = max(MOST_CPU, MOST_PER_CORE * len(available_cores())) if request.replicas.on_cpu else MOST_CUDA
    return min(wanted, request.most)


def _of_engine(engine: str, counts: tuple[int, ...], request: Request, trials: Trials) -> Iterator[Candidate]:
    on_cpu, model = request.replicas.on_cpu, request.replicas.model
    threads = torch.get_num_threads() if on_cpu else 1
    compiled = Candidate(f"{engine}{COMPILED}", counts=counts, compile_s=COMPILE_S)
    if engine == "fused":
        is_unfit = any(isinstance(module, UNFIT_FOR_FUSED) for module in model.modules())
        if request.engine != "auto" or not on_cpu or not is_unfit:
            is_tiny = num_trainable(model) <= TINY_PARAMETERS
            yield Candidate(
                engine,
                threads,
                counts,
                compile_s=FUSED_COMPILE_S,
                compiles_each=True,
                start=(1 + is_tiny) * request.rule,  # its learners are one batch: more tiny ones cost little
                expected_gain=FUSED_GAIN if is_tiny else 1.0,
            )
    elif engine == "graph" and on_cpu:
        build_s = 0.0 if is_built() else BUILD_S
        orders = ("", CHANNELS_LAST) if has_choice_of_format(request.replicas) else ("",)
        if not request.compile:
            yield from (Candidate(f"{engine}{order}", counts=counts, compile_s=build_s) for order in orders)
            cores = len(available_cores())
            several = tuple(count for count in counts if share_cores(count, cores, threads)[1] > 1)
            if several:
                yield Candidate(engine, threads, several, compile_s=build_s)
        # Otherwise it is compiled beside the rounds, on one device.
        in_front = request.engine != "auto" or request.compile or request.replicas.is_several
        for order in orders:
            # Capturing would build the runtime: where it is missing, assume that compiling is needed.
            compile_s = build_s + COMPILE_S if build_s else trials.compile_s(EngineSetting(engine + order, counts[0]))
            if compile_s is not None and (in_front or not compile_s):
                yield replace(compiled, engine=f"{compiled.engine}{order}", compile_s=compile_s)
    elif request.compile:
        yield replace(compiled, threads=threads)
    else:
        numbers = {1, threads} if engine == "eager" else {1}
        yield from (Candidate(engine, number, counts) for number in sorted(numbers, reverse=True))
