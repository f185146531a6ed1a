"""Any torch Dataset of pairs (input, label), or of dictionaries with labels: `task=dataset`.

    task:
      train: {_target_: my_module.MyDataset, part: train}
      validation: {_target_: my_module.MyDataset, part: validation}

Examples are read where a batch is made, one after the other, so that the data may be larger than
memory. What a Dataset draws while it makes an example, as augmentation does, follows from (seed,
epoch, example): real and simulated workers and a resumed run see the same.

Shapes: w workers held by this process, b examples of each, m examples of a split.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from bagua_algos.worker_axis.inputs import Inputs, each
from experiments.tasks.base import (
    PADDING,
    Batch,
    Classification,
    Indices,
    Model,
    Ratio,
    Split,
    TaskData,
)
from experiments.tasks.own.word_errors import Decode, ratio_of
from experiments.tasks.target import WORD_ERROR_RATE
from host.errors import UserError

CROSS_ENTROPY = "cross_entropy"
LABELS = ("labels", "label")
"""What dictionaries of examples call their labels."""
IGNORED = -100
"""The label that torch and transformers give to a place without one."""
Collate = Callable[[list[Any]], Any]
Loss = Callable[[Tensor, Tensor], Tensor]


class DatasetSplit(Split):
    """The examples of a `Dataset`, made anew whenever they are asked for.

    Args:
        dataset: map-style, of pairs (input, label) or dictionaries that have "labels".
        collate: makes a pair or a dictionary of tensors `[b, ...]` of b examples.
        shift_labels: whether the label of a place is the next place's, as for causal models.
    """

    counts_epochs: ClassVar[bool] = True

    def __init__(
        self,
        dataset: Dataset[Any],
        collate: Collate = default_collate,
        *,
        shift_labels: bool = False,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._shift_labels = shift_labels

    @property
    def dataset(self) -> Dataset[Any]:
        """That which was given."""
        return self._dataset

    @property
    def y(self) -> Indices:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The class of each example, which a Dataset names without making it: int64 [m].

        Raises UserError where it has no `targets`.
        """
        targets = known_targets(self._dataset)
        if targets is None:
            raise UserError(
                f"{type(self._dataset).__name__} does not name its examples' classes: give it an "
                "attribute `targets`, a list of class numbers, or choose data.partition=iid"
            )
        return targets

    @property
    def sources(self) -> Indices | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The source of each example, where the Dataset has an attribute `sources`."""
        sources = getattr(self._dataset, "sources", None)
        return None if sources is None else np.asarray(sources, np.int64)

    def __len__(self) -> int:
        return len(self._dataset)  # pyright: ignore[reportArgumentType]

    def batch(self, indices_wb: Indices, longest: int | None = None, seed: int = 0) -> Batch:
        """The examples, of which `indices_wb` counts on from epoch to epoch."""
        assert longest is None, "the plan refuses to cut these"
        x_b, y_b = self._parted(self._collate(self._items(indices_wb, seed)))
        shape = indices_wb.shape
        return each(lambda x: _narrow(x).unflatten(0, shape), x_b), y_b.unflatten(0, shape)

    def _parted(self, made: Any) -> tuple[Inputs, Tensor]:
        """Inputs and labels `[b, ...]` of what was collated."""
        name = type(self._dataset).__name__
        pair = _without_labels(made) if isinstance(made, Mapping) else made
        if not _is_pair(pair):
            raise UserError(
                f"the examples of {name} make {_described(made)}, and a task needs a pair "
                "(inputs, labels) of tensors, or a dictionary of tensors with labels: give "
                "task.collate, a function that makes one of a list of examples"
            )
        x_b, y_b = pair
        y_b = _narrow(y_b)
        if not y_b.is_floating_point():
            y_b = y_b.where(y_b != IGNORED, PADDING)
        if self._shift_labels:
            last = torch.full_like(y_b[:, :1], PADDING)
            return x_b, torch.cat([y_b[:, 1:], last], 1)
        if isinstance(x_b, Mapping) and _is_copy(x_b.get("input_ids"), y_b):
            raise UserError(
                f"the labels of {name} are its input_ids, which a model need only copy: give "
                "task.shift_labels=true, with which each place's label is the next place's"
            )
        return x_b, y_b

    def _items(self, indices: Indices, seed: int) -> list[Any]:
        """The examples in the order of `indices`."""
        items = []
        with generators_apart():
            for index in indices.ravel().tolist():
                epoch, example = divmod(index, len(self))
                seed_generators((seed, epoch, example))
                items.append(self._dataset[example])
        return items


@contextmanager
def generators_apart() -> Iterator[None]:
    """After it, the generators of torch, NumPy and Python go on where they were."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):  # no GPU draws for examples
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def seed_generators(key: Sequence[int]) -> None:
    """Have the generators of torch, NumPy and Python begin as `key` says."""
    number = int(np.random.SeedSequence(key).generate_state(1)[0])
    torch.default_generator.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


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
            found = self.num_classes or _num_classes(self.train)
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
        shift = self.shift_labels
        return TaskData(*(split_of(part, collate, shift_labels=shift) for part in parts.values()))

    def inputs(self, x: Any) -> Inputs:
        """As the Dataset makes them."""
        return x

    def ratio(self, metric: str, split: Split) -> Ratio | None:
        """The word error rate, by `decode`."""
        if metric != WORD_ERROR_RATE:
            return None
        assert self.decode is not None, "the plan has seen to it"
        return ratio_of(self.decode)

    def lengths(self, split: Split) -> np.ndarray:
        """One place an example."""
        return np.ones(len(split), np.int64)

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


