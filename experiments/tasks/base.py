"""What a task is, and what the tasks of 28x28 grey images share.

Shapes: w workers held by this process, b examples of each, c classes, m examples of a split.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch.nn.functional as F
from torch import Tensor

IMAGE_SIZE = 28

PADDING = -1
"""The label of a row that only fills up a batch: never correct, and without a loss."""


@dataclass(frozen=True)
class Split:
    """Examples as they are stored: writable arrays x uint8 [m, 28, 28] and labels y int64 [m]."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class TaskData:
    """Disjoint splits: fit on train, stop and tune on validation, report test."""

    train: Split
    validation: Split
    test: Split


class Task(Protocol):
    """Data, loss and metric of one training problem."""

    num_classes: ClassVar[int]
    """The number of outputs c that a model of this task has."""

    @property
    def target_accuracy(self) -> float:
        """The validation accuracy, in (0, 1], at which the clock of time to accuracy stops."""
        ...

    def load(self) -> TaskData:
        """Reads the data with NumPy alone, so that it may run before a process forks.

        Raises UserError where the data is missing or corrupt.
        """
        ...

    def inputs(self, x: Tensor) -> Tensor:
        """Stored examples [..., 28, 28] as the model's normalised inputs [..., 1, 28, 28]."""
        ...

    def loss(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """The mean loss of each worker [w]; workers do not mix."""
        ...

    def num_correct(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """How many examples each worker gets right [w]."""
        ...


@dataclass(frozen=True, kw_only=True)
class ImageClassification:
    """All of a `Task` over 28x28 grey images but its data: a subclass adds `load` and statistics.

    Raises ValueError if the target is outside (0, 1].
    """

    num_classes: ClassVar[int] = 10
    mean: ClassVar[float]
    """Of the training images' pixels, scaled to [0, 1]."""
    std: ClassVar[float]

    target_accuracy: float

    def __post_init__(self) -> None:
        if not 0 < self.target_accuracy <= 1:
            raise ValueError(
                f"target_accuracy is a fraction in (0, 1], but got {self.target_accuracy}."
            )

    def inputs(self, x: Tensor) -> Tensor:
        """Images uint8 [..., 28, 28] as float32 [..., 1, 28, 28] of zero mean, unit variance."""
        return x.unsqueeze(-3).float().sub_(255 * self.mean).div_(255 * self.std)

    def loss(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """The mean cross entropy of each worker's labelled rows [w], in nats."""
        losses_wb = F.cross_entropy(
            outputs_wbc.flatten(0, 1), y_wb.flatten(), reduction="none", ignore_index=PADDING
        ).view_as(y_wb)
        return losses_wb.sum(1) / (y_wb != PADDING).sum(1).clamp(min=1)

    def num_correct(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """How often each worker's largest output is at the label, int64 [w]."""
        return (outputs_wbc.argmax(-1) == y_wb).sum(1)


def stratified(split: Split, *, per_class: tuple[int, ...], seed: int) -> list[Split]:
    """Disjoint random parts of `split`; part i has `per_class[i]` examples of every class."""
    order = np.random.default_rng(seed).permutation(len(split))
    labels = split.y[order]
    rank_in_class = np.empty(len(split), np.int64)
    for label in np.unique(labels):
        members = labels == label
        assert members.sum() >= sum(per_class)
        rank_in_class[members] = np.arange(members.sum())
    part_of = np.searchsorted(np.cumsum(per_class), rank_in_class, side="right")
    parts = (order[part_of == part] for part in range(len(per_class)))
    return [Split(split.x[part], split.y[part]) for part in parts]
