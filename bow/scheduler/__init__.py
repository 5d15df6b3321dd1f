"""Which task runs next, and where: events in, instructions out. Nothing here runs anything."""

from bow.scheduler.apart import kept_apart as kept_apart
from bow.scheduler.cache_times import CacheTimes as CacheTimes
from bow.scheduler.corun import CoRunScheduler as CoRunScheduler
from bow.scheduler.disturbance import Disturbances as Disturbances
from bow.scheduler.levels import CriticalPath as CriticalPath
from bow.scheduler.levels import critical_path as critical_path
from bow.scheduler.operators import ListScheduler as ListScheduler
from bow.scheduler.order import OrderScheduler as OrderScheduler
from bow.scheduler.start import Scheduler as Scheduler
from bow.scheduler.start import Start as Start
from bow.scheduler.tasks import Dispatch as Dispatch
from bow.scheduler.tasks import Learn as Learn
from bow.scheduler.tasks import Run as Run
from bow.scheduler.tasks import Synchronise as Synchronise
from bow.scheduler.tasks import Task as Task
from bow.scheduler.tasks import TaskScheduler as TaskScheduler
from bow.scheduler.threads_of import classes_by_scaling as classes_by_scaling
from bow.scheduler.turns import Recorder as Recorder
from bow.scheduler.turns import held_by_core as held_by_core
from bow.scheduler.turns import with_waits as with_waits
