"""The measurements of `bow bench engines`, and what is told of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bow.bench.environment import Environment
from bow.bench.measure import Spread, ratios
from bow.bench.results import Table

PLAIN = "pytorch"
TITLES = {"logistic_regression": "logistic regression", "mlp": "MLP", "lenet": "LeNet"}


@dataclass(frozen=True)
class Lane:
    """One contestant of a group.

    Attributes:
        implementation: `"pytorch"`, `"compiled"`, or an engine of bow.
        threads: torch's threads.
        learners: of bow; None for plain PyTorch.
        first_call_s: seconds of its first call, which compiles.
        rates: samples per second, one for each repeat.
    """

    implementation: str
    threads: int
    learners: int | None
    first_call_s: float = 0.0
    rates: tuple[float, ...] = ()

    def __str__(self) -> str:
        """For people."""
        learners = "" if self.learners is None else f" with {_counted(self.learners, 'learner')}"
        return f"{self.implementation}{learners} on {_counted(self.threads, 'thread')}"

    @property
    def speed(self) -> Spread:
        """Samples per second."""
        return Spread.of(self.rates)


@dataclass(frozen=True)
class Group:
    """Everybody's measurements with one model and one batch size.

    Attributes:
        model: its name.
        batch_size: per learner.
        lanes: the contestants; those of plain PyTorch are among them.
        notes: what was left out, and what ran as something else.
        seconds: how long it took, compiling included.
    """

    model: str
    batch_size: int
    lanes: tuple[Lane, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def baseline(self) -> Lane:
        """Plain PyTorch with its better number of threads."""
        best = self.best(PLAIN)
        assert best is not None, "plain PyTorch always runs"
        return best

    def best(self, implementation: str, learners: int | None = None) -> Lane | None:
        """The fastest lane of an implementation over thread counts, and over learners where they are left open."""
        own = [lane for lane in self.lanes if lane.implementation == implementation]
        fitting = [lane for lane in own if learners is None or lane.learners == learners]
        return max(fitting, key=lambda lane: lane.speed.median, default=None)

    @property
    def best_of_bow(self) -> Lane | None:
        """The fastest setting of bow."""
        lanes = [lane for lane in self.lanes if lane.learners is not None]
        return max(lanes, key=lambda lane: lane.speed.median, default=None)

    def ratio(self, lane: Lane) -> Spread:
        """How much faster than plain PyTorch."""
        return ratios(lane.rates, self.baseline.rates)

    def as_dict(self) -> dict[str, Any]:
        """All measurements as plain values."""
        best = self.best_of_bow
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            "seconds": round(self.seconds, 1),
            "best_of_bow": None if best is None else f"{best}: {self.ratio(best).median:.2f} times plain PyTorch",
            "notes": list(self.notes),
            "contestants": [self._lane_dict(lane) for lane in self.lanes],
        }

    def _lane_dict(self, lane: Lane) -> dict[str, Any]:
        return {
            "implementation": lane.implementation,
            "learners": lane.learners,
            "threads": lane.threads,
            "samples_per_s": lane.speed.as_dict(digits=1),
            "ratio": self.ratio(lane).as_dict(digits=3),
            "first_call_s": round(lane.first_call_s, 2),
        }


def table(groups: Sequence[Group]) -> Table:
    """A row for every model, batch size and number of learners."""
    rows = [row for group in groups for row in _rows(group)]
    columns = ["model", "batch", "PyTorch", "compiled", "learners", "eager", "ratio", "fused", "ratio"]
    return Table(columns, rows, left=["model"])


def summary(group: Group) -> str:
    """A line about a group."""
    head = f"{TITLES[group.model]}, batch {group.batch_size}: PyTorch {group.baseline.speed.median:,.0f} samples/s"
    best = group.best_of_bow
    tail = "" if best is None else f", bow {_ratio(group, best)} as fast ({best})"
    return f"{head}{tail}; took {group.seconds:.0f} s"


def markdown(groups: Sequence[Group], values: Mapping[str, Any], environment: Environment) -> str:
    """The page `engines.md`, from the same values as `engines.json`."""
    settings = values["settings"]
    notes = "".join(f"* {note}\n" for group in groups for note in group.notes)
    return (
        "# Engines: samples per second\n\n"
        f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s. {environment}.\n\n"
        f"Fixed: {values['fixed']}. Medians of {settings['repeats']} turns of {settings['stint_s']:g} s, taken in "
        f"turns within one process after warming up; in parentheses the number of threads, the better one of "
        f"{' and '.join(map(str, settings['threads']))}. Ratios are {values['ratio']}: median (lowest-highest). "
        "The numbers of every contestant with every number of threads are in `engines.json`.\n\n"
        f"{table(groups).markdown()}\n{notes}"
    )


def _rows(group: Group) -> list[list[str]]:
    counts = list(dict.fromkeys(lane.learners for lane in group.lanes if lane.learners is not None))
    numbers: list[int | None] = [*counts] or [None]
    head = [TITLES[group.model], str(group.batch_size), _speed(group.baseline), _speed(group.best("compiled"))]
    rows = []
    for learners in numbers:
        eager, fused = (None if learners is None else group.best(name, learners) for name in ("eager", "fused"))
        cells = [_speed(eager), _ratio(group, eager), _speed(fused), _ratio(group, fused)]
        rows.append([*head, "" if learners is None else str(learners), *cells])
    return rows


def _speed(lane: Lane | None) -> str:
    return "" if lane is None else f"{lane.speed.median:,.0f} ({lane.threads})"


def _ratio(group: Group, lane: Lane | None) -> str:
    if lane is None:
        return ""
    ratio = group.ratio(lane)
    return f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
