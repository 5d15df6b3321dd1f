"""The step graph: the operators of one training step, captured once."""

from bow.graph.capturing import capture as capture
from bow.graph.operator import Operator as Operator
from bow.graph.operator import Ref as Ref
from bow.graph.step_graph import StepGraph as StepGraph
