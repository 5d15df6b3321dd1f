"""Engines: how the learning tasks and the synchronisation task of a round run on one device."""

from bow.engine.base import Engine as Engine
from bow.engine.choice import ENGINES as ENGINES
from bow.engine.choice import STREAM_ENGINES as STREAM_ENGINES
from bow.engine.choice import EngineName as EngineName
from bow.engine.choice import check_device as check_device
from bow.engine.choice import check_engine as check_engine
from bow.engine.choice import choose_engine as choose_engine
from bow.engine.choice import choose_learners as choose_learners
from bow.engine.choice import make_engine as make_engine
from bow.engine.eager import Eager as Eager
from bow.engine.fused import Fused as Fused
from bow.engine.graph import Graph as Graph
from bow.engine.outcome import Batches as Batches
from bow.engine.outcome import Event as Event
from bow.engine.outcome import Outcome as Outcome
from bow.engine.outcome import Stacked as Stacked
from bow.engine.outcome import TaskSettings as TaskSettings
from bow.engine.outcome import check_clipping as check_clipping
from bow.engine.outcome import check_dispatch as check_dispatch
from bow.engine.streams import Streams as Streams
from bow.engine.task import Batch as Batch
from bow.engine.task import Loss as Loss
from bow.engine.task import Step as Step
from bow.engine.task import autocast as autocast
from bow.engine.task import check_loss as check_loss
from bow.engine.task import step_from_loss as step_from_loss
