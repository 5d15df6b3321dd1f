"""How many learners, and which engine: measurements in, decisions out. Nothing here runs or times anything.

Before a training, `Calibration` asks for timed trials within a budget and ends with a choice and a decision table.
During it, `OnlineTuner` takes in windows of throughput and adds or removes a learner. With several devices, each is
calibrated by itself, `balance` computes how many learners each begins with, and `DeviceTuners` lets their online tuners
take turns. `StatisticalEfficiency` turns the objective into goodput, `ChoiceCache` keeps choices on disk, and `Tuner`
is what a user can set.
"""

from bow.tuner.cache import CachedChoice as CachedChoice
from bow.tuner.cache import ChoiceCache as ChoiceCache
from bow.tuner.calibration import Calibration as Calibration
from bow.tuner.calibration import DecisionRow as DecisionRow
from bow.tuner.config import Tuner as Tuner
from bow.tuner.devices import DeviceTuners as DeviceTuners
from bow.tuner.devices import balance as balance
from bow.tuner.efficiency import Moments as Moments
from bow.tuner.efficiency import RunningMoments as RunningMoments
from bow.tuner.efficiency import StatisticalEfficiency as StatisticalEfficiency
from bow.tuner.efficiency import moments as moments
from bow.tuner.efficiency import repulsion as repulsion
from bow.tuner.online import MeasurementWindow as MeasurementWindow
from bow.tuner.online import OnlineTuner as OnlineTuner
from bow.tuner.online import TunerDecision as TunerDecision
from bow.tuner.trial import Candidate as Candidate
from bow.tuner.trial import EngineSetting as EngineSetting
from bow.tuner.trial import Trial as Trial
from bow.tuner.trial import TrialResult as TrialResult
from bow.tuner.trial import doubling as doubling
