"""Which task runs next, and where: events in, instructions out. Nothing here runs anything."""

from bow.scheduler.tasks import Dispatch as Dispatch
from bow.scheduler.tasks import Learn as Learn
from bow.scheduler.tasks import Run as Run
from bow.scheduler.tasks import Synchronise as Synchronise
from bow.scheduler.tasks import Task as Task
from bow.scheduler.tasks import TaskScheduler as TaskScheduler
