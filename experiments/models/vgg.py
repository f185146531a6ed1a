"""VGG16: Simonyan and Zisserman, arXiv 1409.1556, configuration D."""

from torch import nn

from experiments.models.pooling import HalvingMaxPool2d

WIDTHS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of the 3x3 convolutions before each pooling."""


class VGG16(nn.Sequential):
    """Maps images [b, 3, 224, 224] to logits [b, num_classes]; 138,357,544 parameters."""

    def __init__(self, *, num_classes: int = 1000) -> None:
        layers: list[nn.Module] = []
        channels, side = 3, 224
        for width, depth in WIDTHS:
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(HalvingMaxPool2d())
            side //= 2
        layers.append(nn.Flatten())
        features = channels * side**2
        for width in (4096, 4096):
            layers += [nn.Linear(features, width), nn.ReLU(inplace=True), nn.Dropout()]
            features = width
        super().__init__(*layers, nn.Linear(features, num_classes))
