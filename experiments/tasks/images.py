"""What the tasks of 28x28 grey images share."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from experiments.tasks.base import Classification

IMAGE_SIZE = 28


@dataclass(frozen=True, kw_only=True)
class ImageClassification(Classification):
    """All of a `Task` over images uint8 [m, 28, 28] but its data: a subclass adds `load` and
    statistics.
    """

    num_classes: ClassVar[int] = 10
    mean: ClassVar[float]
    """Of the training images' pixels, scaled to [0, 1]."""
    std: ClassVar[float]

    def inputs(self, x: Tensor) -> Tensor:
        """Images uint8 [..., 28, 28] as float32 [..., 1, 28, 28] of zero mean, unit variance."""
        return x.unsqueeze(-3).float().sub_(255 * self.mean).div_(255 * self.std)
