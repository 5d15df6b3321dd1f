"""Engines: how the learning tasks and the synchronisation task of a round run on one device."""

from bow.engines.batches import Batches as Batches
from bow.engines.batches import Stacked as Stacked
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
from bow.engines.loop import TaskRunner as TaskRunner
from bow.engines.outcome import LearningConfig as LearningConfig
from bow.engines.outcome import OnNan as OnNan
from bow.engines.outcome import Outcome as Outcome
from bow.engines.outcome import RoundEvent as RoundEvent
from bow.engines.outcome import check_clipping as check_clipping
from bow.engines.task import Batch as Batch
from bow.engines.task import Loss as Loss
from bow.engines.task import Step as Step
from bow.engines.task import autocast as autocast
from bow.engines.task import check_loss as check_loss
from bow.engines.task import step_from_loss as step_from_loss
