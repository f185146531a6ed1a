"""Residual networks: of bottlenecks for large pictures, and ResNet-18 for pictures of any size.

ResNet-18, -50 and -152: He et al., arXiv 1512.03385, with the stride in the 3x3 convolutions
("v1.5").
ResNeXt-101 32x4d: Xie et al., arXiv 1611.05431, whose 3x3 convolutions have 32 groups.
"""

from collections.abc import Sequence

from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; `width` channels in the middle."""

    def __init__(
        self, channels: int, width: int, out_channels: int, *, stride: int, groups: int
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_normalized(channels, width, kernel=1),
            nn.ReLU(inplace=True),
            *_normalized(width, width, kernel=3, stride=stride, groups=groups),
            nn.ReLU(inplace=True),
            *_normalized(width, out_channels, kernel=1),
        )
        changes = stride != 1 or channels != out_channels
        self.shortcut = nn.Sequential(
            *(_normalized(channels, out_channels, kernel=1, stride=stride) if changes else ())
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """`x[b, channels, h, w]` -> `[b, out_channels, h / stride, w / stride]`."""
        return self.activation(self.residual(x) + self.shortcut(x))


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_normalized(channels, out_channels, kernel=3, stride=stride),
            nn.ReLU(),
            *_normalized(out_channels, out_channels, kernel=3),
        )
        changes = stride != 1 or channels != out_channels
        self.shortcut = nn.Sequential(
            *(_normalized(channels, out_channels, kernel=1, stride=stride) if changes else ())
        )
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """`x[b, channels, h, w]` -> `[b, out_channels, h / stride, w / stride]`."""
        return self.activation(self.residual(x) + self.shortcut(x))


class ResNet18(nn.Sequential):
    """Maps images [b, 3, h, w] to logits [b, num_classes]; with the large stem and 1,000 classes,
    11,689,512 parameters.

    Args:
        num_classes: of the logits.
        width: channels of the first stage; each further one has twice as many.
        stem: "small" for pictures up to about 64 pixels, as CIFAR's: one 3x3 convolution, without
            pooling; "large": a 7x7 convolution and pooling, of stride 2 each.

    Raises:
        ValueError: another stem, or a width below 1.
    """

    def __init__(self, *, num_classes: int = 10, width: int = 64, stem: str = "small") -> None:
        if stem not in ("small", "large") or min(width, num_classes) < 1:
            raise ValueError(
                "ResNet18 has the stem small or large, and a width and classes above zero, but got "
                f"stem={stem}, width={width}, num_classes={num_classes}."
            )
        if stem == "small":
            layers: list[nn.Module] = [*_normalized(3, width, kernel=3), nn.ReLU()]
        else:
            layers = [*_normalized(3, width, kernel=7, stride=2), nn.ReLU()]
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        channels = width
        for stage in range(4):
            for block in range(2):
                stride = 2 if stage and not block else 1
                layers.append(Basic(channels, width << stage, stride=stride))
                channels = width << stage
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
        super().__init__(*layers)


class ResNet(nn.Sequential):
    """Maps images [b, 3, 224, 224] to logits [b, num_classes]; ResNet-50 with 25,557,032 parameters
    by default.

    Args:
        depths: bottlenecks of each of four stages, whose channels double.
        groups: of the 3x3 convolutions.
        group_width: channels of each group in the first stage.
        num_classes: of the logits.
    """

    def __init__(
        self,
        *,
        depths: Sequence[int] = (3, 4, 6, 3),
        groups: int = 1,
        group_width: int = 64,
        num_classes: int = 1000,
    ) -> None:
        layers: list[nn.Module] = [*_normalized(3, 64, kernel=7, stride=2)]
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
        channels = 64
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage and not block else 1
                width, wide = groups * group_width << stage, 256 << stage
                layers.append(Bottleneck(channels, width, wide, stride=stride, groups=groups))
                channels = wide
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
        super().__init__(*layers)


def _normalized(
    num_in: int, num_out: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(
        num_in, num_out, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return convolution, nn.BatchNorm2d(num_out)
