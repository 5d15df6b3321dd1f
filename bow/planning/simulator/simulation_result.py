"""A strategy simulated from nothing: time, timeline, memory, communication."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.plan_strategy import Partition
from bow.planning.problem.step_model import StepModel
from bow.planning.rules.rule import Rules
from bow.planning.simulator.full_simulation import TaskTime, makespan_ns, simulate_tasks
from bow.planning.simulator.memory import MemoryPeak, Refusal, memory_peaks, refusal
from bow.planning.simulator.task_costs import Costs
from bow.planning.simulator.task_graph import TaskGraph
from bow.planning.simulator.tasks import Task, TaskKind
from bow.schedule import Span, Timeline

COMPUTING = frozenset({TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.UPDATE})
"""Tasks whose time is a device's."""


@dataclass(frozen=True)
class SimulationResult:
    """What a step takes with a strategy.

    With several learners a step is one batch of each: what a batch takes is the step divided by their number.

    Attributes:
        model: of the step.
        tasks: what the strategy makes of it.
        times: by task.
        peaks: by device: the most memory that it needs at a time.
    """

    model: StepModel
    tasks: tuple[Task, ...]
    times: tuple[TaskTime, ...]
    peaks: tuple[MemoryPeak, ...]

    @property
    def makespan_ns(self) -> int:
        """Nanoseconds of a step."""
        return makespan_ns(self.times)

    @cached_property
    def refusal(self) -> Refusal | None:
        """Why the strategy does not fit into the devices' memory; None where it does."""
        return refusal(self.model.topology, self.peaks)

    @property
    def communication_bytes(self) -> int:
        """What all devices send together in a step."""
        return sum(task.num_bytes for task in self.tasks)

    @property
    def task_ns(self) -> int:
        """What all computing tasks take together."""
        return sum(task.duration_ns for task in self.tasks if task.kind in COMPUTING)

    @cached_property
    def timeline(self) -> Timeline:
        """When what runs where; what occupies several places stands at each, what takes no time nowhere."""
        return Timeline(self._spans())

    def _spans(self) -> Iterator[Span]:
        for task, time in zip(self.tasks, self.times, strict=True):
            name = task_name(self.model, task)
            details = {"tile": task.tile, "bytes": task.num_bytes, "ready_ns": time.ready_ns}
            for place in task.places if task.duration_ns else ():
                where = self.model.place_name(place)
                yield Span(name, where, time.start_ns, time.end_ns, task.kind.name.lower(), details)


def simulate(
    graph: OperatorGraph,
    rules: Rules,
    topology: DeviceTopology,
    costs: Costs,
    partition: Partition,
    *,
    optimizer_bytes_per_weight_byte: float = 1.0,
    overlap: bool = True,
) -> SimulationResult:
    """What a step takes with a strategy, worked out from nothing, in Python: the oracle of the compiled simulator.

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 5.
    """
    partition.check(graph, topology.num_devices, rules)
    model = StepModel(
        graph,
        rules,
        topology,
        costs,
        learners=partition.learners,
        optimizer_bytes_per_weight_byte=optimizer_bytes_per_weight_byte,
        overlap=overlap,
    )
    return simulate_model(model, partition)


def simulate_model(model: StepModel, partition: Partition) -> SimulationResult:
    """What a step takes with a strategy that was checked before."""
    tasks = TaskGraph.of(model, partition)
    times = simulate_tasks(tasks)
    return SimulationResult(model, tasks.tasks, tuple(times), memory_peaks(model, tasks, times))


def task_name(model: StepModel, task: Task) -> str:
    """What a task is called, such as `forward conv1` or `reduction fc`."""
    what = task.kind.name.lower().replace("_", " ")
    if task.kind is TaskKind.AVERAGING:
        return what
    if task.kind >= TaskKind.GATHER:
        return f"{what} {model.weight_groups[task.owner % len(model.weight_groups)].name}"
    return f"{what} {model.graph.operators[task.owner % len(model.graph.operators)].name}"
