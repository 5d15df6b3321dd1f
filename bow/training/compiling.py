"""Compile the learning task beside the first rounds, and switch to it between two rounds if it is faster."""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from bow.engines.captured import expected_compile_s
from bow.errors import disk_reason
from bow.interruption import Interruption
from bow.observe import RunDirectory
from bow.observe.records import STAYED, SWITCHED, read_records
from bow.runtime.region_process import NICE, RegionProcess
from bow.training.context import RunContext
from bow.training.replicas import Replicas
from bow.training.run_records import RunRecords
from bow.training.trials import CHANNELS_LAST, COMPILED
from bow.training.tuning import PLANNED
from bow.tuner import EngineSetting, Trial

TURNS, FEWEST = 15, 5  # paired trials, and the fewest that decide
TURN_S = 0.1  # seconds of one of the two
POLL_S = 0.05


class CompilingBeside:
    """Decides once, after the compiler's process has ended, by trials of both forms in turn."""

    def __init__(self, context: RunContext, records: RunRecords, rounds_left: Callable[[], int | None]) -> None:
        assert isinstance(context.replicas, Replicas)
        self._replicas = context.replicas
        self._context = context
        self._records = records
        self._rounds_left = rounds_left
        self._process: RegionProcess | None = None  # None: not started, or not needed
        self._is_started = False
        self._began: int | None = None  # the first round of this part of the training
        self._recorded: int | None = None  # round of the switch of the training that is resumed
        self.is_open = True  # until it is decided

    @property
    def rounds_to_switch(self) -> int:
        """Upper limit of rounds together, so that a switch is repeated in its place."""
        done = self._context.position.round
        return sys.maxsize if self._recorded is None or not self.is_open else max(1, self._recorded - done)

    def between_rounds(self) -> None:
        """Start the process, or decide if it has ended."""
        if not self.is_open or Interruption.pending:
            return
        done = self._context.position.round
        if self._began is None:
            self._begin(done)
        elif not self._is_started:
            self._start()
        if self._recorded is not None and done >= self._recorded:
            self._repeat()
        elif self._recorded is None and self._is_started and self.is_open and self._is_ready:
            self._decide()

    @property
    def _is_ready(self) -> bool:
        return self._process is None or self._process.has_ended

    def close(self) -> None:
        self.is_open = False
        if self._process is not None:
            self._process.close()

    def _begin(self, done: int) -> None:
        """Look for the decision of the training that is resumed, of this round or a later one, and record it again."""
        self._began = done
        resumed = self._context.resumed
        path = None if resumed is None else RunDirectory(resumed).metrics_path
        records = read_records(path, strict=False) if path is not None and path.is_file() else []
        decided = [
            each for each in records if each.get("event") in (SWITCHED, STAYED) and each.get("round", -1) >= done
        ]
        if not decided:
            return
        event, message, at = (decided[-1][name] for name in ("event", "message", "round"))
        self._records.event(event, message, at)  # this run may have another directory, and be resumed as well
        if event == SWITCHED:
            self._recorded = at
        else:
            self.close()

    def _start(self) -> None:
        self._is_started = True
        graph = self._replicas.loop.compilable
        if graph is None or not expected_compile_s(graph):
            return
        try:
            # A training that repeats a switch waits for it.
            self._process = RegionProcess(graph, NICE if self._recorded is None else 0)
        except OSError as error:
            if self._recorded is None:  # else it is compiled at the switch
                self._stay(disk_reason(error))

    def _repeat(self) -> None:
        """Switch where the training that is resumed did, once the region is compiled."""
        while not self._is_ready and not Interruption.pending:
            time.sleep(POLL_S)
        if not Interruption.pending:
            self._switch()

    def _decide(self) -> None:
        if self._replicas.loop.compilable is None:  # its engine has changed
            self.close()
            return
        if self._process is not None and self._process.failure is not None:
            self._stay(self._process.failure)
            return
        meter = self._context.position.meter
        meter.pause()
        ratios, failure = self._compare()
        meter.resume()
        if Interruption.pending:
            return  # the resumed training decides
        if len(ratios) < FEWEST:
            self._stay(failure or "too little of the training is left to compare")
            return
        low, gain, _ = statistics.quantiles(ratios)
        compared = f"{gain:.2f} times the samples/s of uncompiled in {len(ratios)} paired trials"
        if low > 1 and gain > 1 + self._context.tuner.threshold:
            self._records.event(SWITCHED, f"the learning task runs compiled from this round on: {compared}")
            self._switch()
        else:
            self._stay(compared)

    def _compare(self) -> tuple[list[float], str | None]:
        """Return ratios of throughputs, compiled over uncompiled, within the share of trials; or why there are none."""
        meter, left = self._context.position.meter, self._rounds_left() or 0
        round_s = meter.seconds / max(1, self._context.position.round - (self._began or 0))
        most_s = PLANNED * self._context.tuner.share * left * round_s
        learners, threads = self._replicas.learners, torch.get_num_threads()
        order = CHANNELS_LAST * (self._context.tuned.memory_format is not None)
        both = [EngineSetting(f"graph{how}{order}", learners, threads) for how in ("", COMPILED)]
        ratios: list[float] = []
        if 2 * FEWEST * (TURN_S + 3 * round_s) > most_s:
            return ratios, None
        self._replicas.close()  # its threads would disturb the trials
        trials, began = self._context.trials(), time.perf_counter()
        try:
            while len(ratios) < TURNS and (len(ratios) < FEWEST or time.perf_counter() - began < most_s):
                rates: dict[EngineSetting, float] = {}
                for setting in both if len(ratios) % 2 else reversed(both):
                    if Interruption.pending:
                        return [], None
                    result = trials.run(Trial(setting, TURN_S, 1, "whether compiling pays"))
                    if result.failure is not None:
                        return [], result.failure
                    rates[setting] = result.rates[0]
                ratios.append(rates[both[1]] / rates[both[0]])
        finally:
            trials.close()
        return ratios, None

    def _switch(self) -> None:
        loop = self._replicas.loop
        loop.load_engine({name: {**state, "switched": True} for name, state in loop.engine_state.items()})
        self.close()

    def _stay(self, why: str) -> None:
        self._records.event(STAYED, f"the learning task stays uncompiled: {why}")
        self.close()
