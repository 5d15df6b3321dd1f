"""Measures what the operators of a step graph cost on this machine, and which policy runs them fastest."""

from bow.profiler.compare import Comparison as Comparison
from bow.profiler.compare import compare as compare
from bow.profiler.disturbing import policies_here as policies_here
from bow.profiler.policies import Policy as Policy
from bow.profiler.policies import make_policies as make_policies
from bow.profiler.profile import OperatorTime as OperatorTime
from bow.profiler.profile import Profile as Profile
from bow.profiler.profiling import profile as profile
from bow.profiler.subject import Subject as Subject
from bow.profiler.symmetric import Symmetric as Symmetric
from bow.profiler.symmetric import symmetric as symmetric
