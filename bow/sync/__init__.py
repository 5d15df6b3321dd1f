"""Synchronisers: the arithmetic that keeps learners together, one file each."""

from bow.sync.asgd import ASGD as ASGD
from bow.sync.base import Rows as Rows
from bow.sync.base import Synchroniser as Synchroniser
from bow.sync.base import Timing as Timing
from bow.sync.diloco import DiLoCo as DiLoCo
from bow.sync.easgd import EASGD as EASGD
from bow.sync.easgd import is_plain_sma as is_plain_sma
from bow.sync.independent import Independent as Independent
from bow.sync.independent import Members as Members
from bow.sync.local_sgd import LocalSGD as LocalSGD
from bow.sync.restart import DropRule as DropRule
from bow.sync.sma import SMA as SMA
from bow.sync.ssgd import SSGD as SSGD
from bow.sync.two_level import TwoLevel as TwoLevel
