"""All-reduce through memory that the workers of one host share.

    slot j of worker i's file   <- part j of worker i's numbers, for every j but i
                 all have come
    slot i of worker i's file   <- the mean of part i, which worker i adds up for all
                 all have come
    part j of worker i's numbers <- slot j of worker j's file

The parts and the order of additions are those of `direct.py`, so all workers get the same bits, and
the bits of `pattern="direct"`. A slot is written by its file's worker alone until all have come,
and from then on by the worker of its part: so nobody needs to wait a third time. Numbers that do
not fit go in several rounds.

Shape suffixes: N workers.
"""

import mmap
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from bagua_algos.communication.connections.mesh import Mesh
from bagua_algos.communication.direct import sum_

FILE_BYTES = 4 << 20
"""Of each worker's file: about a bucket. Fewer rounds wait less, and more memory leaves caches."""
_CACHE_LINE = 64


class SharedMemory:
    """This worker's files and the others', and how they wait for each other.

    Args:
        rank: this worker among those that share memory.
        files: of each worker, all of one size.
        mesh: of the same workers.
    """

    def __init__(self, rank: int, files: Sequence[mmap.mmap], mesh: Mesh) -> None:
        self._rank = rank
        self.mesh = mesh
        num_workers = len(files)
        self._slot_bytes = len(files[0]) // num_workers // _CACHE_LINE * _CACHE_LINE
        assert self._slot_bytes > 0, (len(files[0]), num_workers)
        used = num_workers * self._slot_bytes
        self._slots_NN = [
            torch.frombuffer(file, dtype=torch.uint8, count=used).view(num_workers, -1).unbind()
            for file in files
        ]

    @staticmethod
    def takes(x: Tensor) -> bool:
        """Whether it is for such a tensor: on the CPU, of numbers that can be divided."""
        return x.device.type == "cpu" and (x.is_floating_point() or x.is_complex())

    def all_reduce_(self, x: Tensor, divisor: int = 1) -> None:
        """Replace `x`, contiguous on the CPU, by its sum over all workers / `divisor`; a collective
        call. Raises `RuntimeError`, as `Mesh.meet`.
        """
        flat = x.detach().view(-1)
        most = len(self._slots_NN) * (self._slot_bytes // x.element_size())
        try:
            for some in flat.split(most):
                self._all_reduce_(some, divisor)
        except BaseException as error:
            if not self.mesh.has_failed:  # or others would take the next wait for one of these
                self.mesh.close(f"one before was broken off by {type(error).__name__}")
            raise

    def close(self) -> None:
        """Give the memory back; no operation is under way."""
        self.mesh.close()
        self._slots_NN.clear()

    def _all_reduce_(self, x: Tensor, divisor: int) -> None:
        rank, word = self._rank, (x.numel(), _number_of(x.dtype))
        parts = x.tensor_split(len(self._slots_NN))
        for other, part in enumerate(parts):
            if other != rank:
                self._slot(rank, other, part).copy_(part)
        self.mesh.meet(*word)
        own = parts[rank]
        rows = [
            own if worker == rank else self._slot(worker, rank, own) for worker in range(len(parts))
        ]
        mean = self._slot(rank, rank, own)
        torch.div(sum_(rows), divisor, out=mean)
        own.copy_(mean)
        self.mesh.meet(*word)
        for other, part in enumerate(parts):
            if other != rank:
                part.copy_(self._slot(other, other, part))

    def _slot(self, worker: int, part: int, like: Tensor) -> Tensor:
        """Memory for `like` in a worker's file."""
        return self._slots_NN[worker][part][: like.nbytes].view(like.dtype)


def _number_of(dtype: torch.dtype) -> int:
    return zlib.crc32(str(dtype).encode())
