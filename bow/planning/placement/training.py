"""REINFORCE training of a placement policy, in this process or by controller processes that send gradients."""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bow.errors import ClusterError, ScheduleError, SettingError
from bow.planning.placement.policy import Operations, PlacementPolicy, PolicySettings
from bow.planning.search.processes import Inbox, SearchProcess, Send
from bow.seeds import derive_seed

MIN_ENTROPY = 1e-3  # lower bound of the entropy in `worth_of_entropy`


@dataclass(frozen=True)
class LearningSettings:
    """Hyperparameters of policy training; docs/placement.md lists and explains deviations from the paper."""

    samples: int = 20  # placements sampled per update, K
    learning_rate: float = 0.01  # of Adam
    gradient_norm: float = 1.0  # maximum norm for clipping
    baseline_decay: float = 0.9  # decay of the moving-average baseline
    mask_failures_after: int = 200  # updates after which failures no longer contribute
    # Fraction of the samples with uniformly drawn devices, so that a converged policy still explores neighbours. The
    # policy learns from these samples only if they become elites: a random choice says nothing about the others.
    exploring: float = 0.5
    random_choices: float = 2.0  # mean number of uniformly drawn devices in each of them
    entropy: float = 0.03  # weight of the entropy bonus, per nat
    # Below this many nats of entropy per placement the bonus is scaled up in proportion: a policy that always samples
    # the same placement learns nothing more.
    least_entropy: float = 5.0
    elites: int = 10  # best placements so far whose likelihood each update also increases
    # Last fraction of the training, in which the entropy bonus falls to 0 and the number of elites to 1, so that the
    # policy settles on the best placement.
    settling: float = 0.2

    @property
    def explorers(self) -> int:
        return int(self.exploring * self.samples)

    def worth_of_entropy(self, nats: float) -> float:
        return self.entropy * max(1.0, self.least_entropy / max(nats, MIN_ENTROPY))

    def unsettled(self, left: float) -> float:
        """Return the factor of the entropy bonus and of the elites when this fraction of the training is left."""
        return min(1.0, left / self.settling) if self.settling else 1.0


FAILURE_PENALTY = 10.0  # a failure counts as this multiple of the slowest of the first placements that fit


@dataclass
class Baseline:
    """Moving average of signals, and of their squared deviations."""

    # R = sqrt(time),  A = (R - B) / S,  B <- decay * B + (1 - decay) * mean(R),  S^2 <- the same of (R - B)^2
    # Initialised to the failing signal, so that initially every placement that fits is an improvement.

    decay: float = 0.9  # of the averages
    failing_s: float | None = None  # time assigned to a placement that fails or does not fit; None: not known yet
    value: float | None = None  # B; None: no signal yet
    square: float | None = None  # moving mean square of the deviations; None: none yet

    def advantages(self, times: Sequence[float | None], *, mask_failures: bool) -> Tensor:
        """Return normalised advantages (positive: slower than the baseline), float64; 0 for masked failures."""
        signals = self._signals(times, mask_failures)
        known = [signal for signal in signals if signal is not None]
        if not known:
            return torch.zeros(len(times), dtype=torch.float64)
        assert self.failing_s is not None
        baseline = math.sqrt(self.failing_s) if self.value is None else self.value
        self.value = self.decay * baseline + (1 - self.decay) * math.fsum(known) / len(known)
        square = math.fsum((signal - baseline) * (signal - baseline) for signal in known) / len(known)
        self.square = square if self.square is None else self.decay * self.square + (1 - self.decay) * square
        scale = math.sqrt(self.square) or 1.0
        values = [0.0 if signal is None else (signal - baseline) / scale for signal in signals]
        return torch.tensor(values, dtype=torch.float64)

    def _signals(self, times: Sequence[float | None], mask_failures: bool) -> list[float | None]:
        slowest = max((time for time in times if time is not None), default=None)
        if self.failing_s is None and slowest is not None:
            self.failing_s = FAILURE_PENALTY * slowest
        failing = None if mask_failures or self.failing_s is None else math.sqrt(self.failing_s)
        return [failing if time is None else math.sqrt(time) for time in times]


