"""CIFAR-10 and CIFAR-100: 60,000 coloured images of 32 x 32 pixels.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The files are those of
the "binary version": records of the labels' bytes (one, or coarse and fine) and 3,072 of pixels,
red, green and blue planes in turn.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from experiments.tasks.base import Classification, Split, TaskData, stratified
from experiments.tasks.own.files import cifar_folder
from experiments.tasks.own.image_folder import normalized
from experiments.tasks.own.splits import DatasetSplit
from host.errors import UserError

PIXELS = 3 * 32 * 32
MOST_MOVED = 4
"""Pixels."""


class Moved(Dataset[Any]):
    """The images of a split, each time drawn anew."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self.targets = split.y

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image uint8 [3, 32, 32] and its class."""
        framed = F.pad(torch.from_numpy(self._split.x[index]), (MOST_MOVED,) * 4)
        down, right = torch.randint(2 * MOST_MOVED + 1, (2,)).tolist()
        x = framed[:, down : down + 32, right : right + 32]
        return x.flip(2) if torch.rand(()) < 0.5 else x, int(self.targets[index])


@dataclass(frozen=True, kw_only=True)
class Cifar(Classification):
    """The first 9/10 of each class of the training files are drawn for training, the others for
    validation.

    Args:
        root: the folder that the archive was unpacked into, or the one that it holds.
        num_classes: 10 or 100.
        augment: whether training images are moved by up to 4 pixels, with black beyond the edge,
            and half of them mirrored: He et al., arXiv 1512.03385, section 4.2.

    Raises:
        ValueError: another number of classes.
    """

    mean: ClassVar[tuple[float, float, float]] = (0.4914, 0.4822, 0.4465)
    """Of the training images of CIFAR-10, red, green and blue, scaled to [0, 1]."""
    std: ClassVar[tuple[float, float, float]] = (0.2470, 0.2435, 0.2616)

    root: str
    num_classes: int = 10  # pyright: ignore[reportIncompatibleVariableOverride]
    augment: bool = False
    target_accuracy: float | None = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes not in (10, 100):
            raise ValueError(f"CIFAR has 10 or 100 classes, got {self.num_classes}")

    def load(self) -> TaskData:
        """Reads the files; raises UserError where they are missing or damaged."""
        folder = cifar_folder(self.root, self.num_classes)
        names = [f"data_batch_{i}.bin" for i in range(1, 6)]
        train_files, test_files = (
            (names, ["test_batch.bin"]) if self.num_classes == 10 else (["train.bin"], ["test.bin"])
        )
        training = self._read([folder / name for name in train_files])
        smallest = int(np.bincount(training.y, minlength=self.num_classes).min())
        if smallest < 2:
            raise UserError(f"{folder} has a class of {smallest} images: unpack the archive again")
        per_class = (smallest - max(1, smallest // 10), max(1, smallest // 10))
        train, validation = stratified(training, per_class=per_class, seed=0)
        test = self._read([folder / name for name in test_files])
        drawn = DatasetSplit(Moved(train)) if self.augment else train
        return TaskData(drawn, validation, test)

    def inputs(self, x: Tensor) -> Tensor:
        """Images uint8 [..., 3, 32, 32] as float32 of about zero mean and unit variance."""
        return normalized(x, self.mean, self.std)

    def _read(self, files: list[Path]) -> Split:
        num_labels = 1 if self.num_classes == 10 else 2
        try:
            contents = [np.frombuffer(file.read_bytes(), np.uint8) for file in files]
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror})") from error
        for file, content in zip(files, contents, strict=True):
            if not len(content) or len(content) % (num_labels + PIXELS):
                raise UserError(
                    f"{file} is damaged: its {len(content)} bytes are no whole images; unpack the "
                    "archive again"
                )
        records = np.concatenate(contents).reshape(-1, num_labels + PIXELS)
        y = records[:, num_labels - 1].astype(np.int64)
        if y.max() >= self.num_classes:
            raise UserError(f"{files[0].parent} has a class {y.max()}: unpack the archive again")
        return Split(records[:, num_labels:].reshape(-1, 3, 32, 32).copy(), y)
