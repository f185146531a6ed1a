"""Pieces of a message that streams take as they become free.

A stream that loses packets holds its equal part up, while the others have nothing left to do.
Pieces are taken by whichever stream is through with its last one. So nobody knows beforehand which
stream brings which piece: each has its number in front. gloo sends data only after a notice that
the receiver is ready, so receives are posted ahead.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, product
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from bagua_algos.communication.stripes import Stripes

AHEAD = 4
"""Receives that are posted on each stream from each peer before a piece of theirs has come."""

_NUMBER_BYTES = 8
_END = -1


@dataclass(frozen=True, kw_only=True)
class Way:
    """How pieces are shared out.

    Args:
        piece_bytes: of each but the last.
        are_dealt: whether stream k of K has pieces k, k + K and so on, and takes none of another's.
        are_kept: whether receives stay posted, so that the next operation's first pieces leave
            without a notice; else each operation posts its own.
    """

    piece_bytes: int
    are_dealt: bool = False
    are_kept: bool = True


class Pieces(Stripes):
    """Stripes whose exchanges and all-to-alls go in pieces; the other operations in equal parts.

    Two threads for each stream and peer wait, one for what is sent and one for what arrives.

    Args:
        stripes: whose groups these use.
        num_workers: of each group.
        way: how pieces are shared out.
        tag: of their messages, of no others on these groups.
    """

    def __init__(self, stripes: Stripes, num_workers: int, way: Way, tag: int) -> None:
        super().__init__(stripes.groups)
        self._way = way
        self._tag = tag
        self._streams = range(len(self.groups))
        self._locks = [Lock() for _ in self._streams]
        self._posted: dict[tuple[int, int], deque[tuple[Tensor, Any]]] = {}
        self._threads = ThreadPoolExecutor(2 * len(self.groups) * max(1, num_workers - 1))

    def send_and_receive(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        """Send a tensor to each worker of `outgoing` and receive one from each of `incoming`; all
        are contiguous. Raises `RuntimeError` where a worker is gone or the groups' limit is over.
        """
        for stream, peer in product(self._streams, incoming):
            posted = self._posted.setdefault((stream, peer), deque())
            while len(posted) < AHEAD:
                posted.append(self._post(stream, peer))
        jobs = [
            self._threads.submit(self._receive, stream, peer, self._cut(y))
            for peer, y in incoming.items()
            for stream in self._streams
        ]
        for peer, x in outgoing.items():
            free = count()  # whose next() is one step: no two threads get the same number
            for stream in self._streams:
                numbers = count(stream, len(self.groups)) if self._way.are_dealt else free
                jobs.append(self._threads.submit(self._send, stream, peer, self._cut(x), numbers))
        for job in jobs:
            job.result()

    def _cut(self, x: Tensor) -> Sequence[Tensor]:
        return x.view(-1).view(torch.uint8).split(self._way.piece_bytes)

    def _send(
        self, stream: int, peer: int, pieces: Sequence[Tensor], numbers: Iterator[int]
    ) -> None:
        while (number := next(numbers)) < len(pieces):
            self._send_one(stream, peer, torch.cat([_word(number), pieces[number]]))
        for _ in range(1 if self._way.are_kept else AHEAD):  # one for each that is left posted
            self._send_one(stream, peer, _word(_END))

    def _send_one(self, stream: int, peer: int, message: Tensor) -> None:
        with self._locks[stream]:
            work = self._group(stream).send([message], peer, self._tag)
        work.wait()

    def _receive(self, stream: int, peer: int, pieces: Sequence[Tensor]) -> None:
        """Put what one stream brings into its place, until word that there is no more."""
        posted = self._posted[stream, peer]
        number = 0
        while number != _END:
            room, work = posted.popleft()
            work.wait()
            number = int(room[:_NUMBER_BYTES].view(torch.int64))
            if number != _END or self._way.are_kept:
                posted.append(self._post(stream, peer))
            if number != _END:
                pieces[number].copy_(room[_NUMBER_BYTES:][: len(pieces[number])])
        while posted and not self._way.are_kept:
            _, work = posted.popleft()
            work.wait()

    def _post(self, stream: int, peer: int) -> tuple[Tensor, Any]:
        room = torch.empty(_NUMBER_BYTES + self._way.piece_bytes, dtype=torch.uint8)
        with self._locks[stream]:
            return room, self._group(stream).recv([room], peer, self._tag)

    def _group(self, stream: int) -> Any:
        group = self.groups[stream]
        assert group is not None, "a duplicate has groups of its own"
        return group


def _word(number: int) -> Tensor:
    return torch.tensor([number]).view(torch.uint8)