def sanitised(times: Sequence[float | None]) -> list[float | None]:
    """Replace every time that is not finite and positive by None (a failure)."""
    return [time if time is not None and math.isfinite(time) and time > 0 else None for time in times]


def policy_loss(advantages: Tensor, log_probabilities: Tensor, entropies: Tensor, entropy_weight: float) -> Tensor:
    """Return the loss, whose gradient is the policy-gradient estimate with entropy bonus and elite imitation."""
    # loss = 1/K sum_k A_k log p(P_k) - entropy_weight * 1/K sum_k H_k - 1/E sum_e log p(P_e); elites follow the samples
    count = len(advantages)
    drawn, elites = log_probabilities[:count], log_probabilities[count:]
    loss = (advantages.to(drawn.dtype) * drawn).mean()
    if entropy_weight:
        loss = loss - entropy_weight * entropies[:count].mean()
    return loss - elites.mean() if len(elites) else loss


Placement: TypeAlias = tuple[int, ...]  # device by operation
Ranked: TypeAlias = tuple[tuple[float, Placement], ...]  # distinct placements with their times, fastest first


def elites(found: Ranked, placements: Sequence[Placement], times: Sequence[float | None], count: int) -> Ranked:
    """Return the best distinct placements of those found before and the new ones that fit."""
    fits = {(time, placement) for time, placement in zip(times, placements, strict=True) if time is not None}
    return tuple(sorted({*found, *fits})[:count])


class Updater:
    """Adam with gradient clipping; skips non-finite gradients."""

    def __init__(self, policy: nn.Module, settings: LearningSettings) -> None:
        self._parameters = list(policy.parameters())
        self._norm = settings.gradient_norm
        self._adam = torch.optim.Adam(self._parameters, lr=settings.learning_rate, foreach=True)
        self.updates = 0  # including skipped ones
        self.skipped = 0  # because a gradient was not finite

    def update(self) -> bool:
        """Update the parameters; return whether it was done."""
        # If all gradients are 0 there was nothing to learn, for example only masked failures: Adam's momentum must not
        # move the parameters then.
        norm = nn.utils.clip_grad_norm_(self._parameters, self._norm)
        self.updates += 1
        self.skipped += not norm.isfinite()
        if not norm.isfinite() or norm == 0:
            return False
        self._adam.step()
        return True


Evaluate: TypeAlias = Callable[[list[Placement]], Sequence[float | None]]
"""Returns the step time in seconds of each placement; None: does not fit, or fails."""


@dataclass(frozen=True)
class SampledPlacements:
    """The samples of a controller for one update."""

    placements: tuple[Placement, ...]
    times: tuple[float | None, ...]  # by placement, in seconds; None: does not fit, or failed
    entropy: float  # of the policy, in nats per operation, averaged over samples


class Controller:
    """Samples placements from a policy and estimates the gradient; has its own baseline and elites."""

    def __init__(
        self, policy: PlacementPolicy, evaluate: Evaluate, settings: LearningSettings, *, seed: int = 0, number: int = 0
    ) -> None:
        self.policy = policy
        self._evaluate, self._settings = evaluate, settings
        self._generator = torch.Generator().manual_seed(derive_seed(seed, number))
        self._baseline = Baseline(settings.baseline_decay)
        self._elites: Ranked = ()

    def step(self, update: int, left: float = 1.0) -> SampledPlacements:
        """Sample and evaluate placements, and set the policy's gradients; `left` is the fraction of the training."""
        settings, unsettled = self._settings, self._settings.unsettled(left)
        drawn = self.policy.sample(
            settings.samples,
            self._generator,
            explorers=settings.explorers,
            random_choices=settings.random_choices,
        )
        placements = [tuple(row) for row in drawn.tolist()]
        times = sanitised(self._evaluate(placements))
        if len(times) != len(placements):
            raise SettingError(
                f"evaluate returned {len(times)} times for {len(placements)} placements; return one for each"
            )
        own = settings.samples - settings.explorers
        advantages = self._baseline.advantages(times[:own], mask_failures=update >= settings.mask_failures_after)
        self._elites = elites(self._elites, placements, times, settings.elites)
        best = [placement for _, placement in self._elites[: max(1, round(unsettled * settings.elites))]]
        learnt = torch.cat([drawn[:own], drawn.new_tensor(best).view(-1, drawn.shape[1])])
        likelihood = self.policy.log_probability(learnt)
        self.policy.zero_grad()
        nats = likelihood.entropies[:own].mean().item()
        loss = policy_loss(advantages, *likelihood, unsettled * settings.worth_of_entropy(nats))
        loss.backward()  # type: ignore[no-untyped-call]
        return SampledPlacements(tuple(placements), tuple(times), nats / len(self.policy.operations))

    def state(self) -> dict[str, Any]:
        return {
            "generator": self._generator.get_state(),
            "baseline": asdict(self._baseline),
            "elites": self._elites,
        }

    def load(self, state: dict[str, Any]) -> None:
        generator: Tensor = state["generator"]
        self._generator.set_state(generator)
        self._baseline = Baseline(**state["baseline"])
        self._elites = state["elites"]


