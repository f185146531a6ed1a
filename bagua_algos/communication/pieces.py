"""Pieces of a large message, which streams take as they become free.

A stream that loses packets holds its equal part up, while the others have nothing left to do. Here
a stream that is through with its pieces takes the next ones. So nobody knows beforehand which
stream brings which piece: each has its number in front, and a word without a piece ends a stream.

gloo sends data only after a notice that the receiver is ready. So `AHEAD` receives are posted on
each stream from each worker before any piece has come. They stay posted from one operation to the
next, in which the first pieces then leave at once. Without that, each operation ends with notices
and words alone, and where the last packet of these is lost, TCP waits for 200 ms or more.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bagua_algos.communication.stripes import Group, Stripes, naming
from bagua_algos.communication.threads.job_thread import JobThread

PIECE_BYTES = 32_000
"""Of each piece but a message's last. The messages of pieces have this number for their tag."""

SMALLEST_BYTES = 200_000
"""Of a message in pieces: smaller ones are not faster (docs/streams.md)."""

AHEAD = 4
"""Receives that are posted on each stream from each worker."""

_NUMBER_BYTES = 8
_END = -1

_POSTED: "WeakKeyDictionary[Any, dict[tuple[int, int], deque[_Arrival]]]" = WeakKeyDictionary()
"""Of each group, by the other worker and the size of pieces; for its next user."""


class Pieces(Stripes):
    """Stripes whose large messages between two workers go in pieces, all else in equal parts.

    Args:
        groups: of the same workers in the same order.
        piece_bytes: of each piece but a message's last.
        smallest_bytes: of a message in pieces.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        piece_bytes: int = PIECE_BYTES,
        smallest_bytes: int = SMALLEST_BYTES,
    ) -> None:
        super().__init__(groups)
        self._smallest_bytes = smallest_bytes
        self._piece_bytes = piece_bytes
        self._streams = [_Stream(group, piece_bytes) for group in groups]
        self._failure: str | None = None

    def close(self) -> None:
        """End the threads, two a stream, which began with the first message in pieces."""
        for stream in self._streams:
            stream.close()

    def send_and_receive(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        """As `Stripes.send_and_receive`, whose messages are whole before the first piece leaves.
        After an error, which names the stream, no message goes in pieces any longer.
        """
        small_out, large_out = self._by_size(outgoing)
        small_in, large_in = self._by_size(incoming)
        super().send_and_receive(small_out, small_in)
        if not large_out and not large_in:
            return
        if self._failure is not None:
            raise RuntimeError(f"not tried after: {self._failure}")
        try:
            self._move(large_out, large_in)
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise

    def _by_size(self, messages: dict[int, Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Small and large ones: sender and receiver of a message know its size."""
        small, large = {}, {}
        for peer, x in messages.items():
            (large if x.nbytes >= self._smallest_bytes else small)[peer] = x
        return small, large

    def _move(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        going = {peer: self._cut(x) for peer, x in outgoing.items()}
        coming = {peer: self._cut(y) for peer, y in incoming.items()}
        for stream in self._streams:
            stream.post(coming)
        came: dict[int, list[int]] = {peer: [] for peer in coming}
        jobs = [stream.receive(coming, came) for stream in self._streams if coming]
        free = {peer: count() for peer in going}  # next() is one step: no number is taken twice
        for turn, stream in enumerate(self._streams if going else ()):
            jobs.append(stream.send(going, free, turn))
        for at, job in enumerate(jobs):
            with naming(1 + at % len(self._streams), len(self._streams)):
                job.result()
        for peer, pieces in coming.items():
            if sorted(came[peer]) != list(range(len(pieces))):
                raise RuntimeError(
                    f"of {len(pieces)} pieces {len(came[peer])} came from one worker"
                )

    def _cut(self, message: Tensor) -> Sequence[Tensor]:
        return message.detach().view(-1).view(torch.uint8).split(self._piece_bytes)


class _Arrival(NamedTuple):
    """A receive that is posted."""

    room: Tensor
    work: Any

    def wait(self) -> tuple[int, Tensor]:
        """The number of the piece that has come, and the piece."""
        self.work.wait()
        return int(self.room[:_NUMBER_BYTES].view(torch.int64)), self.room[_NUMBER_BYTES:]


class _Stream:
    """One of the groups, and what sends and receives over it, each in a thread of its own."""

    def __init__(self, group: Group, piece_bytes: int) -> None:
        assert group is not None, "a duplicate has groups of its own"
        self._group: Any = group
        self._piece_bytes = piece_bytes
        self._lock = Lock()
        self._threads: dict[str, JobThread] = {}

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
        self._threads.clear()

    def post(self, peers: Iterable[int]) -> None:
        """Have `AHEAD` receives from each."""
        for peer in peers:
            arrivals = self._arrivals(peer)
            while len(arrivals) < AHEAD:
                arrivals.append(self._begin_to_receive(peer))

    def send(
        self, pieces: dict[int, Sequence[Tensor]], free: Mapping[int, Iterator[int]], turn: int
    ) -> Future[None]:
        """Take pieces that nobody has taken, one to each peer at a time, until none is left."""
        peers = list(pieces)
        turn %= len(peers)
        in_turn = {peer: pieces[peer] for peer in (*peers[turn:], *peers[:turn])}
        return self._in_thread("send", lambda: self._send(in_turn, free))

    def receive(
        self, pieces: dict[int, Sequence[Tensor]], came: dict[int, list[int]]
    ) -> Future[None]:
        """Put the pieces that come into their places, and note their numbers in `came`, until each
        peer's word that this stream has no more.
        """
        return self._in_thread("receive", lambda: self._receive(pieces, came))

    def _send(self, pieces: dict[int, Sequence[Tensor]], free: Mapping[int, Iterator[int]]) -> None:
        left = list(pieces)
        while left:
            works = []
            for peer in tuple(left):
                if (number := next(free[peer])) < len(pieces[peer]):
                    message = torch.cat([_word(number), pieces[peer][number]])
                else:
                    message = _word(_END)
                    left.remove(peer)
                works.append(self._begin_to_send(peer, message))
            for work in works:
                work.wait()

    def _receive(self, pieces: dict[int, Sequence[Tensor]], came: dict[int, list[int]]) -> None:
        left = list(pieces)
        while left:
            for peer in tuple(left):
                arrivals = self._arrivals(peer)
                number, piece = arrivals.popleft().wait()
                arrivals.append(self._begin_to_receive(peer))
                if number == _END:
                    left.remove(peer)
                else:
                    pieces[peer][number].copy_(piece[: len(pieces[peer][number])])
                    came[peer].append(number)

    def _begin_to_send(self, peer: int, message: Tensor) -> Any:
        with self._lock:
            return self._group.send([message], peer, self._piece_bytes)

    def _begin_to_receive(self, peer: int) -> _Arrival:
        room = torch.empty(_NUMBER_BYTES + self._piece_bytes, dtype=torch.uint8, device="cpu")
        with self._lock:
            return _Arrival(room, self._group.recv([room], peer, self._piece_bytes))

    def _arrivals(self, peer: int) -> deque[_Arrival]:
        return _POSTED.setdefault(self._group, {}).setdefault((peer, self._piece_bytes), deque())

    def _in_thread(self, name: str, job: Callable[[], None]) -> Future[None]:
        if name not in self._threads:
            self._threads[name] = JobThread()
        return self._threads[name].submit(job)


def _word(number: int) -> Tensor:
    return torch.tensor([number], device="cpu").view(torch.uint8)
