"""What bounds the training of a model: an estimate from its step graph and from rates of this machine."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.contestants import SGD
from benchmarks.group import Group
from benchmarks.line_up import GRAPH, Lane
from benchmarks.measure import Spread
from benchmarks.operator_cost import PYTHON, RUNTIME
from benchmarks.workloads import WORKLOADS
from bow.graph import capture
from bow.graph.kinds import is_update

ARITHMETIC, MEMORY, CALLS = "arithmetic", "memory", "calling operators"

ENOUGH = 1 / 3  # An estimate that explains less of the measured time than this is not called a bound

RULE = (
    "The time that a core takes for a step is held against three estimates: its floating-point operations at the rate "
    "of a large matrix product on one core (arithmetic), the bytes that its operators read and write at the rate of "
    "copying tensors as large as the weights (memory), and its operators, without views and the update, which are no "
    "calls of torch's dispatcher, at the cost of calling one on two numbers (calling operators). The estimates "
    "overlap, so shares are not to be added up; one that exceeds the measured time counts as all of it. The largest "
    f"is named as the bound where it explains at least {ENOUGH:.0%} of the time. What is timed is engine "
    "`graph`, operator by operator, on one thread per learner with its best number of learners."
)

MATRIX = 1024
SMALLEST_COPY_BYTES = 2**20  # Smaller copies measure the call as well
REPEATS = 7


@dataclass(frozen=True)
class StepCosts:
    """What one step of one learner asks for, by its step graph."""

    operators: int  # how many the runtime calls through torch's dispatcher: no views, no updates
    flops: int  # floating-point operations
    bytes_moved: int  # that operators read and write, each on its own
    weight_bytes: int  # of the weights


@dataclass(frozen=True)
class Bound:
    """How the time of a step compares with what it would take by each of three estimates."""

    group: Group  # the measurements
    lane: Lane  # the contestant that was looked at
    costs: StepCosts  # what a step asks for
    step_s: float  # seconds that a core takes for a step
    estimates_s: Mapping[str, float] = field(default_factory=dict)  # seconds by each estimate

    @property
    def shares(self) -> dict[str, float]:
        """How much of the measured time each estimate explains."""
        return {name: seconds / self.step_s for name, seconds in self.estimates_s.items()}

    @property
    def largest(self) -> str:
        """The estimate that explains most."""
        return max(self.shares, key=self.shares.__getitem__)

    @property
    def name(self) -> str | None:
        """The largest estimate; None where even that explains little."""
        return self.largest if self.shares[self.largest] >= ENOUGH else None

    def as_dict(self) -> dict[str, Any]:
        """The bound as plain values."""
        costs = self.costs
        return {
            "model": self.group.model,
            "batch_size": self.group.batch_size,
            "measured_on": self.lane.short,
            "operators": costs.operators,
            "mflop": round(costs.flops / 1e6, 3),
            "mbyte": round(costs.bytes_moved / 1e6, 3),
            "step_us": round(1e6 * self.step_s, 1),
            "operator_us": round(1e6 * self.step_s / costs.operators, 2),
            "gflop_per_s": round(costs.flops / self.step_s / 1e9, 1),
            "shares": {name: round(share, 3) for name, share in self.shares.items()},
            "bound": self.name,
        }


class Machine:
    """Rates of one core of this machine, measured when they are first asked for."""

    def __init__(
        self, operator_costs: Mapping[str, Spread], cores: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._operator_costs = operator_costs
        self._clock = clock
        self._flops_per_s: float | None = None
        self._bytes_per_s: dict[int, float] = {}
        self.cores = cores

    def operator_s(self) -> float:
        """Seconds that an operator costs the native runtime; those that it costs Python where there is none."""
        return self._operator_costs.get(RUNTIME, self._operator_costs[PYTHON]).median

    def flops_per_s(self) -> float:
        """Floating-point operations per second in a large matrix product."""
        if self._flops_per_s is None:
            matrix = torch.randn(MATRIX, MATRIX)
            result = torch.empty_like(matrix)
            self._flops_per_s = 2 * MATRIX**3 / self._seconds(lambda: torch.mm(matrix, matrix, out=result))
        return self._flops_per_s

    def bytes_per_s(self, size: int) -> float:
        """Bytes read and written per second when tensors of so many bytes are copied."""
        size = max(size, SMALLEST_COPY_BYTES)
        if size not in self._bytes_per_s:
            source = torch.zeros(size, dtype=torch.uint8)
            target = torch.ones_like(source)
            self._bytes_per_s[size] = 2 * size / self._seconds(lambda: target.copy_(source))
        return self._bytes_per_s[size]

    def as_dict(self) -> dict[str, Any]:
        """What was measured, as plain values."""
        return {
            "gflop_per_s": None if self._flops_per_s is None else round(self._flops_per_s / 1e9, 1),
            "gbyte_per_s_by_copied_bytes": {size: round(r / 1e9, 1) for size, r in sorted(self._bytes_per_s.items())},
        }

    def _seconds(self, run: Callable[[], object]) -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        run()
        times = []
        for _ in range(REPEATS):
            began = self._clock()
            run()
            times.append(self._clock() - began)
        torch.set_num_threads(threads)
        return Spread.of(times).median


def find_bound(group: Group, machine: Machine) -> Bound | None:
    """What bounds a model in engine `graph`, which calls operators one by one; None where it did not run."""
    lane = _subject(group)
    if lane is None:
        return None
    costs = step_costs(group.model, group.batch_size)
    busy = min(lane.learners or 1, machine.cores)
    estimates = {
        ARITHMETIC: costs.flops / machine.flops_per_s(),
        MEMORY: costs.bytes_moved / machine.bytes_per_s(costs.weight_bytes),
        CALLS: costs.operators * machine.operator_s(),
    }
    return Bound(group, lane, costs, busy * group.batch_size / lane.speed.median, estimates)


def _subject(group: Group) -> Lane | None:
    lanes = [lane for lane in group.lanes if lane.implementation == GRAPH and lane.threads == 1]
    return max(lanes, key=lambda lane: lane.speed.median, default=None)


def step_costs(model: str, batch_size: int) -> StepCosts:
    """Capture a step, its update included."""
    workload = WORKLOADS[model]
    module = workload.build()
    graph = capture(module, workload.make_data(batch_size), workload.loss, optimizer=SGD)
    weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    called = sum(not operator.is_view and not is_update(operator.kind) for operator in graph.operators)
    return StepCosts(called, graph.flops, graph.bytes_moved, weight_bytes)


def sentences(bounds: Sequence[Bound]) -> dict[str, str]:
    """For every model, what bounds it."""
    models = dict.fromkeys(bound.group.model for bound in bounds)
    return {model: _sentence([bound for bound in bounds if bound.group.model == model]) for model in models}


def _sentence(bounds: Sequence[Bound]) -> str:
    by_name: dict[str | None, list[Bound]] = {}
    for bound in bounds:
        by_name.setdefault(bound.name, []).append(bound)
    parts = [_part(name, own) for name, own in by_name.items()]
    title = bounds[0].group.title
    head = f"{title[0].upper()}{title[1:]}, {bounds[0].costs.operators} operators a step"
    return f"{head}, is bounded in engine `graph` {_and(parts)}."


def _part(name: str | None, bounds: Sequence[Bound]) -> str:
    batches = _and([str(bound.group.batch_size) for bound in bounds])
    if name is None:
        largest = _and([f"{share_text(bound.shares[bound.largest])} ({bound.largest})" for bound in bounds])
        return (
            f"by none of the three at batch {batches} (the largest single share of the time is {largest}; what is left "
            "surrounds the operators, or is spent in operators too small for these rates)"
        )
    return f"by {name} at batch {batches} ({_and([share_text(bound.shares[name]) for bound in bounds])} of the time)"


def share_text(share: float) -> str:
    """A share of the time for people."""
    return "all" if round(share, 2) >= 1 else f"{share:.0%}"


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