@dataclass(frozen=True)
class BestPlacement:
    """A new best placement."""

    placement: Placement  # device by operation
    time_s: float  # step time
    sample: int  # its number among all samples, from 1


@dataclass(frozen=True)
class LearnedPlacement:
    """Result of a policy training."""

    best: BestPlacement  # the best sample
    greedy: Placement  # decoded greedily by the trained policy
    policy: PlacementPolicy  # trained
    samples: int  # placements sampled
    updates: int


class TrainingState:
    """State of a running training, in one process or several: policy, optimizer, best sample."""

    def __init__(
        self,
        operations: Operations,
        settings: LearningSettings,
        sizes: PolicySettings,
        seed: int,
        *,
        updates: int,
        budget_s: float | None,
    ) -> None:
        self.policy = PlacementPolicy(operations, sizes, seed=seed)
        self.updater = Updater(self.policy, settings)
        self.samples = 0  # placements sampled
        self.best: BestPlacement | None = None  # None: none has fitted yet
        self._updates, self._budget_s = updates, budget_s
        self._start = time.perf_counter()

    @property
    def is_over(self) -> bool:
        is_late = self._budget_s is not None and time.perf_counter() - self._start >= self._budget_s
        return is_late or self.updater.updates >= self._updates

    @property
    def left(self) -> float:
        """Fraction of the updates or of the time budget that is left, whichever is less."""
        updates = 1 - self.updater.updates / self._updates if self._updates else 0.0
        if self._budget_s is None:
            return updates
        return max(0.0, min(updates, 1 - (time.perf_counter() - self._start) / self._budget_s))

    def learn(self, batch: SampledPlacements) -> None:
        for placement, time_s in zip(batch.placements, batch.times, strict=True):
            self.samples += 1
            if time_s is not None and (self.best is None or time_s < self.best.time_s):
                self.best = BestPlacement(placement, time_s, self.samples)
        self.updater.update()

    @contextlib.contextmanager
    def reporting_best(self) -> Iterator[None]:
        """End the training on Ctrl-C; add the best placement so far as a note to any exception."""
        try:
            yield
        except KeyboardInterrupt:
            pass
        except Exception as error:
            if self.best is not None:
                found = f"{self.best.time_s:.6g} s: {self.best.placement}"
                error.add_note(f"the best placement found before the error takes {found}")
            raise

    def result(self) -> LearnedPlacement:
        if self.best is None:
            if not self.samples:
                raise ScheduleError(
                    "no placement was sampled before the search ended; use a longer budget_s or more proposals"
                )
            raise ScheduleError(
                f"none of {self.samples} sampled placements fits into memory; train longer, or use more devices"
            )
        return LearnedPlacement(self.best, self.policy.greedy(), self.policy, self.samples, self.updater.updates)


Watch: TypeAlias = Callable[[TrainingState, SampledPlacements], bool | None]
"""Called after each update, with its samples; False ends the training."""

Messages: TypeAlias = "queue.Queue[tuple[SearchProcess, Any]]"

POLL_S = 0.1  # interval of budget checks while no controller sends anything
CLOSING_S = 5.0  # time that a controller whose connection has closed gets to exit
MOST_DEATHS = 3  # consecutive deaths without a message after which a controller is not restarted


