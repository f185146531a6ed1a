"""Iterable Datasets: examples that come in one order, which is that of every epoch.

An example has a place in the stream, so that everything is as with Datasets that are read at any
place: workers share a global batch out by turns, what is drawn follows from (seed, epoch, place),
and a resumed run goes on at its place. Every process that reads goes through the whole stream and
keeps its own examples.
"""

import os
from collections.abc import Iterator
from typing import Any

from experiments.tasks.base import Indices
from experiments.tasks.own.splits import DatasetSplit, generators_apart, seed_generators
from host.errors import UserError


class StreamSplit(DatasetSplit):
    """The examples of an iterable Dataset that tells how many there are. Where it has a `set_epoch`
    that is called before each pass.
    """

    is_stream = True

    _iterator: Iterator[Any] | None = None
    _pass = (-1, -1, -1)
    _next = 0

    def _items(self, indices: Indices, seed: int) -> list[Any]:
        with generators_apart():
            ordered = sorted(set(indices.ravel().tolist()))
            found = {index: self._at(index, seed) for index in ordered}
        return [found[index] for index in indices.ravel().tolist()]

    def _at(self, index: int, seed: int) -> Any:
        epoch, place = divmod(index, len(self))
        # A fork begins anew: an open file would have one offset in both processes.
        if self._pass != (os.getpid(), seed, epoch) or self._next > place:
            self._begin(seed, epoch)
        assert self._iterator is not None
        item = None
        while self._next <= place:
            seed_generators((seed, epoch, self._next))
            item = next(self._iterator, _END)
            if item is _END:
                raise UserError(
                    f"{type(self._dataset).__name__} ends after {self._next} examples, and its "
                    f"length is {len(self)}: give it the right length, and have it share nothing "
                    "out itself"
                )
            self._next += 1
        return item

    def _begin(self, seed: int, epoch: int) -> None:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
        seed_generators((seed, epoch))
        self._iterator = iter(self._dataset)
        self._pass, self._next = (os.getpid(), seed, epoch), 0


_END = object()