def split_of(dataset: Dataset[Any], collate: Collate, *, shift_labels: bool) -> DatasetSplit:
    """A Dataset that is read at any place, or else in its order."""
    from experiments.tasks.own.stream import StreamSplit

    kind = DatasetSplit if is_map_style(dataset) else StreamSplit
    return kind(dataset, collate, shift_labels=shift_labels)


def is_map_style(dataset: object) -> bool:
    """Whether examples can be read at any place; torch's iterable Datasets raise there."""
    return hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)


def known_targets(dataset: object) -> Indices | None:
    """The class of each example as torchvision's Datasets tell it; None where it is not told."""
    for name in ("targets", "labels"):
        targets = getattr(dataset, name, None)
        if targets is not None:
            return np.asarray(targets).astype(np.int64)
    return None


def _num_classes(dataset: object) -> int:
    classes, targets = getattr(dataset, "classes", None), known_targets(dataset)
    if classes is None and targets is None:
        raise UserError(
            f"{type(dataset).__name__} does not tell how many classes there are: give "
            "task.num_classes, or task.loss=mse_loss or another where labels are no classes"
        )
    return int(targets.max()) + 1 if classes is None and targets is not None else len(classes or ())


def _without_labels(made: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """What is learnt from, and the labels, which have one of the usual names."""
    name = next((name for name in LABELS if name in made), None)
    return {key: made[key] for key in made if key != name}, None if name is None else made[name]


def _narrow(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


def _is_copy(ids_b: Tensor | None, y_b: Tensor) -> bool:
    if ids_b is None or ids_b.shape != y_b.shape:
        return False
    is_label = y_b != PADDING
    return bool(is_label.any() and (ids_b == y_b)[is_label].all())


def _is_pair(pair: object) -> bool:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], Tensor):
        return False
    parts = pair[0].values() if isinstance(pair[0], Mapping) else [pair[0]]
    return bool(parts) and all(isinstance(part, Tensor) for part in parts)


def _described(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(str, value))}"
    kinds = [type(part).__name__ for part in value] if isinstance(value, tuple | list) else []
    return f"({', '.join(kinds)})" if kinds else f"a {type(value).__name__}"
