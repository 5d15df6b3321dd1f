"""The networks of the papers on operator scheduling and placement, in the papers' sizes.

LSTM, PhasedLSTM, PathNet and GoogLeNet are Graphi's (small, medium, large); ResNet-50, DCGAN, Inception-v3 and AlexNet
are those of Liu et al. (paper); ResNet-101, RNNTC, RNNLM and NMT FlexFlow's (paper), which also has Inception-v3 and
AlexNet (flexflow). Where a paper omits a number, a comment names the source used.

References:
    Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 7.1, table 1.
    Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training, 2019,
    section IV.
    Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 8.1, table 3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import SettingError
from bow.models.convolutional import AlexNet, GoogLeNet, InceptionV3, PathNet
from bow.models.dcgan import DCGAN, adversarial_loss
from bow.models.recurrent import PhasedLSTM, RNNLanguageModel, RNNTextClassifier, Translator, sequence_cross_entropy
from bow.models.resnet import BottleneckResNet

Batch: TypeAlias = tuple[Any, Tensor]  # inputs, a tensor or a tuple of them, and targets


@dataclass(frozen=True)
class Size:
    """One size of a network and of its training batch."""

    arguments: Mapping[str, Any]  # keyword arguments of the model's class
    inputs: tuple[int, ...]  # shape of one sample, such as channels, height and width, or the length of a text
    batch: int  # samples of a batch


@dataclass(frozen=True)
class Network:
    """A network with its loss, sizes and random batches, for code that handles any network."""

    title: str  # its name in reports
    model: Callable[..., nn.Module]  # the model's class
    loss: Callable[[Any, Any], Tensor]  # `loss(outputs, targets) -> scalar`
    samples: Callable[[Size, int], Batch]  # makes a random batch of this many samples for a size
    sizes: Mapping[str, Size]  # by name: `"tiny"`, for two cores, and the papers'

    def build(self, size: str = "tiny") -> nn.Module:
        """Build the network in a size, with weights from torch's random number generator.

        Under `with torch.device("meta"):` the network and its batch use no memory, and can still be captured.
        """
        return self.model(**self.size(size).arguments)

    def batch(self, size: str = "tiny", samples: int | None = None, seed: int = 0) -> Batch:
        """Return a random batch `(inputs, targets)`, a function of the seed; torch's generator is not changed."""
        chosen = self.size(size)
        count = chosen.batch if samples is None else samples
        if count < 1:
            raise SettingError(f"samples must be at least 1, got {count}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.samples(chosen, count)

    def size(self, name: str) -> Size:
        if name not in self.sizes:
            raise SettingError(f"size must be one of {', '.join(self.sizes)} for {self.title}, got {name}")
        return self.sizes[name]


def _images(size: Size, samples: int) -> Batch:
    return torch.randn(samples, *size.inputs), torch.randint(size.arguments["classes"], (samples,))


def _images_and_noise(size: Size, samples: int) -> Batch:
    pixels, noise = torch.rand(samples, *size.inputs), torch.rand(samples, size.arguments["latent"])
    return (2 * pixels - 1, 2 * noise - 1), torch.randint(10, (samples,))  # classes, which the loss ignores


def _texts(size: Size, samples: int) -> Batch:
    tokens = _tokens(size.arguments["vocabulary"], samples, size.inputs[0] + 1)
    return tokens[:, :-1], tokens[:, 1:]


def _timed_texts(size: Size, samples: int) -> Batch:
    """Texts whose tokens have increasing random times, one unit apart on average, and the tokens that follow."""
    tokens, targets = _texts(size, samples)
    return (tokens, (2 * torch.rand(tokens.shape)).cumsum(dim=1)), targets


def _classified_texts(size: Size, samples: int) -> Batch:
    tokens = _tokens(size.arguments["vocabulary"], samples, size.inputs[0])
    return tokens, torch.randint(size.arguments["classes"], (samples,))


def _translations(size: Size, samples: int) -> Batch:
    """Source sentences, prefixes of their translations, and the token that follows each prefix."""
    source_length, target_length = size.inputs
    source = _tokens(size.arguments["source_vocabulary"], samples, source_length)
    target = _tokens(size.arguments["target_vocabulary"], samples, target_length + 1)
    return (source, target[:, :-1]), target[:, 1:]


def _tokens(vocabulary: int, samples: int, length: int) -> Tensor:
    return torch.randint(vocabulary, (samples, length))


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


def _flexflow_translator(vocabulary: int, hidden: int, length: int, batch: int) -> Size:
    arguments = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary, "hidden": hidden, "layers": 2}
    return Size(arguments, (length, length), batch)


_TINY_TEXT = Size({"vocabulary": 100, "hidden": 128, "layers": 2}, (6,), batch=32)
_GRAPHI_TEXTS = {
    "tiny": _TINY_TEXT,
    "small": _graphi_text(20, 128),
    "medium": _graphi_text(30, 512),
    "large": _graphi_text(40, 1024),
}

