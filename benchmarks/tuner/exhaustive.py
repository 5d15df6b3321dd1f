"""The exhaustive search: its settings are listed independently of the tuner, and include what the tuner skips."""

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks import harness
from bow.devices import available_cores, share_cores
from bow.errors import SettingError
from bow.training.trials import CHANNELS_LAST, COMPILED, ENGINES_CPU, Trials, split
from bow.tuner import EngineSetting, Trial

COUNTS = (1, 2, 3, 4, 6, 8)  # numbers of learners, in addition to the maximum

CLOSE = 0.75  # settings with at least this fraction of the highest throughput in the first pass are measured again

# Measurements of a setting in the first pass; the faster one counts, since disturbances only slow down
PARTS = 2


@dataclass(frozen=True)
class Tried:
    """The results of an exhaustive search."""

    rates: Mapping[
        EngineSetting, Sequence[float]
    ]  # samples per second by setting, of the first pass and of further ones
    failures: Mapping[EngineSetting, str]  # settings that failed, and why
    left_out: Mapping[EngineSetting, str]  # settings that were skipped, and why

    @property
    def by_speed(self) -> list[EngineSetting]:
        """Successful settings, the fastest first."""
        return sorted(self.rates, key=lambda setting: -statistics.median(self.rates[setting]))


def everything(most: int, threads: int, cores: int | None = None, has_formats: bool = False) -> list[EngineSetting]:
    """Return every engine, plain and compiled, with every memory format, number of learners and of threads.

    Without duplicates: engine `graph` divides the threads among its learners, and with as many learners as cores each
    has one thread, whatever the number of threads.

    Example:
        >>> [str(setting) for setting in everything(most=2, threads=2, cores=2) if setting.engine == "graph"]
        ['graph, 1 learner, 2 threads', 'graph, 1 learner', 'graph, 2 learners']
    """
    if most < 2:
        raise SettingError(f"at least 2 learners must be possible for a comparison, got {most}; give more samples")
    cores = len(available_cores()) if cores is None else cores
    counts = sorted({count for count in COUNTS if count < most} | {most})
    names = [
        f"{engine}{compiled}{order}"
        for engine in ENGINES_CPU
        for compiled in ("", COMPILED)[: 1 + (engine == "graph")]
        for order in ("", CHANNELS_LAST)[: 1 + (engine == "graph" and has_formats)]
    ]
    return [
        EngineSetting(name, count, number)
        for name in names
        for number in sorted({1, threads}, reverse=True)
        for count in counts
        if number == 1 or split(name)[0] != "graph" or share_cores(count, cores, number)[1] > 1
    ]


def try_all(
    trials: Trials, settings: Sequence[EngineSetting], *, passes: int, first_s: float, stint_s: float, compile_s: float
) -> Tried:
    """Measure all settings briefly, and those close to the fastest of them again."""
    rates: dict[EngineSetting, list[float]] = {}
    failures: dict[EngineSetting, str] = {}
    left_out: dict[EngineSetting, str] = {}
    compiled_s = 0.0
    for setting in settings:
        if setting.engine == "fused" and compiled_s > compile_s:
            left_out[setting] = f"compiling fewer learners took {compiled_s:.0f} s, more than {compile_s:g} s"
            continue
        measured = trials.run(Trial(setting, first_s, PARTS, "exhaustive trial"))
        compiled_s += measured.compile_s if setting.engine == "fused" else 0.0
        if measured.failure is None:
            rates[setting] = list(measured.rates)
        else:
            failures[setting] = measured.failure
    highest = max(map(max, rates.values()))
    close = [setting for setting in rates if max(rates[setting]) >= CLOSE * highest]
    more, failed = take_turns(trials, close, turns=passes - 1, stint_s=stint_s)
    failures.update(failed)
    for setting, found in more.items():
        rates[setting] += found
    return Tried({setting: found for setting, found in rates.items() if setting not in failures}, failures, left_out)


def take_turns(
    trials: Trials, settings: Sequence[EngineSetting], *, turns: int, stint_s: float
) -> tuple[Mapping[EngineSetting, Sequence[float]], Mapping[EngineSetting, str]]:
    """Return samples per second by turn of the successful settings; and why the others failed."""
    failures: dict[EngineSetting, str] = {}

    def turn(setting: EngineSetting) -> list[float]:
        measured = trials.run(Trial(setting, stint_s, 1, "in turn"))
        if measured.failure is not None:
            raise harness.CaseError(measured.failure)
        return list(measured.rates)

    def failed(setting: EngineSetting, error: Exception) -> None:
        failures[setting] = str(error)

    cases = {setting: functools.partial(turn, setting) for setting in settings}
    found = harness.take_turns(cases, turns, failed=failed)
    return {setting: [rate for rates in own for rate in rates] for setting, own in found.items()}, failures
