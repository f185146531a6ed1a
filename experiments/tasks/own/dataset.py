"""Any torch Dataset of pairs (input, label), or of dictionaries with labels: `task=dataset`.

    task:
      train: {_target_: my_module.MyDataset, part: train}
      validation: {_target_: my_module.MyDataset, part: validation}

Examples are read where a batch is made, one after the other, so that the data may be larger than
memory.

Shapes: w workers held by this process, b examples of each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from bagua_algos.worker_axis.inputs import Inputs
from experiments.tasks.base import Batch, Classification, Model, Ratio, Split, TaskData
from experiments.tasks.own.splits import Collate, DatasetSplit, known_targets
from experiments.tasks.own.stream import StreamSplit
from experiments.tasks.own.word_errors import Decode, ratio_of
from experiments.tasks.target import WORD_ERROR_RATE
from host.errors import UserError

CROSS_ENTROPY = "cross_entropy"
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class DatasetTask(Classification):
    """Examples of Datasets, and a loss: of classes by default.

    Args:
        train, validation, test: map-style Datasets of pairs (input, label), or of dictionaries of
            what a model takes by name, with "labels"; test None: validation.
        loss: "cross_entropy" of class numbers; another function of torch.nn.functional, such as
            "mse_loss"; or a callable. It takes one worker's outputs `[b, ...]` and labels
            `[b, ...]` and returns their mean.
        collate: makes tensors of a list of examples; None: PyTorch's own.
        shift_labels: whether the label of a place is the next place's, as transformers' causal
            models have it; the last place then has none.
        decode: makes the text of a list of class numbers, for the word error rate.
        metric: by which runs are compared; None: accuracy, or loss where labels are no classes.
        num_classes: outputs of the model; None: as many as `classes` or `targets` of `train` tell.

    Raises:
        UserError: a loss that there is not, or classes that are not known.
    """

    train: Dataset[Any]
    validation: Dataset[Any]
    test: Dataset[Any] | None = None
    loss_function: Loss | str = field(default=CROSS_ENTROPY)
    collate: Collate | None = None
    shift_labels: bool = False
    decode: Decode | None = None
    metric: str | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    num_classes: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    target_accuracy: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_classification:
            found = self.num_classes
            if found is None:
                found = _num_classes(self.train)
            if not isinstance(found, int) or found < 1:
                raise UserError(
                    f"task.num_classes={found}: give a whole number from 1 up, or leave it out to "
                    "take that of the Dataset"
                )
            object.__setattr__(self, "num_classes", found)
        elif isinstance(self.loss_function, str) and not hasattr(F, self.loss_function):
            raise UserError(
                f"torch.nn.functional has no {self.loss_function}: give task.loss=cross_entropy, "
                "mse_loss or another of its losses, or task.loss._target_=..."
            )
        else:
            object.__setattr__(self, "num_classes", None)
        if self.metric is None:
            object.__setattr__(self, "metric", "accuracy" if self.is_classification else "loss")

    @property
    def is_classification(self) -> bool:
        """Whether labels are class numbers."""
        return self.loss_function == CROSS_ENTROPY

    @property
    def averages_labels(self) -> bool:
        """Not where `loss` is a function that is given, or a method of a subclass."""
        return self.is_classification and type(self).loss is DatasetTask.loss

    def load(self) -> TaskData:
        """Reads no example yet. Raises UserError for a split without one."""
        collate = self.collate or default_collate
        parts = {"train": self.train, "validation": self.validation}
        parts["test"] = self.validation if self.test is None else self.test
        for name, dataset in parts.items():
            if not hasattr(dataset, "__len__"):
                raise UserError(
                    f"task.{name} is a {type(dataset).__name__}, which does not tell how many "
                    "examples it has: give it a __len__"
                )
            if not len(dataset):  # pyright: ignore[reportArgumentType]
                raise UserError(f"task.{name} has no example: give another Dataset")
        fields = {"num_classes": self.num_classes, "shift_labels": self.shift_labels}
        return TaskData(*(split_of(part, collate, **fields) for part in parts.values()))

    def inputs(self, x: Any) -> Inputs:
        """As the Dataset makes them."""
        return x

    def ratio(self, metric: str, split: Split) -> Ratio | None:
        """The word error rate, by `decode`."""
        if metric != WORD_ERROR_RATE:
            return None
        assert self.decode is not None, "the plan has seen to it"
        return ratio_of(self.decode)

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """The mean of each worker's examples [w]."""
        if self.is_classification:
            return super().loss(model, batch)
        x_wb, y_wb = batch
        pairs = zip(model(x_wb), y_wb, strict=True)
        return torch.stack([self._function(outputs_b, y_b) for outputs_b, y_b in pairs])

    @property
    def _function(self) -> Loss:
        return (
            getattr(F, self.loss_function)
            if isinstance(self.loss_function, str)
            else (self.loss_function)
        )


def dataset_task(*, loss: Loss | str = CROSS_ENTROPY, **fields: Any) -> DatasetTask:
    """A `DatasetTask`, by the keys of `conf/task/dataset.yaml`. Raises as that does."""
    return DatasetTask(loss_function=loss, **fields)


def split_of(dataset: Dataset[Any], collate: Collate, **fields: Any) -> DatasetSplit:
    """A Dataset that is read at any place, or else in its order; `fields` as `DatasetSplit`'s."""
    kind = DatasetSplit if is_map_style(dataset) else StreamSplit
    return kind(dataset, collate, **fields)


def is_map_style(dataset: object) -> bool:
    """Whether examples can be read at any place; torch's iterable Datasets raise there."""
    return hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)


def _num_classes(dataset: object) -> int:
    classes = getattr(dataset, "classes", None)
    if classes is not None:
        return len(classes)
    targets = known_targets(dataset)
    if targets is None or targets.dtype.kind not in "iuf":
        raise UserError(
            f"{type(dataset).__name__} does not tell how many classes there are: give "
            "task.num_classes, or task.loss=mse_loss or another where labels are no classes"
        )
    return int(targets.max()) + 1
