"""How many learners, and which engine: measurements in, decisions out. Nothing here runs, times or waits.

Before a training, `Calibration` asks for timed trials within a budget and ends with a choice and a decision table.
While it goes on, `OnlineTuner` hears windows of throughput and adds or removes a learner. With several devices, each
is calibrated by itself, `balance` says how many learners each begins with, and `DeviceTuners` lets their online tuners
take turns. `StatisticalEfficiency` turns the objective into goodput, `ChoiceCache` keeps choices on disk, and `Tuner`
is what a user can set.
"""

from bow.tuner.cache import Choice as Choice
from bow.tuner.cache import ChoiceCache as ChoiceCache
from bow.tuner.calibration import Calibration as Calibration
from bow.tuner.calibration import DecisionTable as DecisionTable
from bow.tuner.calibration import Row as Row
from bow.tuner.config import Objective as Objective
from bow.tuner.config import Tuner as Tuner
from bow.tuner.devices import DeviceTuners as DeviceTuners
from bow.tuner.devices import balance as balance
from bow.tuner.efficiency import Moments as Moments
from bow.tuner.efficiency import RunningMoments as RunningMoments
from bow.tuner.efficiency import StatisticalEfficiency as StatisticalEfficiency
from bow.tuner.efficiency import moments as moments
from bow.tuner.efficiency import repulsion as repulsion
from bow.tuner.online import Change as Change
from bow.tuner.online import Decision as Decision
from bow.tuner.online import OnlineTuner as OnlineTuner
from bow.tuner.online import Window as Window
from bow.tuner.trial import Lane as Lane
from bow.tuner.trial import Measurement as Measurement
from bow.tuner.trial import Setting as Setting
from bow.tuner.trial import Trial as Trial
from bow.tuner.trial import doubling as doubling
