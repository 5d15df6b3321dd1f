"""`python -m benchmarks tuner`: whether the tuner finds what an exhaustive trial finds, and what that costs.

For each of some pairs of a model and a batch size, in a process of its own:

1. every engine with every number of learners and of threads is measured for a moment, from a list that the tuner has
   no part in, and those that come close to the fastest further times;
2. in another process, engine and number of learners are left open, and found as `bow.train` finds them for a training
   of ten minutes, with nothing compiled beforehand but bow's native runtime;
3. the tuner's choice and the fastest of 1. run in turn, many times: the fastest of many was lucky as well, and the best
   is the one with the highest median here.

The target: the choice has at least 95% of the throughput of the best, and finding it takes at most 5% of the run. A
median below that whose interval is not is undecided.
"""

from benchmarks.tuner.program import Config as Config
from benchmarks.tuner.program import measure as measure
from benchmarks.tuner.program import missed as missed
from benchmarks.tuner.program import page as page
