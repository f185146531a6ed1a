"""The examples of a torch Dataset, made anew whenever they are asked for.

What a Dataset draws while it makes an example, as augmentation does, follows from (seed, epoch,
example): real and simulated workers and a resumed run see the same.

Shapes: w workers held by this process, b examples of each, m examples of a split.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import (
    get_bit_generator,  # pyright: ignore[reportAttributeAccessIssue]
    set_bit_generator,  # pyright: ignore[reportAttributeAccessIssue]
)
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from bagua_algos.worker_axis.inputs import Inputs, each
from experiments.tasks.base import PADDING, Batch, Indices, Split
from host.errors import UserError

LABELS = ("labels", "label")
"""What dictionaries of examples call their labels."""
IGNORED = -100
"""The label that torch and transformers give to a place without one."""
Collate = Callable[[list[Any]], Any]


class DatasetSplit(Split):
    """The examples of a `Dataset`, made anew whenever they are asked for.

    Args:
        dataset: map-style, of pairs (input, label) or dictionaries that have "labels".
        collate: makes a pair or a dictionary of tensors `[b, ...]` of b examples.
        num_classes: of labels that are class numbers; None: they are not, and stay as they are.
        shift_labels: whether the label of a place is the next place's, as for causal models.
        places: of the examples in the Dataset, int64 [m]; None: all of it.
    """

    counts_epochs: ClassVar[bool] = True

    _draws = False
    """Whether an example has drawn a number; until then no generator is seeded for one."""

    def __init__(
        self,
        dataset: Dataset[Any],
        collate: Collate = default_collate,
        *,
        num_classes: int | None = None,
        shift_labels: bool = False,
        places: Indices | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._num_classes = num_classes
        self._shift_labels = shift_labels
        self._places = places

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
        return targets if self._places is None else targets[self._places]

    @property
    def sources(self) -> Indices | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The source of each example, where the Dataset has an attribute `sources`: its numbers or
        names of them.
        """
        sources = getattr(self._dataset, "sources", None)
        if sources is None:
            return None
        return np.asarray(sources) if self._places is None else np.asarray(sources)[self._places]

    def __len__(self) -> int:
        whole: Any = self._dataset
        return len(whole if self._places is None else self._places)

    def place(self, example: int) -> int:
        """Of an example of this split, in the Dataset."""
        return example if self._places is None else int(self._places[example])

    def take(self, places: Indices | slice) -> "DatasetSplit":
        """The examples at `places`, in their order; of a Dataset that is read at any place."""
        assert not self.is_stream, "whose examples come in one order alone"
        own = np.arange(len(self)) if self._places is None else self._places
        part = copy(self)
        part._places = own[places]
        return part

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
        y_b, ignored = self._labels(y_b)
        if self._shift_labels:
            last = torch.full_like(y_b[:, :1], ignored)
            return x_b, torch.cat([y_b[:, 1:], last], 1)
        if isinstance(x_b, Mapping) and _is_copy(x_b.get("input_ids"), y_b, ignored):
            raise UserError(
                f"the labels of {name} are its input_ids, which a model need only copy: give "
                "task.shift_labels=true, with which each place's label is the next place's"
            )
        return x_b, y_b

    def _labels(self, y_b: Tensor) -> tuple[Tensor, int]:
        """Class numbers as int64, and others in float32 at most; and what a place without a label
        has among them.
        """
        is_whole = not (y_b.is_floating_point() or y_b.is_complex())
        if self._num_classes is None:
            return (y_b.long() if is_whole else _narrow(y_b)), IGNORED
        given_b, y_b = y_b, y_b.long()
        if not is_whole and (given_b != y_b).any():
            raise UserError(
                f"{type(self._dataset).__name__} has a label {given_b[given_b != y_b][0].item()}, "
                "and class numbers are whole: number the classes from 0, or give "
                "task.loss=mse_loss or another where labels are no classes"
            )
        is_ignored = y_b == IGNORED
        strangers = y_b[~is_ignored & ((y_b < 0) | (y_b >= self._num_classes))]
        if len(strangers):
            raise UserError(
                f"{type(self._dataset).__name__} has a label {strangers[0].item()}, and its "
                f"{self._num_classes} classes are numbered from 0: number them so, or give "
                f"task.num_classes; a place without a label has {IGNORED}"
            )
        return y_b.masked_fill(is_ignored, PADDING), PADDING

    def _items(self, indices: Indices, seed: int) -> list[Any]:
        """The examples in the order of `indices`."""
        epochs, examples = (own.tolist() for own in np.divmod(indices.ravel(), len(self)))
        with generators_apart():
            if not self._draws:
                _begin(_NOBODY)
                items = [self._dataset[self.place(example)] for example in examples]
                if _drawn() == _first_numbers():
                    return items
                self._draws = True
            places = zip(epochs, examples, strict=True)
            return [self._seeded(seed, *place) for place in places]

    def _seeded(self, seed: int, epoch: int, example: int) -> Any:
        seed_generators((seed, epoch, example))
        return self._dataset[self.place(example)]


@contextmanager
def generators_apart() -> Iterator[None]:
    """After it, the generators of torch, NumPy and Python go on where they were."""
    of_torch, of_python = torch.default_generator.get_state(), random.getstate()
    of_numpy = get_bit_generator()
    set_bit_generator(np.random.MT19937(0) if of_numpy is _APART else _APART)
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)  # no GPU draws for examples
        random.setstate(of_python)
        set_bit_generator(of_numpy)


def seed_generators(key: Sequence[int]) -> None:
    """Have the generators of torch, NumPy and Python begin as `key` says."""
    _begin(int(np.random.SeedSequence(key).generate_state(1)[0]))


def _begin(number: int) -> None:
    torch.default_generator.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


_APART = np.random.MT19937(0)
"""What NumPy draws from in the meantime: to make one takes longer than to make a batch."""
_NOBODY = 0
"""What generators begin with for examples that draw nothing."""


@cache
def _first_numbers() -> tuple[float, ...]:
    """What the generators give at first after `_NOBODY`."""
    _begin(_NOBODY)
    return _drawn()


def _drawn() -> tuple[float, ...]:
    of_torch = torch.rand((), generator=torch.default_generator, dtype=torch.float64, device="cpu")
    return of_torch.item(), np.random.random(), random.random()


def known_targets(dataset: object) -> Indices | None:
    """The class of each example as torchvision's Datasets tell it, int64, or what else their labels
    are; None where they are not told.
    """
    for name in ("targets", "labels"):
        targets = getattr(dataset, name, None)
        if targets is not None:
            return _whole(np.asarray(targets))
    return None


def _whole(targets: np.ndarray) -> np.ndarray:
    """As int64 where all are whole numbers."""
    kind = targets.dtype.kind
    is_whole = kind in "biu" or (kind == "f" and (targets == np.rint(targets)).all())
    return targets.astype(np.int64) if is_whole else targets


def _without_labels(made: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """What is learnt from, and the labels, which have one of the usual names."""
    name = next((name for name in LABELS if name in made), None)
    return {key: made[key] for key in made if key != name}, None if name is None else made[name]


def _narrow(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


def _is_copy(ids_b: Tensor | None, y_b: Tensor, ignored: int) -> bool:
    if ids_b is None or ids_b.shape != y_b.shape:
        return False
    is_label = y_b != ignored
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
