"""Operator schedulers: completions in, starts out; they do not execute anything."""

from bow.schedule.scheduler.corun import CacheTimes as CacheTimes
from bow.schedule.scheduler.corun import CoRunScheduler as CoRunScheduler
from bow.schedule.scheduler.corun import separation as separation
from bow.schedule.scheduler.list_scheduler import ListScheduler as ListScheduler
from bow.schedule.scheduler.protocol import CriticalPath as CriticalPath
from bow.schedule.scheduler.protocol import DecisionRecorder as DecisionRecorder
from bow.schedule.scheduler.protocol import OperatorScheduler as OperatorScheduler
from bow.schedule.scheduler.protocol import Start as Start
from bow.schedule.scheduler.protocol import critical_path as critical_path
from bow.schedule.scheduler.protocol import held_by_core as held_by_core
