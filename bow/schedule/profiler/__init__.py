"""Profiling of a step graph's operators on this machine, and comparison of policies to run them."""

from bow.schedule.profiler.compare import Comparison as Comparison
from bow.schedule.profiler.compare import compare as compare
from bow.schedule.profiler.compare import symmetric as symmetric
from bow.schedule.profiler.measuring import BoundStep as BoundStep
from bow.schedule.profiler.measuring import OperatorTime as OperatorTime
from bow.schedule.profiler.measuring import Profile as Profile
from bow.schedule.profiler.measuring import measure as measure
from bow.schedule.profiler.measuring import measure_schedule as measure_schedule
from bow.schedule.profiler.measuring import profile as profile
from bow.schedule.profiler.policies import Policy as Policy
from bow.schedule.profiler.policies import make_policies as make_policies
from bow.schedule.profiler.policies import policies_here as policies_here
