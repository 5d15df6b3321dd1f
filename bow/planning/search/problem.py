"""A planning problem: operator graph, devices, costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Partition, Split
from bow.planning.rules.rule import Rules
from bow.planning.simulator.costs import Costs
from bow.planning.simulator.python_simulator import SimulationResult, simulate
from bow.planning.simulator.simulation import Algorithm, Simulation
from bow.planning.simulator.step_model import StepModel


@dataclass(frozen=True)
class Problem:
    """A planning problem."""

    graph: OperatorGraph
    rules: Rules
    topology: DeviceTopology
    costs: Costs
    optimizer_bytes_per_weight_byte: float = 1.0  # optimizer state: 1 for momentum, 2 for Adam
    algorithm: Algorithm = "incremental"
    batch_size: int = 1  # of one learner

    def partition(self, splits: Sequence[Split], learners: int = 1) -> Partition:
        return Partition(self.graph.hash, tuple(splits), learners)

    def model(self, learners: int = 1) -> StepModel:
        """Return the part of the step that is independent of the partition."""
        return StepModel(
            self.graph,
            self.rules,
            self.topology,
            self.costs,
            learners=learners,
            optimizer_bytes_per_weight_byte=self.optimizer_bytes_per_weight_byte,
        )

    def simulation(self, splits: Sequence[Split], learners: int = 1, *, must_fit: bool = True) -> Simulation:
        return Simulation(self.model(learners), self.partition(splits, learners), self.algorithm, must_fit=must_fit)

    def simulate(self, splits: Sequence[Split], learners: int = 1) -> SimulationResult:
        """Simulate a partition once, whether it fits into memory or not."""
        partition = self.partition(splits, learners)
        partition.check(self.graph, self.topology.num_devices, self.rules)
        return simulate(self.model(learners), partition)

    def of_one_learner(self, learners: int) -> "Problem":
        """Restrict the devices to those of the first learner."""
        group = self.topology.groups(learners)[0]
        return self if learners == 1 else replace(self, topology=self.topology.restricted(group))
