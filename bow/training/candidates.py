"""What a calibration may try on a device: engines, threads, numbers of learners."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from bow.devices import available_cores, share_cores
from bow.engines.choice import FUSED_PARAMETERS
from bow.engines.offload import OFFLOADING
from bow.replicas import num_trainable
from bow.runtime.loading import BUILD_S, is_built
from bow.training.replicas_config import ReplicasConfig
from bow.training.trials import COMPILED, Trials
from bow.tuner import Candidate, EngineSetting, doubling

ENGINES_CPU: tuple[str, ...] = ("graph", "streams", "eager", "fused")
ENGINES_CUDA: tuple[str, ...] = ("graph", "graph+round", "streams", "fused", "eager")
"""In the order in which they are measured, those that are best most often first: a short budget ends early."""

MOST_PER_CORE = 4
"""Learners per core at most: what they bring beyond one a core is that fewer rounds have less overhead."""

MOST_CPU, MOST_CUDA = 8, 64  # at least so many are looked at on a CPU, at most on a GPU, if they pay
FUSED_COMPILE_S = 12.0
COMPILE_S = 20.0  # what compiling a learning task by `torch.compile` takes, roughly
FUSED_GAIN = 1.2
"""What the fused engine is expected to bring for models of up to `FUSED_PARAMETERS`; nothing for larger ones."""

UNFIT_FOR_FUSED = (nn.modules.conv._ConvNd, nn.RNNBase)
"""Modules that `vmap` on a CPU runs learner by learner or slower, as `benchmarks/results/engines.md` shows."""


@dataclass(frozen=True)
class Request:
    """What the user wants, and what is left open."""

    engine: str  # a name, or `"auto"`
    learners: int | Literal["auto"]  # how many, or `"auto"`
    compile: bool  # whether the learning task is to be compiled
    batch_size: int  # samples of a batch
    most: int  # as many learners as the data leave room for, if that is left open
    samples: float | None  # how many the training will see; None where that is unknown
    rounds: int | None  # how many the training will have with the rule's number of learners; None where that is unknown
    rule: int  # how many learners the rule of thumb gives
    replicas: ReplicasConfig  # what learners are made of

    @property
    def is_open(self) -> bool:
        return self.engine == "auto" or self.learners == "auto"


def lanes(request: Request, trials: Trials) -> list[Candidate]:
    """Everything that may be tried; a learning task is captured to know whether it has been compiled before."""
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


def _counts(request: Request, engine: str) -> tuple[int, ...]:
    replicas, learners = request.replicas, request.learners
    if learners != "auto":
        return (learners,) if replicas.most_learners(engine, learners) == learners else ()
    if replicas.on_cpu and engine == "eager" and request.engine == "auto":
        return (1,)  # in turn, on all threads: further learners would only add rounds of averaging
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
            gain = FUSED_GAIN if num_trainable(model) <= FUSED_PARAMETERS else 1.0
            lane = Candidate(engine, threads, counts, compile_s=FUSED_COMPILE_S, compiles_each=True, expected_gain=gain)
            yield replace(lane, start=request.rule)
    elif engine == "graph" and on_cpu:
        build_s = 0.0 if is_built() else BUILD_S
        if not request.compile:
            yield Candidate(engine, counts=counts, compile_s=build_s)
            cores = len(available_cores())
            several = tuple(count for count in counts if share_cores(count, cores, threads)[1] > 1)
            if several:
                yield Candidate(engine, threads, several, compile_s=build_s)
        # Capturing builds the runtime, so that without it nothing is captured to find out.
        compile_s = build_s + COMPILE_S if build_s else trials.compile_s(EngineSetting(engine, counts[0]))
        if compile_s is not None:
            yield replace(compiled, compile_s=compile_s)
    elif request.compile:
        yield replace(compiled, threads=threads)
    else:
        numbers = {1, threads} if engine == "eager" else {1}
        yield from (Candidate(engine, number, counts) for number in sorted(numbers, reverse=True))
