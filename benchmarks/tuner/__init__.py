"""`python -m benchmarks tuner`: compares the tuner with an exhaustive search, and measures its cost.

For each pair of a model and a batch size, in a separate process:

1. every engine with every number of learners and of threads is measured briefly, from a list that is independent of
   the tuner, and those close to the fastest are measured again;
2. in another process, engine and number of learners are tuned, as in `bow.train`, for a training of ten minutes, with
   nothing compiled in advance but bow's native runtime;
3. the tuner's choice and the fastest of step 1 are measured in many turns: the fastest of many was also lucky, so the
   best is the one with the highest median here.

Target: the choice has at least 95% of the throughput of the best, and tuning takes at most 5% of the run. If the
median is lower but its confidence interval is not, the result is undecided.
"""

from benchmarks.tuner.program import Config as Config
from benchmarks.tuner.program import measure as measure
from benchmarks.tuner.program import missed as missed
from benchmarks.tuner.program import page as page
