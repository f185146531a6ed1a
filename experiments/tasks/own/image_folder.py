"""Folders of pictures, one a class: `task=image_folder task.root=pictures/`, and ImageNet.

    ROOT/train/CLASS/*.jpg, ROOT/val/CLASS/*.jpg     as ImageNet is laid out
    ROOT/CLASS/*.jpg                                 a tenth is drawn for validation, one for test

Pictures are read as they are needed. In training a random part of each is cut out, and half of them
are mirrored (Szegedy et al., arXiv 1409.4842, as in PyTorch's recipe for ImageNet); otherwise the
middle is taken. JPEG, PNG and what else Pillow reads.

Shapes: s pixels of a side, m examples.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.tasks.base import TaskData
from experiments.tasks.own.dataset import DatasetTask
from experiments.tasks.own.files import picture_files
from experiments.tasks.own.splits import DatasetSplit
from host.errors import UserError

BILINEAR = 2
"""Of Pillow, which is imported where a picture is read."""
MARGIN = 256 / 224
"""What a picture's shorter side is scaled to, over the side of the square cut out of it."""


class Pictures(Dataset[Any]):
    """Pairs (picture uint8 [3, s, s], class).

    Args:
        files: of the pictures, each in the folder of its class.
        classes: the folders' names, in the order of their numbers.
        size: s.
        augment: whether the part that is cut out is drawn.
    """

    def __init__(
        self, files: list[Path], classes: list[str], *, size: int = 224, augment: bool = False
    ) -> None:
        self.files, self.classes = files, classes
        numbers = {name: number for number, name in enumerate(classes)}
        self.targets = [numbers[file.parent.name] for file in files]
        self._size, self._augment = size, augment

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Raises UserError for a file that is no picture."""
        from PIL import Image

        try:
            with Image.open(self.files[index]) as file:
                picture = file.convert("RGB")
        except OSError as error:
            raise UserError(
                f"{self.files[index]} is no picture that can be read ({error}): delete it"
            ) from error
        box = _drawn_box(*picture.size) if self._augment else None
        pixels = np.asarray(square(picture, self._size, box))
        if self._augment and torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), self.targets[index]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFolder(DatasetTask):
    """A class a folder.

    Args:
        root: the folder of folders.
        size: s.
        augment: whether parts of training pictures are drawn.
    """

    mean: ClassVar[tuple[float, float, float]] = (0.485, 0.456, 0.406)
    """ImageNet's, red, green and blue, scaled to [0, 1], which pretrained models expect."""
    std: ClassVar[tuple[float, float, float]] = (0.229, 0.224, 0.225)

    root: str
    size: int = 224
    augment: bool = True
    train: Any = None
    validation: Any = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"task.size must be at least 1, got {self.size}")
        train, validation, test = picture_files(self.root)
        classes = sorted({file.parent.name for file in train})
        strangers = {file.parent.name for file in (*validation, *test)} - set(classes)
        if strangers:
            raise UserError(
                f"task.root={self.root} has pictures of {min(strangers)} that are not for "
                "training: every class needs a folder in train"
            )
        for name, files in (("train", train), ("validation", validation), ("test", test)):
            augment = self.augment and name == "train"
            part = Pictures(files, classes, size=self.size, augment=augment)
            object.__setattr__(self, name, part)
        super().__post_init__()

    def inputs(self, x: Tensor) -> Tensor:
        """Pictures uint8 [..., 3, s, s] as float32 of about zero mean and unit variance."""
        return normalized(x, self.mean, self.std)

    def load(self) -> TaskData:
        """The three splits, without reading a picture."""
        assert self.test is not None, "made with the others"
        parts = (self.train, self.validation, self.test)
        return TaskData(*(DatasetSplit(part, num_classes=self.num_classes) for part in parts))


def normalized(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Pixels [..., 3, s, s] of 0 to 255, less the mean and by the deviation of pixels of 0 to 1."""
    means, deviations = (
        255 * torch.tensor(values, device=x.device).view(3, 1, 1) for values in (mean, std)
    )
    return x.float().sub_(means).div_(deviations)


def square(picture: Any, size: int, box: tuple[float, ...] | None = None) -> Any:
    """The part `box` of one of Pillow's pictures, None: the middle, with sides of `size` pixels."""
    part = _middle_box(*picture.size) if box is None else box
    return picture.resize((size, size), BILINEAR, part, reducing_gap=2.0)


def _middle_box(width: int, height: int) -> tuple[float, float, float, float]:
    side = min(width, height) / MARGIN
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _drawn_box(width: int, height: int) -> tuple[float, float, float, float]:
    """8 to 100 % of the area, 3:4 to 4:3; the middle where ten draws do not fit."""
    for _ in range(10):
        area = width * height * float(torch.empty(()).uniform_(0.08, 1))
        ratio = math.exp(float(torch.empty(()).uniform_(math.log(3 / 4), math.log(4 / 3))))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            left, top = (float(torch.rand(())) * room for room in (width - w, height - h))
            return left, top, left + w, top + h
    return _middle_box(width, height)
