"""Operator schedules as plain data, and execution timelines."""

from bow.schedule.schedule import DynamicSchedule as DynamicSchedule
from bow.schedule.schedule import FirstComeSchedule as FirstComeSchedule
from bow.schedule.schedule import OrderedSchedule as OrderedSchedule
from bow.schedule.schedule import PrioritySchedule as PrioritySchedule
from bow.schedule.schedule import Schedule as Schedule
from bow.schedule.timeline import Span as Span
from bow.schedule.timeline import Timeline as Timeline
