"""What a task is, and what all tasks share whose labels are classes.

An example is a row of one array, whatever it is made of: texts and recordings of unequal length are
padded with zeros to one length, and what is padding can be told from the row itself.

Shapes: w workers held by this process, b examples of each, c classes, m examples of a split; [...]
is nothing where an example has one label, and its places where it has one at each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bagua_algos.worker_axis.inputs import Inputs
from experiments.tasks.target import ACCURACY
from host.errors import UserError

Indices = NDArray[np.int64]
"""Places of examples in a split."""

Model = Callable[[Inputs], Tensor]
"""Of all workers held by this process: `[w, b, ...]` to float32 `[w, b, ...]`, in the precision of
the run.
"""

Batch = tuple[Inputs, Tensor]
"""The model's inputs, one tensor `[w, b, ...]` or several with names, and the labels `[w, b, ...]`.
"""

Ratio = Callable[[Tensor, Tensor, Indices], Tensor]
"""Of outputs, labels, and the examples' places in the split `[w, b]`, -1 where a row is padding: of
each worker the top and the bottom of a fraction, which are summed up, float64 `[w, 2]`.
"""

PADDING = -1
"""The label of a row that only fills up a batch: never correct, and without a loss."""


@dataclass(frozen=True)
class Split:
    """Examples as they are stored: writable arrays x [m, ...] and labels y int64 [m, ...], and the
    source of each, such as its speaker or file, from 0 on: int64 [m]; None: the task names none.
    """

    counts_epochs: ClassVar[bool] = False
    """Whether training's indices go on from epoch to epoch: by `len` of the split in each."""

    is_stream: ClassVar[bool] = False
    """Whether examples come in one order alone."""

    x: np.ndarray
    y: np.ndarray
    sources: Indices | None = None

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, indices_wb: Indices, longest: int | None = None, seed: int = 0) -> Batch:
        """The examples as they are stored, and their labels; of the first `longest` places of each,
        None: of all. `seed` is of what is drawn, which here is nothing.
        """
        y = self.y[:, :longest] if self.y.ndim > 1 else self.y
        x_wb, y_wb = (torch.from_numpy(part[indices_wb]) for part in (self.x[:, :longest], y))
        return x_wb, y_wb

    def take(self, places: Indices | slice) -> "Split":
        """The examples at `places`, in their order."""
        sources = None if self.sources is None else self.sources[places]
        return Split(self.x[places], self.y[places], sources)


@dataclass(frozen=True)
class TaskData:
    """Disjoint splits: fit on train, stop and tune on validation, report test."""

    train: Split
    validation: Split
    test: Split


