"""What a task is, and what all tasks share whose labels are classes.

An example is a row of one array, whatever it is made of: texts and recordings of unequal length are
padded with zeros to one length, and what is padding can be told from the row itself.

Shapes: w workers held by this process, b examples of each, c classes, m examples of a split; [...]
is nothing where an example has one label, and its places where it has one at each of them.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch.nn.functional as F
from torch import Tensor

PADDING = -1
"""The label of a row that only fills up a batch: never correct, and without a loss."""


@dataclass(frozen=True)
class Split:
    """Examples as they are stored: writable arrays x [m, ...] and labels y int64 [m, ...]."""

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

    labels_are_characters: ClassVar[bool]
    """Whether the loss is reported in bits a character, too, as that of language models is."""

    @property
    def target_accuracy(self) -> float:
        """The validation accuracy, in (0, 1], at which the clock of time to accuracy stops."""
        ...

    def load(self) -> TaskData:
        """Reads the data without torch's threads, so that it may run before a process forks.

        Raises UserError where the data is missing or corrupt.
        """
        ...

    def inputs(self, x: Tensor) -> Tensor:
        """Stored examples, behind any leading dimensions, as the model takes them."""
        ...

    def lengths(self, split: Split) -> np.ndarray:
        """Of how many places each example is, int64 [m]: padding fills the others up to x.shape[1],
        and changes no model's outputs.
        """
        ...

    def loss(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """The mean loss of each worker's labels [w], in nats; workers do not mix."""
        ...

    def num_correct(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """How many labels each worker gets right [w]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The loss and the metric of a `Task`, whose examples are equally long unless it says
    otherwise: a subclass adds `load`, `inputs` and `num_classes`.

    Raises ValueError if the target is outside (0, 1].
    """

    labels_are_characters: ClassVar[bool] = False

    target_accuracy: float

    def __post_init__(self) -> None:
        if not 0 < self.target_accuracy <= 1:
            raise ValueError(
                f"target_accuracy is a fraction in (0, 1], but got {self.target_accuracy}."
            )

    def lengths(self, split: Split) -> np.ndarray:
        """All places of all examples."""
        return np.full(len(split), split.x.shape[1])

    def loss(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """The mean cross entropy of each worker's labels [w], in nats.

        Takes outputs [w, b, ..., c] and labels [w, b, ...].
        """
        losses = F.cross_entropy(
            outputs_wbc.flatten(0, -2), y_wb.flatten(), reduction="none", ignore_index=PADDING
        )
        num_labels_w = (y_wb != PADDING).flatten(1).sum(1)
        return losses.view(len(y_wb), -1).sum(1) / num_labels_w.clamp(min=1)

    def num_correct(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """How often each worker's largest output is at the label, int64 [w]."""
        return (outputs_wbc.argmax(-1) == y_wb).flatten(1).sum(1)


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


def shuffled(split: Split, *, sizes: tuple[int, ...], seed: int) -> list[Split]:
    """Disjoint random parts of `split`; part i has `sizes[i]` examples."""
    assert sum(sizes) <= len(split)
    order = np.random.default_rng(seed).permutation(len(split))
    ends = np.cumsum(sizes)
    parts = (order[end - size : end] for end, size in zip(ends, sizes, strict=True))
    return [Split(split.x[part], split.y[part]) for part in parts]
