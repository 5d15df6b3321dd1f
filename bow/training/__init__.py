"""Training: `bow.train`, `bow.Replicas`, and their parts."""

from bow.training.callbacks import Callback as Callback
from bow.training.callbacks import TraceRounds as TraceRounds
from bow.training.metrics import Accuracy as Accuracy
from bow.training.metrics import Metric as Metric
from bow.training.replicas import Replicas as Replicas
from bow.training.result import Result as Result
from bow.training.train import train as train
