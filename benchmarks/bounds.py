"""What bounds the training of a model: an estimate from its step graph and from rates of this machine."""

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.harness import counted
from benchmarks.trainings import SGD
from benchmarks.workloads import WORKLOADS
from bow.devices import available_cores, core_sets
from bow.graph import capture
from bow.graph.kinds import is_update
from bow.runtime.loading import is_available, native

ARITHMETIC, MEMORY, CALLS_OPERATORS = "arithmetic", "memory", "calling operators"

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

PYTHON, RUNTIME, BY_PRIORITY, HANDED_OVER = "python", "runtime", "by_priority", "handed_over"
CALLERS = {
    PYTHON: "Python, the call alone",
    RUNTIME: "the native runtime, in order",
    BY_PRIORITY: "the native runtime, by priority",
    HANDED_OVER: "the native runtime, each operator waiting for the other executor's",
}
CALLS = 10_000


def measure_operator_costs() -> dict[str, list[float]]:
    """By caller: seconds for calling one operator on one thread, whatever it computes: a chain of additions."""
    calls = list(range(CALLS))
    probes: dict[str, Callable[[], float]] = {PYTHON: _from_python}
    if is_available():
        probes[RUNTIME] = lambda: _chain([calls], [])
        probes[BY_PRIORITY] = lambda: _chain([], [0] * CALLS)
        if len(available_cores()) > 1:
            probes[HANDED_OVER] = lambda: _chain([calls[::2], calls[1::2]], [])
    return {name: [probe() for _ in range(1 + REPEATS)][1:] for name, probe in probes.items()}


def _from_python() -> float:
    call, one = torch.ops.aten.add.Tensor, torch.ones(1)
    began = time.perf_counter()
    for _ in range(CALLS):
        call(one, one)
    return (time.perf_counter() - began) / CALLS


def _chain(order: list[list[int]], priority: list[int]) -> float:
    slot, job = native().Slot, native().Job(CALLS + 1)
    for call in range(CALLS):
        job.add_operator("aten::add", "Tensor", [slot(call), slot(0)], {}, [call + 1])
    executors = max(1, len(order))
    job.bind(0, torch.ones(1))
    job.schedule(order, priority, executors)
    team = native().Team(core_sets(executors), [1] * executors)
    job.run(team)
    began = time.perf_counter()
    job.run(team)
    seconds = (time.perf_counter() - began) / CALLS
    team.close()
    return seconds


class Machine:
    """Rates of one core of this machine, measured when they are first asked for."""

    def __init__(self, operator_costs: Mapping[str, Sequence[float]]) -> None:
        # What it costs Python counts where there is no native runtime.
        self.operator_s = statistics.median(operator_costs.get(RUNTIME, operator_costs[PYTHON]))
        self._bytes_per_s: dict[int, float] = {}

    @functools.cached_property
    def flops_per_s(self) -> float:
        """Floating-point operations per second in a large matrix product."""
        matrix, result = torch.randn(MATRIX, MATRIX), torch.empty(MATRIX, MATRIX)
        return 2 * MATRIX**3 / self._seconds(lambda: torch.mm(matrix, matrix, out=result))

    def bytes_per_s(self, size: int) -> float:
        """Bytes read and written per second when tensors of so many bytes are copied."""
        size = max(size, SMALLEST_COPY_BYTES)
        if size not in self._bytes_per_s:
            source, target = torch.zeros(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
            self._bytes_per_s[size] = 2 * size / self._seconds(lambda: target.copy_(source))
        return self._bytes_per_s[size]

    def as_dict(self) -> dict[str, Any]:
        flops = vars(self).get("flops_per_s")
        rates = {size: round(rate / 1e9, 1) for size, rate in sorted(self._bytes_per_s.items())}
        return {"gflop_per_s": flops and round(flops / 1e9, 1), "gbyte_per_s_by_copied_bytes": rates}

    @staticmethod
    def _seconds(run: Callable[[], object]) -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        times = []
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        torch.set_num_threads(threads)
        return statistics.median(times[1:])


def find_bound(model: str, batch_size: int, rate: float, learners: int, machine: Machine) -> dict[str, Any]:
    """How a step's time in engine `graph`, operator by operator, compares with three estimates."""
    workload = WORKLOADS[model]
    module = workload.build()
    graph = capture(module, workload.make_data(batch_size), workload.loss, optimizer=SGD)
    weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    called = sum(not operator.is_view and not is_update(operator.kind) for operator in graph.operators)
    step_s = min(learners, len(available_cores())) * batch_size / rate
    shares = {
        ARITHMETIC: graph.flops / machine.flops_per_s / step_s,
        MEMORY: graph.bytes_moved / machine.bytes_per_s(weight_bytes) / step_s,
        CALLS_OPERATORS: called * machine.operator_s / step_s,
    }
    largest = max(shares, key=shares.__getitem__)
    return {
        "model": model,
        "batch_size": batch_size,
        "measured_on": f"graph, {counted(learners, 'learner')}",
        "operators": called,
        "mflop": round(graph.flops / 1e6, 3),
        "mbyte": round(graph.bytes_moved / 1e6, 3),
        "step_us": round(1e6 * step_s, 1),
        "operator_us": round(1e6 * step_s / called, 2),
        "gflop_per_s": round(graph.flops / step_s / 1e9, 1),
        "shares": {name: round(share, 3) for name, share in shares.items()},
        "bound": largest if shares[largest] >= ENOUGH else None,
    }


def sentences(bounds: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By model: what bounds it, in a sentence."""
    models = dict.fromkeys(bound["model"] for bound in bounds)
    return {model: _sentence([bound for bound in bounds if bound["model"] == model]) for model in models}


def _sentence(bounds: Sequence[Mapping[str, Any]]) -> str:
    by_name: dict[str | None, list[Mapping[str, Any]]] = {}
    for bound in bounds:
        by_name.setdefault(bound["bound"], []).append(bound)
    title = WORKLOADS[bounds[0]["model"]].title
    head = f"{title[0].upper()}{title[1:]}, {bounds[0]['operators']} operators a step"
    return f"{head}, is bounded in engine `graph` {_and([_part(name, own) for name, own in by_name.items()])}."


def _part(name: str | None, bounds: Sequence[Mapping[str, Any]]) -> str:
    batches = _and([str(bound["batch_size"]) for bound in bounds])
    if name is not None:
        return f"by {name} at batch {batches} ({_and([_share(bound['shares'][name]) for bound in bounds])} of the time)"
    largest = [max(bound["shares"].items(), key=lambda item: item[1]) for bound in bounds]
    told = _and([f"{_share(share)} ({which})" for which, share in largest])
    return (
        f"by none of the three at batch {batches} (the largest single share of the time is {told}; what is left "
        "surrounds the operators, or is spent in operators too small for these rates)"
    )


def _share(share: float) -> str:
    return "all" if round(share, 2) >= 1 else f"{share:.0%}"


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
