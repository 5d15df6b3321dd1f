"""The networks of the papers that bow follows."""

from bow.models.convolutional import AlexNet as AlexNet
from bow.models.convolutional import GoogLeNet as GoogLeNet
from bow.models.convolutional import InceptionV3 as InceptionV3
from bow.models.convolutional import PathNet as PathNet
from bow.models.dcgan import DCGAN as DCGAN
from bow.models.dcgan import adversarial_loss as adversarial_loss
from bow.models.networks import NETWORKS as NETWORKS
from bow.models.networks import Network as Network
from bow.models.recurrent import LSTMLanguageModel as LSTMLanguageModel
from bow.models.recurrent import PhasedLSTM as PhasedLSTM
from bow.models.recurrent import RNNLanguageModel as RNNLanguageModel
from bow.models.recurrent import RNNTextClassifier as RNNTextClassifier
from bow.models.recurrent import Translator as Translator
from bow.models.recurrent import sequence_cross_entropy as sequence_cross_entropy
from bow.models.resnet import BottleneckResNet as BottleneckResNet
from bow.models.resnet import ResNet as ResNet
from bow.models.small import MLP as MLP
from bow.models.small import LeNet as LeNet
from bow.models.small import LogisticRegression as LogisticRegression
from bow.models.transformer import Transformer as Transformer
