"""Members: many independent models trained concurrently."""

from bow.members.member import Member as Member
from bow.members.member import MemberSearch as MemberSearch
from bow.members.member import Variant as Variant
from bow.members.member import grid as grid
from bow.members.result import Difference as Difference
from bow.members.result import Differences as Differences
from bow.members.result import Ensemble as Ensemble
from bow.members.result import Sweep as Sweep
from bow.members.saving import GroupLogger as GroupLogger
from bow.members.stopping import Halving as Halving
from bow.members.sweep import cross_validate as cross_validate
from bow.members.sweep import folds as folds
from bow.members.sweep import sweep as sweep
from bow.training.stopping import StopRule as StopRule
