"""What is planned for in the benchmark: the paper's networks, on the paper's clusters."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from bow.models import NETWORKS, LeNet
from bow.models.networks import Size
from bow.models.recurrent import RNNLanguageModel, sequence_cross_entropy
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import RooflineCosts
from bow.planning.simulator.simulation import Algorithm
from bow.planning.tiles import capture_operators

# The paper's networks (Table 3), in the order of its Table 4
TITLES: Mapping[str, str] = {
    "alexnet": "AlexNet",
    "resnet101": "ResNet-101",
    "inception": "Inception-v3",
    "rnntc": "RNNTC",
    "rnnlm": "RNNLM",
    "nmt": "NMT",
}

# By GPU: the topology of its cluster (Figure 6), and how many a machine has
CLUSTERS: Mapping[str, tuple[str, int]] = {"P100": ("p100_cluster", 4), "K80": ("k80_cluster", 4)}

PAPER_SIZES = ("flexflow", "paper")  # The paper's size of a network has the first of these names that there is


def graph_of(network: str, size: str, batch_size: int | None = None, times: int = 1) -> OperatorGraph:
    """The operators of a network's step; no memory is taken. The batch is the size's own, so many times, or given."""
    chosen = NETWORKS[network]
    name = next(each for each in PAPER_SIZES if each in chosen.sizes) if size == "paper" else size
    described = chosen.size(name)
    with torch.device("meta"):
        model, batch = (
            chosen.model(**described.arguments),
            chosen.samples(described, batch_size or times * described.batch),
        )
    return capture_operators(model, batch, chosen.loss).graph


def lenet(batch: int = 64) -> OperatorGraph:
    """LeNet for images of 28 x 28 (section 8.4)."""
    with torch.device("meta"):
        images, classes = torch.zeros(batch, 1, 28, 28), torch.zeros(batch, dtype=torch.long)
        return capture_operators(LeNet(), (images, classes), F.cross_entropy).graph


def short_language_model(size_name: str = "paper", steps: int = 2) -> OperatorGraph:
    """RNNLM of two steps (section 8.4)."""
    whole = NETWORKS["rnnlm"].size(size_name)
    size = Size(whole.arguments, (steps,), whole.batch)
    with torch.device("meta"):
        model, batch = RNNLanguageModel(**size.arguments), NETWORKS["rnnlm"].samples(size, size.batch)
    return capture_operators(model, batch, sequence_cross_entropy).graph


def cluster(gpu: str, devices: int) -> DeviceTopology:
    """The first devices of a cluster, which has as many machines as they need."""
    name, per_node = CLUSTERS[gpu]
    whole = load_topology(name, -(-devices // per_node))
    return whole if whole.num_devices == devices else whole.restricted(range(devices))


def problem_of(
    graph: OperatorGraph, topology: DeviceTopology, algorithm: Algorithm = "incremental", batch_size: int = 1
) -> Problem:
    """What is planned for, with costs by roofline, and SGD with momentum."""
    costs = RooflineCosts(graph, RULES, topology)
    return Problem(graph, RULES, topology, costs, algorithm=algorithm, batch_size=batch_size)
