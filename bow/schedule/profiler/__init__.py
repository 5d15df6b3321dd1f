"""Measures what the operators of a step graph cost on this machine, and which policy runs them fastest."""

from bow.schedule.profiler.compare import Comparison as Comparison
from bow.schedule.profiler.compare import compare as compare
from bow.schedule.profiler.disturbing import policies_here as policies_here
from bow.schedule.profiler.policies import Policy as Policy
from bow.schedule.profiler.policies import make_policies as make_policies
from bow.schedule.profiler.profile import OperatorTime as OperatorTime
from bow.schedule.profiler.profile import Profile as Profile
from bow.schedule.profiler.profiling import profile as profile
from bow.schedule.profiler.subject import Subject as Subject
from bow.schedule.profiler.symmetric import Symmetric as Symmetric
from bow.schedule.profiler.symmetric import symmetric as symmetric
