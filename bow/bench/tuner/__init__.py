"""`bow bench tuner`: whether the tuner finds what an exhaustive trial finds, and what that costs.

For each of some pairs of a model and a batch size, in a process of its own:

1. everything that `bow.train` could choose is measured, every number of learners from one up, several times round;
2. in another process, engine and number of learners are left open, and found as `bow.train` finds them for a training
   that would take ten minutes with the best of 1., with nothing compiled beforehand but bow's native runtime;
3. the tuner's choice and the best of 1. are measured again in turn: the best of many was lucky as well, and the second
   measurement knows nothing of that.

The target: the choice has at least 95% of the throughput of the best, and finding it takes at most 5% of the run.
"""

from bow.bench.tuner.program import Settings as Settings
from bow.bench.tuner.program import run as run
