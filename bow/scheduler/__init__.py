"""Which task runs next, and where: events in, instructions out. Nothing here runs anything."""

from bow.scheduler.levels import CriticalPath as CriticalPath
from bow.scheduler.levels import critical_path as critical_path
from bow.scheduler.operators import ListScheduler as ListScheduler
from bow.scheduler.operators import Start as Start
from bow.scheduler.tasks import Dispatch as Dispatch
from bow.scheduler.tasks import Learn as Learn
from bow.scheduler.tasks import Run as Run
from bow.scheduler.tasks import Synchronise as Synchronise
from bow.scheduler.tasks import Task as Task
from bow.scheduler.tasks import TaskScheduler as TaskScheduler
