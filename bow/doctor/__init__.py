"""What this machine is, and what of bow runs on it."""

from bow.doctor.engines import EngineCheck as EngineCheck
from bow.doctor.engines import check_engines as check_engines
from bow.doctor.libraries import Library as Library
from bow.doctor.libraries import find_libraries as find_libraries
from bow.doctor.libraries import problems as problems
from bow.doctor.machine import Machine as Machine
from bow.doctor.machine import inspect_machine as inspect_machine
