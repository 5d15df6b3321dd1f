"""What operators cost: their times, predicted from measurements and from models of machines. Numbers, no torch.

A `CostModel` tells seconds of an operator in a `Threads`: with so many threads, sharing caches or not. `HillClimbing`
learns from a few measurements of each operator, `Regression` from other operators, `Roofline` and `Saturation` from an
operator's work alone; `accuracy` and `r_squared` say how good they are.
"""

from benchmarks.cost_models.climbing import HillClimb as HillClimb
from benchmarks.cost_models.climbing import HillClimbing as HillClimbing
from benchmarks.cost_models.climbing import Threads as Threads
from benchmarks.cost_models.climbing import placements as placements
from benchmarks.cost_models.events import Sample as Sample
from benchmarks.cost_models.events import computed_events as computed_events
from benchmarks.cost_models.machine import Analytic as Analytic
from benchmarks.cost_models.machine import Roofline as Roofline
from benchmarks.cost_models.machine import Saturation as Saturation
from benchmarks.cost_models.machine import Scaling as Scaling
from benchmarks.cost_models.machine import Work as Work
from benchmarks.cost_models.machine import sort_of as sort_of
from benchmarks.cost_models.measured import CostModel as CostModel
from benchmarks.cost_models.measured import Curve as Curve
from benchmarks.cost_models.measured import accuracy as accuracy
from benchmarks.cost_models.measured import candidates as candidates
from benchmarks.cost_models.measured import cases as cases
from benchmarks.cost_models.measured import evenly as evenly
from benchmarks.cost_models.measured import r_squared as r_squared
from benchmarks.cost_models.regression import ESTIMATORS as ESTIMATORS
from benchmarks.cost_models.regression import Profile as Profile
from benchmarks.cost_models.regression import Regression as Regression
