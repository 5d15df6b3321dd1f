"""Random batches in the shapes of a network's size."""

import torch
from torch import Tensor

from bow.models.network import Batch, Size


def images(size: Size, samples: int) -> Batch:
    """Images and their classes."""
    return torch.randn(samples, *size.inputs), _classes(size.arguments["classes"], samples)


def images_and_noise(size: Size, samples: int) -> Batch:
    """Images with values from -1 to 1 and noise to generate as many from; their classes, which nobody needs."""
    pixels, noise = torch.rand(samples, *size.inputs), torch.rand(samples, size.arguments["latent"])
    return (2 * pixels - 1, 2 * noise - 1), _classes(10, samples)


def texts(size: Size, samples: int) -> Batch:
    """Texts, and the token that follows each of theirs."""
    tokens = _tokens(size.arguments["vocabulary"], samples, size.inputs[0] + 1)
    return tokens[:, :-1], tokens[:, 1:]


def timed_texts(size: Size, samples: int) -> Batch:
    """Texts whose tokens come at times of their own, one unit apart on average, and the tokens that follow."""
    tokens, targets = texts(size, samples)
    return (tokens, (2 * torch.rand(tokens.shape)).cumsum(dim=1)), targets


def classified_texts(size: Size, samples: int) -> Batch:
    """Texts and their classes."""
    tokens = _tokens(size.arguments["vocabulary"], samples, size.inputs[0])
    return tokens, _classes(size.arguments["classes"], samples)


def translations(size: Size, samples: int) -> Batch:
    """Sentences, their translations as far as they are known, and the token that follows each of these."""
    source_length, target_length = size.inputs
    source = _tokens(size.arguments["source_vocabulary"], samples, source_length)
    target = _tokens(size.arguments["target_vocabulary"], samples, target_length + 1)
    return (source, target[:, :-1]), target[:, 1:]


def _tokens(vocabulary: int, samples: int, length: int) -> Tensor:
    return torch.randint(vocabulary, (samples, length))


def _classes(classes: int, samples: int) -> Tensor:
    return torch.randint(classes, (samples,))
