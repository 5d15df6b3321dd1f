"""The networks of the papers on operator scheduling and placement, in the papers' sizes.

LSTM, PhasedLSTM, PathNet and GoogLeNet are Graphi's (small, medium, large); ResNet-50, DCGAN, Inception-v3 and AlexNet
are those of Liu et al. (paper); ResNet-101, RNNTC, RNNLM and NMT FlexFlow's (paper), which has Inception-v3 and AlexNet
too (flexflow). Where a paper leaves a number open, a comment says where it is from.

References:
    Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 7.1, table 1.
    Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training, 2019,
    section IV.
    Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 8.1, table 3.
"""

from collections.abc import Mapping

import torch.nn.functional as F

from bow.models import samples
from bow.models.alexnet import AlexNet
from bow.models.dcgan import DCGAN, adversarial_loss
from bow.models.googlenet import GoogLeNet
from bow.models.inception import InceptionV3
from bow.models.network import Network, Size
from bow.models.pathnet import PathNet
from bow.models.phased_lstm import PhasedLSTM
from bow.models.resnet import BottleneckResNet
from bow.models.rnn_language_model import RNNLanguageModel
from bow.models.rnn_text_classification import RNNTextClassifier
from bow.models.sequence_loss import sequence_cross_entropy
from bow.models.translation import Translator

_IMAGENET = {"classes": 1000, "channels": 3}
_PENN_TREEBANK = 10_000
_MOVIE_REVIEWS = 18_765  # Kim 2014, table 1
_WORDPIECES = 32_000  # Wu et al. 2016, section 8.2: 8,000 to 32,000


def _graphi_text(length: int, hidden: int) -> Size:
    # Four layers: section 7.3. The vocabulary is that of Zaremba et al. 2014, whose network it is.
    return Size({"vocabulary": _PENN_TREEBANK, "hidden": hidden, "layers": 4}, (length,), batch=64)


def _graphi_path(image: int, filters: int) -> Size:
    arguments = {"classes": 10, "channels": 3, "size": image, "filters": filters, "layers": 3, "modules": 6}
    return Size(arguments, (3, image, image), batch=64)


def _graphi_image(image: int, width: int) -> Size:
    return Size({**_IMAGENET, "width": width, "dropout": 0.4}, (3, image, image), batch=32)


_TINY_TEXT = Size({"vocabulary": 100, "hidden": 128, "layers": 2}, (6,), batch=32)
_GRAPHI_TEXTS = {
    "tiny": _TINY_TEXT,
    "small": _graphi_text(20, 128),
    "medium": _graphi_text(30, 512),
    "large": _graphi_text(40, 1024),
}

NETWORKS: Mapping[str, Network] = {
    "lstm": Network("LSTM", RNNLanguageModel, sequence_cross_entropy, samples.texts, _GRAPHI_TEXTS),
    "phased_lstm": Network("PhasedLSTM", PhasedLSTM, sequence_cross_entropy, samples.timed_texts, _GRAPHI_TEXTS),
    "pathnet": Network(
        "PathNet",
        PathNet,
        F.cross_entropy,
        samples.images,
        {
            "tiny": Size({"classes": 10, "channels": 3, "size": 16, "filters": 8}, (3, 16, 16), batch=16),
            "small": _graphi_path(32, 16),
            "medium": _graphi_path(48, 32),
            "large": _graphi_path(64, 48),
        },
    ),
    "googlenet": Network(
        "GoogLeNet",
        GoogLeNet,
        F.cross_entropy,
        samples.images,
        {
            "tiny": Size({"classes": 10, "channels": 3, "width": 0.25}, (3, 48, 48), batch=4),
            "small": _graphi_image(128, 1),
            "medium": _graphi_image(192, 2),
            "large": _graphi_image(256, 4),
        },
    ),
    "resnet50": Network(
        "ResNet-50",
        BottleneckResNet,
        F.cross_entropy,
        samples.images,
        {
            "tiny": Size({"depth": 50, "classes": 10, "channels": 3, "width": 8}, (3, 16, 16), batch=4),
            "paper": Size({"depth": 50, "classes": 10, "channels": 3, "width": 64}, (3, 32, 32), batch=64),
            "imagenet": Size({**_IMAGENET, "depth": 50, "width": 64, "stem": "imagenet"}, (3, 224, 224), batch=64),
        },
    ),
    "dcgan": Network(
        "DCGAN",
        DCGAN,
        adversarial_loss,
        samples.images_and_noise,
        {
            "tiny": Size({"channels": 1, "size": 16, "width": 8, "latent": 16}, (1, 16, 16), batch=16),
            # 64 filters and 100 numbers: the implementation that the paper names.
            "paper": Size({"channels": 1, "size": 28, "width": 64, "latent": 100}, (1, 28, 28), batch=64),
        },
    ),
    "inception": Network(
        "Inception-v3",
        InceptionV3,
        F.cross_entropy,
        samples.images,
        {
            "tiny": Size({"classes": 10, "channels": 3, "width": 0.125}, (3, 75, 75), batch=4),
            "paper": Size({**_IMAGENET, "width": 1, "dropout": 0.2}, (3, 299, 299), batch=16),
            "flexflow": Size({**_IMAGENET, "width": 1, "dropout": 0.2}, (3, 299, 299), batch=64),
        },
    ),
    "alexnet": Network(
        "AlexNet",
        AlexNet,
        F.cross_entropy,
        samples.images,
        {
            "tiny": Size({"classes": 10, "channels": 3, "width": 0.125}, (3, 63, 63), batch=8),
            "paper": Size({**_IMAGENET, "width": 1, "dropout": 0.5}, (3, 224, 224), batch=16),
            "flexflow": Size({**_IMAGENET, "width": 1, "dropout": 0.5}, (3, 224, 224), batch=256),
        },
    ),
    "resnet101": Network(
        "ResNet-101",
        BottleneckResNet,
        F.cross_entropy,
        samples.images,
        {
            "tiny": Size({"depth": 101, "classes": 10, "channels": 3, "width": 8}, (3, 16, 16), batch=4),
            "paper": Size({**_IMAGENET, "depth": 101, "width": 64, "stem": "imagenet"}, (3, 224, 224), batch=64),
        },
    ),
    "rnntc": Network(
        "RNNTC",
        RNNTextClassifier,
        F.cross_entropy,
        samples.classified_texts,
        {
            "tiny": Size({"vocabulary": 100, "classes": 2, "hidden": 128, "layers": 4}, (5,), batch=32),
            "paper": Size({"vocabulary": _MOVIE_REVIEWS, "classes": 2, "hidden": 1024, "layers": 4}, (40,), batch=64),
        },
    ),
    "rnnlm": Network(
        "RNNLM",
        RNNLanguageModel,
        sequence_cross_entropy,
        samples.texts,
        {
            "tiny": _TINY_TEXT,
            "paper": Size({"vocabulary": _PENN_TREEBANK, "hidden": 2048, "layers": 2}, (40,), batch=64),
        },
    ),
    "nmt": Network(
        "NMT",
        Translator,
        sequence_cross_entropy,
        samples.translations,
        {
            "tiny": Size(
                {"source_vocabulary": 100, "target_vocabulary": 100, "hidden": 128, "layers": 2}, (5, 5), batch=32
            ),
            "paper": Size(
                {"source_vocabulary": _WORDPIECES, "target_vocabulary": _WORDPIECES, "hidden": 1024, "layers": 2},
                (40, 40),
                batch=64,
            ),
        },
    ),
}
"""By the name that the command line has for a network."""
