"""The replica matrix: learners as rows of one tensor, with their modules, optimizer and central model."""

from bow.replicas.buffers import BufferPolicy as BufferPolicy
from bow.replicas.buffers import buffer_slots as buffer_slots
from bow.replicas.buffers import buffer_state as buffer_state
from bow.replicas.buffers import copy_buffers as copy_buffers
from bow.replicas.buffers import extra_state as extra_state
from bow.replicas.buffers import is_expanded as is_expanded
from bow.replicas.buffers import load_buffers as load_buffers
from bow.replicas.buffers import load_extra_state as load_extra_state
from bow.replicas.buffers import nan_buffers as nan_buffers
from bow.replicas.buffers import recalibrate as recalibrate
from bow.replicas.buffers import tied_buffers as tied_buffers
from bow.replicas.group import Learner as Learner
from bow.replicas.group import LearnerGroup as LearnerGroup
from bow.replicas.layout import ParameterLayout as ParameterLayout
from bow.replicas.layout import Slot as Slot
from bow.replicas.matrix import ReplicaMatrix as ReplicaMatrix
from bow.replicas.model import has_lazy_modules as has_lazy_modules
from bow.replicas.model import in_mode as in_mode
from bow.replicas.model import num_trainable as num_trainable
from bow.replicas.model import prepare_template as prepare_template
from bow.replicas.optimizer import OptimizerFactory as OptimizerFactory
from bow.replicas.optimizer import is_for_one_learner as is_for_one_learner
from bow.replicas.optimizer import is_plain_adam as is_plain_adam
from bow.replicas.optimizer import is_plain_sgd as is_plain_sgd
from bow.replicas.optimizer import kind_of as kind_of
from bow.replicas.optimizer import num_state_tensors as num_state_tensors
