"""Which task runs next, and where: events in, instructions out. Nothing here runs anything."""

from bow.schedule.scheduler.apart import kept_apart as kept_apart
from bow.schedule.scheduler.cache_times import CacheTimes as CacheTimes
from bow.schedule.scheduler.corun import CoRunScheduler as CoRunScheduler
from bow.schedule.scheduler.disturbance import Disturbances as Disturbances
from bow.schedule.scheduler.levels import CriticalPath as CriticalPath
from bow.schedule.scheduler.levels import critical_path as critical_path
from bow.schedule.scheduler.operators import ListScheduler as ListScheduler
from bow.schedule.scheduler.order import OrderScheduler as OrderScheduler
from bow.schedule.scheduler.start import Scheduler as Scheduler
from bow.schedule.scheduler.start import Start as Start
from bow.schedule.scheduler.tasks import Dispatch as Dispatch
from bow.schedule.scheduler.tasks import Learn as Learn
from bow.schedule.scheduler.tasks import Run as Run
from bow.schedule.scheduler.tasks import Synchronise as Synchronise
from bow.schedule.scheduler.tasks import Task as Task
from bow.schedule.scheduler.tasks import TaskScheduler as TaskScheduler
from bow.schedule.scheduler.threads_of import classes_by_scaling as classes_by_scaling
from bow.schedule.scheduler.turns import Recorder as Recorder
from bow.schedule.scheduler.turns import held_by_core as held_by_core
from bow.schedule.scheduler.turns import with_waits as with_waits
