"""Operators over devices: partitions, simulated and searched (FlexFlow), and trained by; placement by a learned policy.

Read in this order; each imports those before it, and only `tiles` and `placement` know torch:

* `problem`: what is planned: operators, devices, boxes of tensors, partitions.
* `rules`: what a tile of each kind of operator reads.
* `simulator`: what tiles cost; a step as tasks (`task_graph`), simulated from nothing in Python, and by changes in C++.
* `search`: splits to choose from, proposals, walks and how processes share them; bounds and proofs; baselines.
* `tiles`: capture of a model (`operators` has, by family, how each is translated and computed), and training in tiles.
* `placement`: groups of operators, each on one device.
"""
