"""Averages over the workers of one host, through memory that they share: an evaluation takes no
time and no bytes, and so it leaves the network under test alone. There they also see how many steps
each of them has done.

Shape suffixes: w workers held by this process, N workers in all, n elements, c those of a chunk.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.stacked import StackedCommunicator
from host.words import listed

_PHASE = struct.Struct("<q")
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1e-4, 1e-2


class HostMemory:
    """An `Averager` and a `Meeting` whose workers are processes of this host.

    Each puts its row beside the others', which makes the tensor that a simulated run has, and
    changes a chunk of all rows as simulated workers do: the values are theirs, bit for bit.

    Args:
        file: a descriptor that all workers have inherited, of one file in memory, empty at first.
        rank: this worker.
        world_size: N.
        limit_s: how long one worker waits for the others.
    """

    def __init__(self, file: int, *, rank: int, world_size: int, limit_s: float) -> None:
        self.ranks = (rank,)
        self._file = file
        self._stacked = StackedCommunicator(world_size)
        self._limit_s = limit_s
        self._phase = 0
        self._start = -(-2 * world_size * _PHASE.size // mmap.PAGESIZE) * mmap.PAGESIZE
        os.posix_fallocate(file, 0, self._start)
        self._memory = mmap.mmap(file, self._start)

    def all_reduce_mean_(self, x_w: Tensor) -> None:
        """Replace each worker's `x` by the mean over all workers; all get the same bits."""
        self._run(self._stacked.all_reduce_mean_, x_w)

    def broadcast_(self, x_w: Tensor, source: int = 0) -> None:
        """Replace each worker's `x` by the tensor of worker `source`."""
        self._run(lambda x_Nc: self._stacked.broadcast_(x_Nc, source), x_w)

    def come(self, step: int) -> None:
        """This worker has done `step` steps."""
        [rank] = self.ranks
        os.pwrite(self._file, _PHASE.pack(step), self._place_of_steps + rank * _PHASE.size)

    def is_complete(self, step: int) -> bool:
        """Whether every worker has done `step` steps."""
        return not self._below(step, self._place_of_steps)

    @property
    def _place_of_steps(self) -> int:
        """In the file, behind the phases of operations."""
        return self._stacked.world_size * _PHASE.size

    def _run(self, operation: Callable[[Tensor], None], x_w: Tensor) -> None:
        if not x_w.numel():  # as all workers' are
            return
        [rank] = self.ranks
        rows_Nn = self._rows(x_w)
        self._wait_for_all()  # they have read what the last operation left
        rows_Nn[rank].copy_(x_w.flatten())
        self._wait_for_all()
        operation(rows_Nn.tensor_split(len(rows_Nn), dim=1)[rank])
        self._wait_for_all()
        x_w.copy_(rows_Nn[rank].view_as(x_w))

    def _rows(self, x_w: Tensor) -> Tensor:
        """Memory for all workers' `x[w, ...]`."""
        size = self._stacked.world_size * x_w.nbytes
        if len(self._memory) < self._start + size:
            os.posix_fallocate(self._file, 0, self._start + size)
            self._memory = mmap.mmap(self._file, self._start + size)
        rows = torch.frombuffer(
            self._memory,
            dtype=x_w.dtype,
            count=self._stacked.world_size * x_w.numel(),
            offset=self._start,
        )
        return rows.view(self._stacked.world_size, -1)

    def _wait_for_all(self) -> None:
        """Return when every worker has come here as often as this one.

        By system calls, behind which every processor sees what was written before them.
        """
        [rank] = self.ranks
        self._phase += 1
        os.pwrite(self._file, _PHASE.pack(self._phase), rank * _PHASE.size)
        deadline_s, pause_s = time.monotonic() + self._limit_s, _SHORTEST_PAUSE_S
        while late := self._below(self._phase, 0):
            if time.monotonic() > deadline_s:
                raise CommunicationError(
                    f"worker {rank}: not there for an evaluation within {self._limit_s:g} s: "
                    f"worker {listed(map(str, late))}"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _below(self, number: int, place: int) -> list[int]:
        """The workers whose numbers from `place` on are less than `number`."""
        numbers = os.pread(self._file, self._stacked.world_size * _PHASE.size, place)
        return [r for r, (own,) in enumerate(_PHASE.iter_unpack(numbers)) if own < number]
