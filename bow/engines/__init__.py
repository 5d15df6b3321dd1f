"""Engines run the learning tasks and the synchronisation task of a round on one device."""

from bow.engines.choice import ENGINES as ENGINES
from bow.engines.choice import STREAM_ENGINES as STREAM_ENGINES
from bow.engines.choice import check_device as check_device
from bow.engines.choice import choose_engine as choose_engine
from bow.engines.choice import choose_learners as choose_learners
from bow.engines.choice import make_engine as make_engine
from bow.engines.config import Engine as Engine
from bow.engines.config import EngineName as EngineName
from bow.engines.loop import Loop as Loop
from bow.engines.loop import RoundLoop as RoundLoop
from bow.engines.outcome import LearningConfig as LearningConfig
from bow.engines.outcome import OnNan as OnNan
from bow.engines.outcome import Outcome as Outcome
from bow.engines.outcome import RoundEvent as RoundEvent
from bow.engines.outcome import Turns as Turns
from bow.engines.outcome import check_clipping as check_clipping
from bow.engines.runner import TaskRunner as TaskRunner
from bow.engines.task import Loss as Loss
from bow.engines.task import Step as Step
from bow.engines.task import autocast as autocast
from bow.engines.task import check_loss as check_loss
from bow.engines.task import loss_of as loss_of
from bow.engines.task import outputs_of as outputs_of
from bow.engines.task import own_loss as own_loss
from bow.graph.learning_step import step_from_loss as step_from_loss
