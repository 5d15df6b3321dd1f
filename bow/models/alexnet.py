"""AlexNet."""

import torch.nn.functional as F
from torch import Tensor, nn

from bow.models.branches import check_image_size, scaled

SMALLEST_IMAGE = 63
_POOLED = 6


class AlexNet(nn.Module):
    """Five convolutions and three linear layers, in one tower.

    The one-tower form of "One weird trick", as torchvision has it: without the split over two devices and without
    local response normalisation. Adaptive pooling to 6x6 pixels before the linear layers takes images of any size.

    Args:
        classes: number of classes.
        channels: channels of the images.
        width: multiplies filters and hidden units; 1 is the published network.
        dropout: probability with which an input of a hidden linear layer is dropped; 0.5 in the paper.

    Raises:
        SettingError: the width is not positive.

    References:
        Krizhevsky, Sutskever, Hinton: ImageNet classification with deep convolutional neural networks, 2012.
        Krizhevsky: One weird trick for parallelizing convolutional neural networks, 2014.
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network
        training, 2019, section III-B.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 0.125, dropout: float = 0.0) -> None:
        super().__init__()
        first, second, third, fourth = (scaled(filters, width) for filters in (64, 192, 384, 256))
        hidden = scaled(4096, width)
        self.features = nn.Sequential(
            nn.Conv2d(channels, first, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(second, third, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(third, fourth, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(fourth, fourth, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(fourth * _POOLED * _POOLED, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`.

        Raises:
            DataError: the images are smaller than 63x63 pixels.
        """
        check_image_size(images, SMALLEST_IMAGE, "AlexNet")
        features = F.adaptive_avg_pool2d(self.features(images), _POOLED)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits
