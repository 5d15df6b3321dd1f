"""The replica matrix: learners as rows of one tensor, their modules, optimizer and central model."""

from bow.replica.buffers import BufferPolicy as BufferPolicy
from bow.replica.buffers import buffer_slots as buffer_slots
from bow.replica.buffers import buffer_state as buffer_state
from bow.replica.buffers import copy_buffers as copy_buffers
from bow.replica.buffers import load_buffers as load_buffers
from bow.replica.buffers import recalibrate as recalibrate
from bow.replica.group import Learner as Learner
from bow.replica.group import LearnerGroup as LearnerGroup
from bow.replica.layout import ParameterLayout as ParameterLayout
from bow.replica.layout import Slot as Slot
from bow.replica.matrix import ReplicaMatrix as ReplicaMatrix
from bow.replica.model import has_lazy_modules as has_lazy_modules
from bow.replica.model import num_trainable as num_trainable
from bow.replica.model import prepare_template as prepare_template
from bow.replica.optimizer import OptimizerFactory as OptimizerFactory
from bow.replica.optimizer import OptimizerRows as OptimizerRows
from bow.replica.optimizer import num_state_tensors as num_state_tensors
