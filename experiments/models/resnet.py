"""Residual networks of bottlenecks.

ResNet-50 and -152: He et al., arXiv 1512.03385, with the stride in the 3x3 convolutions ("v1.5").
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
