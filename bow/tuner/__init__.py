"""Choice of engine and number of learners: decisions from measurements, which are taken elsewhere."""

from bow.tuner.cache import CachedChoice as CachedChoice
from bow.tuner.cache import ChoiceCache as ChoiceCache
from bow.tuner.calibration import Calibration as Calibration
from bow.tuner.calibration import DecisionRow as DecisionRow
from bow.tuner.config import Tuner as Tuner
from bow.tuner.efficiency import Moments as Moments
from bow.tuner.efficiency import RunningMoments as RunningMoments
from bow.tuner.efficiency import StatisticalEfficiency as StatisticalEfficiency
from bow.tuner.efficiency import moments as moments
from bow.tuner.efficiency import repulsion as repulsion
from bow.tuner.online import DeviceTuners as DeviceTuners
from bow.tuner.online import MeasurementWindow as MeasurementWindow
from bow.tuner.online import OnlineTuner as OnlineTuner
from bow.tuner.online import TunerDecision as TunerDecision
from bow.tuner.online import balance as balance
from bow.tuner.record import Candidate as Candidate
from bow.tuner.record import EngineSetting as EngineSetting
from bow.tuner.record import Trial as Trial
from bow.tuner.record import TrialResult as TrialResult
from bow.tuner.record import doubling as doubling