class Task(Protocol):
    """Data, loss and metric of one training problem."""

    @property
    def num_classes(self) -> int | None:
        """The number of outputs c that a model of this task has; None: labels are no classes, and
        `loss` is the only metric.
        """
        ...

    @property
    def metric(self) -> str:
        """By which runs are compared, where no target says it: see `experiments.tasks.target`."""
        ...

    labels_are_characters: ClassVar[bool]
    """Whether labels are characters or bytes, so that the loss is reported in bits of one, too."""

    @property
    def target_accuracy(self) -> float | None:
        """The validation accuracy, in (0, 1], at which the clock of time to accuracy stops; None:
        at none.
        """
        ...

    def load(self) -> TaskData:
        """Reads the data without torch's threads, so that it may run before a process forks.

        Raises UserError where the data is missing or corrupt.
        """
        ...

    def inputs(self, x: Any) -> Inputs:
        """Stored examples, behind any leading dimensions, as the model takes them."""
        ...

    def lengths(self, split: Split) -> np.ndarray:
        """Of how many places each example is, int64 [m]: padding fills the others up to x.shape[1],
        and changes no model's outputs.
        """
        ...

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """The mean loss of each worker's batch [w], which training descends; workers do not mix.
        `model` may be called any number of times.
        """
        ...

    def cross_entropy(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """The mean loss of each worker's labels [w], in nats; of classes alone."""
        ...

    def num_correct(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
        """How many labels each worker gets right [w]."""
        ...

    def ratio(self, metric: str, split: Split) -> Ratio | None:
        """The task's own idea of a metric on `split`; None: what the metric is for all tasks."""
        ...


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The loss and the metric of a `Task`, whose examples are equally long unless it says
    otherwise: a subclass adds `load`, `inputs` and `num_classes`.

    Raises ValueError if the target is outside (0, 1].
    """

    labels_are_characters: ClassVar[bool] = False
    metric: ClassVar[str] = ACCURACY

    target_accuracy: float | None

    def __post_init__(self) -> None:
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise ValueError(
                f"target_accuracy is a fraction in (0, 1], but got {self.target_accuracy}."
            )

    @property
    def averages_labels(self) -> bool:
        """Whether the loss is the mean over labels, and no other one of a subclass."""
        return type(self).loss is Classification.loss

    def lengths(self, split: Split) -> np.ndarray:
        """All places of all examples; of a Dataset, which does not tell them, one an example."""
        if split.counts_epochs:
            return np.ones(len(split), np.int64)
        return np.full(len(split), split.x.shape[1])

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """The cross entropy of what the model makes of the inputs [w], in nats."""
        inputs_wb, y_wb = batch
        return self.cross_entropy(model(inputs_wb), y_wb)

    def cross_entropy(self, outputs_wbc: Tensor, y_wb: Tensor) -> Tensor:
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

    def ratio(self, metric: str, split: Split) -> Ratio | None:
        """None."""
        return None


HELD_OUT = 11
"""One in so many training examples is held out for validation, and one for test, when settings are
tuned."""


def load_data(task: Task, *, for_tuning: bool) -> TaskData:
    """The task's examples, by `tuning_data` where asked. Raises as `Task.load`, that, and
    `check_data`.
    """
    data = task.load()
    check_data(data, type(task).__name__, task.num_classes)
    return tuning_data(data) if for_tuning else data


def check_data(data: Any, task: str, num_classes: int | None) -> None:
    """Raise `UserError` unless these are splits with examples, and those that are arrays fit each
    other. What a Dataset makes of its examples shows when they are read.
    """
    if not isinstance(data, TaskData):
        raise UserError(
            f"{task}.load() returns a {type(data).__name__}: return a TaskData of three splits"
        )
    for name, split in vars(data).items():
        where = f"the split {name} of {task}"
        if not isinstance(split, Split):
            raise UserError(f"{where} is a {type(split).__name__}: give a Split")
        if not len(split):
            raise UserError(f"{where} has no example: give it some")
        if type(split) is not Split:
            continue
        _check_arrays(split, where, num_classes, may_hide_labels=name == "test")
        like = data.train
        if type(like) is Split and split.x.shape[1:] != like.x.shape[1:]:
            raise UserError(
                f"examples of {where} are {list(split.x.shape[1:])}, and those of train "
                f"{list(like.x.shape[1:])}: give all splits examples of one shape"
            )


def _check_arrays(
    split: Split, where: str, num_classes: int | None, *, may_hide_labels: bool
) -> None:
    x, y = split.x, split.y
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        kinds = f"a {type(x).__name__} and a {type(y).__name__}"
        raise UserError(f"{where} has {kinds} for x and y: give NumPy arrays")
    if len(x) != len(y):
        raise UserError(f"{where} has {len(x)} examples and {len(y)} labels: give as many of both")
    if num_classes is None:
        return
    if y.dtype != np.int64:
        raise UserError(f"labels of {where} are {y.dtype}: give class numbers as int64")
    known = y[y != PADDING]
    if not known.size:
        if may_hide_labels:  # as those of benchmarks do
            return
        raise UserError(f"{where} has no label, all are {PADDING}: give some examples one")
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= num_classes:
        raise UserError(
            f"{where} has a label {high if high >= num_classes else low}, and the task has "
            f"{num_classes} classes: give labels from 0 to {num_classes - 1}"
        )


def tuning_data(data: TaskData) -> TaskData:
    """Splits of `data.train` alone, for tuning settings that `data.validation` and `data.test` are
    to score: the same ones for all runs, whatever their seeds.

    Raises `UserError` for a split whose examples come in one order alone.
    """
    if data.train.is_stream:
        raise UserError(
            "data.for_tuning=true takes examples out of the training set, which this task reads as "
            "a stream: leave data.for_tuning=false"
        )
    num_held_out = len(data.train) // HELD_OUT
    if not num_held_out:
        raise UserError(
            f"data.for_tuning=true holds out one in {HELD_OUT} of {len(data.train)} training "
            "examples: take a task with more"
        )
    sizes = (len(data.train) - 2 * num_held_out, num_held_out, num_held_out)
    return TaskData(*shuffled(data.train, sizes=sizes, seed=0))


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
    return [split.take(part) for part in parts]


def shuffled(split: Split, *, sizes: tuple[int, ...], seed: int) -> list[Split]:
    """Disjoint random parts of `split`; part i has `sizes[i]` examples."""
    assert sum(sizes) <= len(split)
    order = np.random.default_rng(seed).permutation(len(split))
    ends = np.cumsum(sizes)
    parts = (order[end - size : end] for end, size in zip(ends, sizes, strict=True))
    return [split.take(part) for part in parts]
