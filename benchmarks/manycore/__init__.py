"""`python -m benchmarks manycore`: the experiments of both papers on operator scheduling, on their machine, simulated.

Steps of the papers' networks are captured in the papers' sizes; what operators take on the 68 cores of a Xeon Phi is
`Saturation`'s; the schedulers are those that the runtime is driven by. Nothing is run, so the numbers are the
same on every machine.

Of Tang et al., 2018: speed-up by number of executors (Figure 6), critical path first against queues (Table 2), cells of
an LSTM along diagonals (section 7.4), the options of section 6. Of Liu et al., 2019: strategies 1 to 4 one by one
(Figure 3), uniform pairs (Table I), operators that run at the same time (Figure 4), the longest operators (Table VI).
Of all: sensitivity to the machine's parameters.
"""

from benchmarks.manycore.program import run as run
from benchmarks.manycore.settings import Settings as Settings