_TINY_IMAGES = {"classes": 10, "channels": 3}
_PATHNETS = {
    "tiny": Size({**_TINY_IMAGES, "size": 16, "filters": 8}, (3, 16, 16), batch=16),
    "small": _graphi_path(32, 16),
    "medium": _graphi_path(48, 32),
    "large": _graphi_path(64, 48),
}
_GOOGLENETS = {
    "tiny": Size({**_TINY_IMAGES, "width": 0.25}, (3, 48, 48), batch=4),
    "small": _graphi_image(128, 1),
    "medium": _graphi_image(192, 2),
    "large": _graphi_image(256, 4),
}
_RESNETS50 = {
    "tiny": Size({**_TINY_IMAGES, "depth": 50, "width": 8}, (3, 16, 16), batch=4),
    "paper": Size({**_TINY_IMAGES, "depth": 50, "width": 64}, (3, 32, 32), batch=64),
    "imagenet": Size({**_IMAGENET, "depth": 50, "width": 64, "stem": "imagenet"}, (3, 224, 224), batch=64),
}
_RESNETS101 = {
    "tiny": Size({**_TINY_IMAGES, "depth": 101, "width": 8}, (3, 16, 16), batch=4),
    "paper": Size({**_IMAGENET, "depth": 101, "width": 64, "stem": "imagenet"}, (3, 224, 224), batch=64),
}
_DCGANS = {
    "tiny": Size({"channels": 1, "size": 16, "width": 8, "latent": 16}, (1, 16, 16), batch=16),
    # 64 filters and 100 latent numbers are those of the implementation that the paper cites.
    "paper": Size({"channels": 1, "size": 28, "width": 64, "latent": 100}, (1, 28, 28), batch=64),
}
_INCEPTIONS = {
    "tiny": Size({**_TINY_IMAGES, "width": 0.125}, (3, 75, 75), batch=4),
    "paper": Size({**_IMAGENET, "width": 1, "dropout": 0.2}, (3, 299, 299), batch=16),
    "flexflow": Size({**_IMAGENET, "width": 1, "dropout": 0.2}, (3, 299, 299), batch=64),
}
_ALEXNETS = {
    "tiny": Size({**_TINY_IMAGES, "width": 0.125}, (3, 63, 63), batch=8),
    "paper": Size({**_IMAGENET, "width": 1, "dropout": 0.5}, (3, 224, 224), batch=16),
    "flexflow": Size({**_IMAGENET, "width": 1, "dropout": 0.5}, (3, 224, 224), batch=256),
}
_CLASSIFIERS = {
    "tiny": Size({"vocabulary": 100, "classes": 2, "hidden": 128, "layers": 4}, (5,), batch=32),
    "paper": Size({"vocabulary": _MOVIE_REVIEWS, "classes": 2, "hidden": 1024, "layers": 4}, (40,), batch=64),
}
_LANGUAGE_MODELS = {
    "tiny": _TINY_TEXT,
    "paper": Size({"vocabulary": _PENN_TREEBANK, "hidden": 2048, "layers": 2}, (40,), batch=64),
}
_TRANSLATORS = {"tiny": _flexflow_translator(100, 128, 5, 32), "paper": _flexflow_translator(_WORDPIECES, 1024, 40, 64)}

# By the network's name on the command line.
NETWORKS: Mapping[str, Network] = {
    "lstm": Network("LSTM", RNNLanguageModel, sequence_cross_entropy, _texts, _GRAPHI_TEXTS),
    "phased_lstm": Network("PhasedLSTM", PhasedLSTM, sequence_cross_entropy, _timed_texts, _GRAPHI_TEXTS),
    "pathnet": Network("PathNet", PathNet, F.cross_entropy, _images, _PATHNETS),
    "googlenet": Network("GoogLeNet", GoogLeNet, F.cross_entropy, _images, _GOOGLENETS),
    "resnet50": Network("ResNet-50", BottleneckResNet, F.cross_entropy, _images, _RESNETS50),
    "dcgan": Network("DCGAN", DCGAN, adversarial_loss, _images_and_noise, _DCGANS),
    "inception": Network("Inception-v3", InceptionV3, F.cross_entropy, _images, _INCEPTIONS),
    "alexnet": Network("AlexNet", AlexNet, F.cross_entropy, _images, _ALEXNETS),
    "resnet101": Network("ResNet-101", BottleneckResNet, F.cross_entropy, _images, _RESNETS101),
    "rnntc": Network("RNNTC", RNNTextClassifier, F.cross_entropy, _classified_texts, _CLASSIFIERS),
    "rnnlm": Network("RNNLM", RNNLanguageModel, sequence_cross_entropy, _texts, _LANGUAGE_MODELS),
    "nmt": Network("NMT", Translator, sequence_cross_entropy, _translations, _TRANSLATORS),
}
