"""The papers' networks, small and plain."""

from bow.models.lenet import LeNet as LeNet
from bow.models.logistic_regression import LogisticRegression as LogisticRegression
from bow.models.lstm import LSTMLanguageModel as LSTMLanguageModel
from bow.models.mlp import MLP as MLP
from bow.models.resnet import ResNet as ResNet
from bow.models.sequence_loss import sequence_cross_entropy as sequence_cross_entropy
from bow.models.transformer import Transformer as Transformer
