"""Batches, read where they are needed or by processes that read ahead: `data.loaders=4`.

The processes are those of PyTorch's DataLoader, forked from the one that trains. Which examples a
batch has, and what is drawn while they are made, follows from the request alone: so all bits are
the same with and without processes.
"""

import fcntl
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker as loader_process

from experiments.tasks.base import Batch, Indices, Split
from host.errors import Failure, UserError, first_line
from host.processes import die_with_parent

WORTH_A_PROCESS = 2
"""Batches for each process, which PyTorch's DataLoader reads ahead."""
LIGHT_BYTES = 1 << 20
"""Up to so many a batch comes through a pipe. PyTorch shares the memory of tensors, for which the
two processes have to meet: that takes longer than to copy a light batch.
"""


class Request(NamedTuple):
    """The examples of a batch `[w, b]`, of the first `longest` places of each; None: of all."""

    indices_wb: Indices
    longest: int | None = None

    @classmethod
    def cut(cls, indices_wb: Indices, lengths: Indices | None) -> "Request":
        """Of as many places as the longest of these examples has, by the `lengths` of all; None: of
        all places.
        """
        return cls(indices_wb, None if lengths is None else int(lengths[indices_wb].max()))

    def is_like(self, other: "Request") -> bool:
        """Whether both ask for the same."""
        same = np.array_equal(self.indices_wb, other.indices_wb)
        return same and self.longest == other.longest


@dataclass(frozen=True, kw_only=True)
class Loaders:
    """The processes that read.

    Args:
        number: of them; 0: who needs a batch reads it.
        pins: whether batches come in pinned memory, for a GPU.
        limit_s: the longest wait for one batch.
    """

    number: int
    pins: bool = False
    limit_s: float = 60.0


class Reading:
    """Batches of one split, for one process that trains or evaluates.

    Args:
        split: of the examples.
        seed: of what is drawn while they are made.
        loaders: who reads what is expected.
        on_wait: is told the seconds of `time.perf_counter` from when to when a batch was waited
            for.
    """

    def __init__(
        self,
        split: Split,
        seed: int,
        loaders: Loaders,
        on_wait: Callable[[float, float], None] = lambda start_s, end_s: None,
    ) -> None:
        self._asked = _Asked(split, seed)
        self._loaders = loaders
        self._on_wait = on_wait
        self._expected: deque[Request] = deque()
        self._batches: Any = None
        self.waited_s = 0.0
        """For batches, reading included where no other process reads."""

    def expect(self, requests: Iterable[Request]) -> None:
        """Have processes read these from now on, in this order, each before it is asked for. An
        endless order is read as far ahead as there are processes, twice.
        """
        if not self._loaders.number:
            return
        self.close()
        loader = DataLoader(
            self._asked if self._loaders.pins else _Light(self._asked),
            batch_size=None,
            sampler=_Remembering(requests, self._expected),
            num_workers=self._loaders.number,
            collate_fn=_as_it_is,
            pin_memory=self._loaders.pins,
            timeout=self._loaders.limit_s,
            worker_init_fn=_beginner(os.getpid()),
            multiprocessing_context="fork",
            generator=Generator(),  # else its seed would be drawn from the training's generator
        )
        self._batches = iter(loader)
        _widen(self._batches)

    @property
    def is_ahead(self) -> bool:
        """Whether processes are reading."""
        return self._batches is not None

    def batch(self, request: Request) -> Batch:
        """The examples; what was not expected is read here.

        Raises UserError where an example cannot be made, and Failure where a process dies or is
        silent.
        """
        started_s = time.perf_counter()
        if self._batches is not None and self._expected and request.is_like(self._expected[0]):
            self._expected.popleft()
            batch = self._next(self._batches)
        else:
            batch = self._asked.read(request)
        ended_s = time.perf_counter()
        self.waited_s += ended_s - started_s
        self._on_wait(started_s, ended_s)
        return batch

    def close(self) -> None:
        """End the processes."""
        if self._batches is not None:
            # What its destructor does, which an error that is still looked at would put off.
            self._batches._shutdown_workers()
        self._batches = None
        self._expected.clear()

    def _next(self, batches: Iterator[Any]) -> Batch:
        try:
            batch = next(batches)
        except RuntimeError as error:  # of the DataLoader: nothing of the split gets here
            said = first_line(error).rstrip(".")
            raise Failure(
                f"a process that reads examples is gone or was silent for {self._loaders.limit_s:g}"
                f" s ({said}): take fewer of data.loaders, or a longer cluster.timeout_s"
            ) from error
        if isinstance(batch, Exception):
            raise batch
        x_wb, y_wb = batch
        return _each(torch.as_tensor, x_wb), torch.as_tensor(y_wb)


def read_all(
    split: Split, seed: int, loaders: Loaders, requests: Iterable[Request]
) -> Iterator[Batch]:
    """The batches of an evaluation, in order; raises as `Reading.batch`. Few of them are not worth
    starting processes.
    """
    reading = Reading(split, seed, loaders)
    requests = list(requests)
    try:
        if len(requests) > WORTH_A_PROCESS * loaders.number:
            reading.expect(requests)
        for request in requests:
            yield reading.batch(request)
    finally:
        reading.close()


class _Asked(Dataset[Any]):
    """A split, as the DataLoader reads it: an "index" is a request."""

    def __init__(self, split: Split, seed: int) -> None:
        self._split, self._seed = split, seed

    def read(self, request: Request) -> Batch:
        return self._split.batch(*request, seed=self._seed)

    def __getitem__(self, request: Request) -> Batch | Exception:
        """What fails is an answer, too: the DataLoader would tell of it in many lines."""
        try:
            return self.read(request)
        except UserError as error:
            return error
        except Exception as error:
            traceback.print_exc()
            said = next(iter(str(error).strip().splitlines()), "")
            return Failure(f"an example cannot be made ({type(error).__name__}: {said})")


class _Light(Dataset[Any]):
    """The same, with light batches as NumPy's arrays."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked

    def __getitem__(self, request: Request) -> Any:
        batch = self._asked[request]
        if isinstance(batch, Exception):
            return batch
        x_wb, y_wb = batch
        tensors = [*(x_wb.values() if isinstance(x_wb, Mapping) else [x_wb]), y_wb]
        is_light = sum(x.nbytes for x in tensors) <= LIGHT_BYTES
        if not is_light or any(x.dtype is torch.bfloat16 for x in tensors):  # NumPy has none
            return batch
        return _each(Tensor.numpy, x_wb), y_wb.numpy()


class _Remembering:
    """Notes which requests have gone to processes."""

    def __init__(self, requests: Iterable[Request], asked: deque[Request]) -> None:
        self._requests, self._asked = requests, asked

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests:
            self._asked.append(request)
            yield request


def _beginner(parent_pid: int) -> Callable[[int], None]:
    """What a process does first: it dies with the one that trains, however that ends."""

    def begin(number: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the launcher answers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent_pid)
        # An iterable Dataset that shares itself out over these processes would lose examples here,
        # where each of them has the whole of it.
        loader_process._worker_info = None

    return begin


def _widen(batches: Any) -> None:
    """Have the pipe hold a whole light batch: else who needs it waits until its sender runs."""
    pipe: int = batches._worker_result_queue._writer.fileno()
    with suppress(OSError):  # a host may allow less
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, LIGHT_BYTES)


def _each(function: Callable[[Any], Any], x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: function(part) for name, part in x.items()}
    return function(x)


def _as_it_is(batch: Any) -> Any:
    return batch
