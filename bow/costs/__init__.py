"""What operators cost: their times, predicted from measurements and from models of machines. Numbers, no torch.

A `CostModel` tells seconds of an operator in a `Case`: with so many threads, sharing caches or not. `HillClimbing`
learns from a few measurements of each operator, `Regression` from other operators, `Roofline` and `Saturation` from an
operator's work alone; `accuracy` and `r_squared` say how good they are.
"""

from bow.costs.case import Case as Case
from bow.costs.case import cases as cases
from bow.costs.case import evenly as evenly
from bow.costs.case import lanes as lanes
from bow.costs.curve import Curve as Curve
from bow.costs.estimators import ESTIMATORS as ESTIMATORS
from bow.costs.events import Sample as Sample
from bow.costs.events import computed_events as computed_events
from bow.costs.hill_climbing import HillClimb as HillClimb
from bow.costs.hill_climbing import HillClimbing as HillClimbing
from bow.costs.model import CostModel as CostModel
from bow.costs.model import accuracy as accuracy
from bow.costs.model import candidates as candidates
from bow.costs.model import r_squared as r_squared
from bow.costs.regression import Profile as Profile
from bow.costs.regression import Regression as Regression
from bow.costs.roofline import Roofline as Roofline
from bow.costs.saturation import Saturation as Saturation
from bow.costs.scaling import Scaling as Scaling
from bow.costs.scaling import sort_of as sort_of
from bow.costs.work import Analytic as Analytic
from bow.costs.work import Work as Work
