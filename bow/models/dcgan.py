"""DCGAN: two adversarial networks, trained in one step."""

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from bow.errors import SettingError

_SMALLEST_START = 4
_STD = 0.02


class Verdicts(NamedTuple):
    """The discriminator's logits for a batch, `[batch]`: large if it takes images for real."""

    real: Tensor  # of real images
    generated: Tensor  # of generated images; their gradient reaches only the discriminator
    deceived: Tensor  # of the same images; their gradient reaches only the generator


class DCGAN(nn.Module):
    """A generator and a discriminator whose losses can be summed and differentiated at once.

    The discriminator D minimises `L_D = -log D(x) - log(1 - D(G(z)))`, the generator G minimises `L_G = -log D(G(z))`.
    Neither loss may have a gradient for the other's weights, so G(z) enters L_D detached, and L_G is computed with D's
    weights detached: the derivative of `L_D + L_G` by D's weights is that of L_D, and by G's weights that of L_G. One
    backward pass, and so one captured step, yields the gradients of both networks, at the same weights. The usual loop
    differs in that it updates G against D's weights after their step.

    D sees the real images, the generated ones, and the generated ones again: its batch norm computes the statistics of
    each separately, and updates the running ones three times, as in the usual loop. `width` is the number of filters of
    the layer next to the images, doubled in each deeper layer; `latent` is the length of the noise vector of an image.

    References:
        Goodfellow et al.: Generative adversarial nets, 2014.
        Radford, Metz, Chintala: Unsupervised representation learning with deep convolutional generative adversarial
        networks, 2015.
    """

    def __init__(self, channels: int = 1, size: int = 28, width: int = 8, latent: int = 100) -> None:
        super().__init__()
        self.latent = latent
        self.generator = Generator(channels, size, width, latent)
        self.discriminator = Discriminator(channels, size, width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                nn.init.normal_(module.weight, std=_STD)

    def forward(self, inputs: Tensor | tuple[Tensor, Tensor]) -> Verdicts:
        """Return the discriminator's logits for real and generated images."""
        images, noise = (inputs, self.noise(inputs)) if isinstance(inputs, Tensor) else inputs
        generated = self.generator(noise)
        frozen = {name: parameter.detach() for name, parameter in self.discriminator.named_parameters()}
        return Verdicts(
            self.discriminator(images),
            self.discriminator(generated.detach()),
            functional_call(self.discriminator, frozen, (generated,)),
        )

    def noise(self, images: Tensor) -> Tensor:
        """Draw noise for as many images, `[batch, latent]`, uniform from -1 to 1."""
        return torch.rand(len(images), self.latent, dtype=images.dtype, device=images.device) * 2 - 1


class Generator(nn.Module):
    """Images from noise: a linear layer, then transposed convolutions, with batch norm and ReLU; tanh at the end."""

    def __init__(self, channels: int, size: int, width: int, latent: int) -> None:
        super().__init__()
        start, doublings = _halvings(size)
        filters = [width * 2**stage for stage in reversed(range(doublings))]
        self._start = filters[0], start, start
        self.project = nn.Linear(latent, filters[0] * start * start, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(count) for count in filters)
        self.convs = nn.ModuleList(
            nn.ConvTranspose2d(count, count // 2, 5, stride=2, padding=2, output_padding=1, bias=False)
            for count in filters[:-1]
        )
        self.output = nn.ConvTranspose2d(width, channels, 5, stride=2, padding=2, output_padding=1)

    def forward(self, noise: Tensor) -> Tensor:
        """Images `[batch, channels, size, size]` with values from -1 to 1, of noise `[batch, latent]`."""
        images = self.project(noise).unflatten(1, self._start)
        for norm, conv in zip(self.norms, [*self.convs, self.output], strict=True):
            images = conv(F.relu(norm(images)))
        return torch.tanh(images)


class Discriminator(nn.Module):
    """A logit from an image: strided convolutions with leaky ReLU and, but for the first, batch norm; then a layer."""

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        end, halvings = _halvings(size)
        filters = [width * 2**stage for stage in range(halvings)]
        self.first = nn.Conv2d(channels, width, 5, stride=2, padding=2)
        self.convs = nn.ModuleList(
            nn.Conv2d(before, count, 5, stride=2, padding=2, bias=False)
            for before, count in itertools.pairwise(filters)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(count) for count in filters[1:])
        self.output = nn.Linear(filters[-1] * end * end, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch]` of images `[batch, channels, size, size]`."""
        features = F.leaky_relu(self.first(images), 0.2)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            features = F.leaky_relu(norm(conv(features)), 0.2)
        logits: Tensor = self.output(features.flatten(1)).squeeze(1)
        return logits


def adversarial_loss(verdicts: Verdicts, targets: object = None) -> Tensor:
    """Sum of the discriminator's and the generator's loss, in nats, for `loss=`; targets are ignored."""
    return discriminator_loss(verdicts) + generator_loss(verdicts)


def discriminator_loss(verdicts: Verdicts) -> Tensor:
    """Cross entropy of the discriminator on real and generated images, in nats."""
    real, generated = verdicts.real, verdicts.generated
    return F.softplus(-real).mean() + F.softplus(generated).mean()


def generator_loss(verdicts: Verdicts) -> Tensor:
    """Cross entropy of the discriminator on generated images labelled as real, in nats."""
    return F.softplus(-verdicts.deceived).mean()


def _halvings(size: int) -> tuple[int, int]:
    """Return a size halved while it is even and at least 4 remain, and the number of halvings."""
    halvings = 0
    while size % 2 == 0 and size // 2 >= _SMALLEST_START:
        size, halvings = size // 2, halvings + 1
    if not halvings:
        raise SettingError(f"size must be even and at least {2 * _SMALLEST_START} pixels, got {size}; pad the images")
    return size, halvings
