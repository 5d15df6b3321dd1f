"""Operator partitioning across devices (FlexFlow): simulation, search, training; placement by a learned policy.

Reading order; each package imports only those above it, and only `tiles` and `placement` import torch:

* `problem`: operator graphs, device topologies, boxes (tensor regions) and partitions.
* `rules`: the regions that a tile of each kind of operator reads.
* `simulator`: tile costs; the task graph of a step, simulated in full in Python and incrementally in C++.
* `search`: search space, proposals, Metropolis chains and their processes; lower bounds and proofs; baselines.
* `tiles`: capture of a model (`operators`: translation and computation by family) and training under a partition.
* `placement`: groups of operators, each on one device.
"""
