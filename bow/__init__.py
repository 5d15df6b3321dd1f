"""bow: train several replicas of a model side by side, and leave the batch size alone."""

from bow.errors import BowError as BowError
from bow.sync import ASGD as ASGD
from bow.sync import EASGD as EASGD
from bow.sync import SMA as SMA
from bow.sync import SSGD as SSGD
from bow.sync import DiLoCo as DiLoCo
from bow.sync import Independent as Independent
from bow.sync import LocalSGD as LocalSGD
from bow.training import Accuracy as Accuracy
from bow.training import Callback as Callback
from bow.training import Metric as Metric
from bow.training import Replicas as Replicas
from bow.training import Result as Result
from bow.training import train as train

__version__ = "0.1.0"