def train_policy(
    operations: Operations,
    evaluate: Evaluate,
    *,
    updates: int,
    settings: LearningSettings | None = None,
    sizes: PolicySettings | None = None,
    seed: int = 0,
    budget_s: float | None = None,
    controllers: int = 0,
    watch: Watch | None = None,
) -> LearnedPlacement:
    # Reproducible by seed in one process; with controllers, results depend on the order of their messages.
    settings, sizes = settings or LearningSettings(), sizes or PolicySettings()
    state = TrainingState(operations, settings, sizes, seed, updates=updates, budget_s=budget_s)
    shared = (operations, sizes, settings, seed, evaluate)
    processes = [_ControllerProcess(number, shared) for number in range(controllers)]
    with state.reporting_best():
        try:
            if processes:
                _serve(state, processes, watch)
            else:
                controller, goes_on = Controller(state.policy, evaluate, settings, seed=seed), True
                while goes_on and not state.is_over:
                    batch = controller.step(state.updater.updates, state.left)
                    state.learn(batch)
                    goes_on = watch is None or watch(state, batch) is not False
        finally:
            for process in processes:
                process.end()
    return state.result()


def _serve(state: TrainingState, processes: list[_ControllerProcess], watch: Watch | None) -> None:
    messages: Messages = queue.Queue()
    for process in processes:
        process.begin(state, messages)
    while not state.is_over:
        if all(process.deaths == MOST_DEATHS for process in processes):
            raise ClusterError(f"{processes[0].failure}; check its output")
        try:
            sender, message = messages.get(timeout=POLL_S)
        except queue.Empty:
            continue
        process = next(each for each in processes if each.process is sender)
        if message is None:
            process.replace(state, messages)
            continue
        gradients, batch, process.controller = message
        process.deaths = 0
        for parameter, gradient in zip(state.policy.parameters(), gradients, strict=True):
            parameter.grad = gradient
        state.learn(batch)
        if (watch is not None and watch(state, batch) is False) or state.is_over:
            return
        process.send_parameters(state)


class _ControllerProcess:
    """A controller's number, state, and current process."""

    def __init__(self, number: int, shared: tuple[Any, ...]) -> None:
        self.deaths = 0  # consecutive, without a message
        self.controller: dict[str, Any] | None = None  # state after its last message
        self.process: SearchProcess | None = None
        self._number, self._shared = number, shared

    def begin(self, state: TrainingState, messages: Messages) -> None:
        self.process = SearchProcess(messages)
        self.process.begin(run_controller, self._number, self.controller, *self._shared)
        self.send_parameters(state)

    def send_parameters(self, state: TrainingState) -> None:
        assert self.process is not None
        self.process.send((state.updater.updates, state.left, parameters_to_vector(state.policy.parameters()).detach()))

    def replace(self, state: TrainingState, messages: Messages) -> None:
        assert self.process is not None
        self.deaths += 1
        status = self.process.end(CLOSING_S)
        times = f"died {self.deaths} times before its first message"
        self.failure = f"controller {self._number} {times} (last exit status {status})"
        if self.deaths < MOST_DEATHS:
            self.begin(state, messages)

    def end(self) -> None:
        if self.process is not None:
            self.process.end()


def run_controller(
    send: Send,
    inbox: Inbox,
    number: int,
    own: dict[str, Any] | None,
    operations: Operations,
    sizes: PolicySettings,
    settings: LearningSettings,
    seed: int,
    evaluate: Evaluate,
) -> None:
    """Entry point of a controller process: sample, evaluate and send gradients."""
    torch.set_num_threads(1)  # processes share the cores
    policy = PlacementPolicy(operations, sizes, seed=seed)
    controller = Controller(policy, evaluate, settings, seed=seed, number=number)
    if own is not None:
        controller.load(own)
    while True:
        updates, left, parameters = inbox.get()
        vector_to_parameters(parameters, policy.parameters())
        batch = controller.step(updates, left)
        send(([parameter.grad for parameter in policy.parameters()], batch, controller.state()))
