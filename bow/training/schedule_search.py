"""Find the fastest schedule of a training, by timing policies where it will run."""

import contextlib
import dataclasses
from collections.abc import Sequence

import torch

from bow.devices import StreamDevice, cuda_device
from bow.engines import Batch
from bow.engines.captured import with_autocast
from bow.engines.memory import is_cpu
from bow.errors import BowError, ScheduleError
from bow.schedule import OrderedSchedule, Schedule
from bow.schedule.profiler import BoundStep, Comparison, Policy, compare, make_policies
from bow.schedule.profiler.device import bind_on, device_policies, measure_on
from bow.schedule.profiler.measuring import measure, numbers_of_threads
from bow.schedule.scheduler import CriticalPath, critical_path
from bow.timing import time_in_turns
from bow.training.replicas_config import ReplicasConfig
from bow.training.trials import stand_still, without_a_trace

TURNS = 10
WINDOW_S = 0.05  # seconds of rounds in each turn of a policy


def compared(replicas_config: ReplicasConfig, batch: Batch, cores: int) -> Comparison:
    """Time the policies that a training can use where it will run: on as many cores as a learner has."""
    place = replicas_config.device
    if not is_cpu(place):
        return compare_on(place if isinstance(place, StreamDevice) else cuda_device(place), replicas_config, batch)
    step = with_autocast(replicas_config.task.task_step, torch.device("cpu"), replicas_config.task.precision)
    bound = BoundStep.of(replicas_config.model, batch, step=step)
    profile = measure(bound, threads=numbers_of_threads(cores))
    policies = make_policies(bound, profile, cores)
    return compare(bound, profile, policies=[each for each in policies if isinstance(each.schedule, OrderedSchedule)])


class Rounds:
    """Rounds of one learner in engine `graph`, for timing."""

    def __init__(self, replicas_config: ReplicasConfig, batch: Batch, schedule: Schedule | None) -> None:
        self._batch = batch
        self._replicas = replicas_config.with_engine(schedule=schedule).build("graph", 1)
        stand_still(self._replicas)
        try:
            self.run()
            refusal = [event.message for event in self._replicas.loop.take_events() if event.event == "engine changed"]
            if refusal:
                raise ScheduleError(refusal[0])
        except BaseException:
            self.close()
            raise

    def run(self) -> None:
        """Run one group of rounds, and wait for the device."""
        self._replicas.rounds_at_once([[self._batch]] * self._replicas.loop.period)
        self._replicas.loop.catch_up()

    def rest(self) -> None:
        """Do nothing: nothing runs between turns."""

    def close(self) -> None:
        self._replicas.close()


def compare_on(device: StreamDevice, replicas_config: ReplicasConfig, batch: Batch) -> Comparison:
    """Profile a learning task on a device; time critical-path-first on several streams against one stream."""
    with without_a_trace(device):
        step = with_autocast(replicas_config.task.task_step, device.torch_device, replicas_config.task.precision)
        bound = bind_on(device, replicas_config.model, batch, step)
        profile = measure_on(device, bound)
        policies = device_policies(bound, profile)
        path = critical_path(bound.dependencies, profile.nanoseconds(1))
        own = bound.batch
        del bound  # frees its weights for the learners
        return timed(replicas_config, own, policies, path)


def timed(replicas_config: ReplicasConfig, batch: Batch, policies: Sequence[Policy], path: CriticalPath) -> Comparison:
    """Time rounds by each policy in turns, then the best and the best on one stream again; skip what cannot run."""
    with contextlib.ExitStack() as stack:
        cases: dict[str, Rounds] = {}
        for policy in policies:
            try:
                rounds = Rounds(replicas_config, batch, None if policy.is_sequential else policy.schedule)
            except BowError:
                if policy.is_sequential:
                    raise
                continue
            cases[policy.name] = stack.enter_context(contextlib.closing(rounds))
        ran = tuple(policy for policy in policies if policy.name in cases)
        found = Comparison(ran, time_in_turns(cases, turns=TURNS, window_s=WINDOW_S), path)
        finalists = {policy.name: cases[policy.name] for policy in (found.best_sequential, found.best)}
        return dataclasses.replace(found, finalist_seconds=time_in_turns(finalists, turns=2 * TURNS, window_s=WINDOW_S))
