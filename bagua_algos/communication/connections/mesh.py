"""Unix sockets between the workers of one host, by which they wait for each other.

A wait sleeps in the kernel, which hands the processor to a late worker; a worker that has ended
is noticed by its closed socket.
"""

import os
import socket
import struct
import time
import weakref
from collections.abc import Mapping

from bagua_algos.communication.communicator import named_workers

_WORD = struct.Struct("<QQQ")
_TIMEVAL = struct.Struct("@ll")
_LOOKS_EVERY_S = 0.2
"""While one worker is waited for, another may end."""


class Connection(socket.socket):
    """A socket that is closed with the last who holds it."""

    def __del__(self) -> None:
        self.close()

    @classmethod
    def of(cls, other: socket.socket) -> "Connection":
        """Take over an open socket."""
        own = cls(other.family, other.type, fileno=other.detach())
        own.settimeout(None)
        microseconds = round(1e6 * _LOOKS_EVERY_S)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, microseconds))
        return own


class Mesh:
    """This worker among others of its host.

    Args:
        peers: a socket to each of the others, by their numbers among all workers.
        limit_s: how long one may be waited for.
    """

    def __init__(self, peers: Mapping[int, socket.socket], limit_s: float) -> None:
        self._peers = {rank: Connection.of(peer) for rank, peer in sorted(peers.items())}
        self.limit_s = limit_s
        self._count = 0
        self._failure: str | None = None
        self.awaited: tuple[int, ...] = ()
        """Who has not come yet, where this worker is waiting now."""
        _LIVING.add(self)

    def meet(self, size: int, kind: int) -> None:
        """Return when all have come here, each as often as this one, with the same two numbers.

        What was written to shared memory before is seen by all afterwards: a system call lies
        between. Raises `RuntimeError`, now and from then on, where somebody has ended, does not
        come within the limit, or comes with other numbers. A worker that gives up on a living one
        closes its connections, so that nobody waits for it in turn.
        """
        if self._failure is not None:
            raise RuntimeError(f"not tried after: {self._failure}")
        self._count += 1
        try:
            self._meet(_WORD.pack(self._count, size, kind))
        except _Ended as ended:
            self._failure = str(ended)
            raise
        except BaseException as error:
            self.close(str(error) or type(error).__name__)
            raise
        finally:
            self.awaited = ()

    @property
    def has_failed(self) -> bool:
        """Whether it is of no use any longer."""
        return self._failure is not None

    def close(self, why: str = "the connections were closed") -> None:
        """Let the others see that this worker has gone."""
        self._failure = self._failure or why
        for peer in self._peers.values():
            peer.close()

    def _meet(self, word: bytes) -> None:
        for rank, peer in self._peers.items():
            try:
                peer.send(word, socket.MSG_NOSIGNAL)
            except OSError:
                raise self._ended(rank) from None
        deadline_s, missing = None, dict(self._peers)
        for rank, peer in self._peers.items():
            while (heard := _receive(peer)) is None:
                deadline_s = deadline_s or time.monotonic() + self.limit_s
                self._look(missing, late=time.monotonic() > deadline_s)
            if not heard:
                raise self._ended(rank)
            if heard != word:
                raise _Failed(_difference(rank, heard, word))
            del missing[rank]

    def _look(self, missing: Mapping[int, socket.socket], *, late: bool) -> None:
        """Who has not come yet. Raises where one of them has ended, or is late."""
        words = {rank: _next(peer) for rank, peer in missing.items()}
        if b"" in words.values():
            raise self._ended()
        self.awaited = tuple(rank for rank, word in words.items() if word is None)
        if late:
            raise _Failed(f"{named_workers(self.awaited)}: silent for {self.limit_s:g} s")

    def _ended(self, *known: int) -> "_Ended":
        ended = [r for r, peer in self._peers.items() if r in known or _next(peer) == b""]
        has = "has" if len(ended) == 1 else "have"
        return _Ended(f"{named_workers(ended)} {has} ended or closed the connection")


class _Failed(RuntimeError):
    """The mesh is of no use any longer; the message says why."""


class _Ended(_Failed):
    """Others have ended."""


_LIVING: weakref.WeakSet[Mesh] = weakref.WeakSet()


def _receive(peer: socket.socket) -> bytes | None:
    """A word; nothing where the peer has ended, and None where it has not come for a while."""
    try:
        return peer.recv(_WORD.size, socket.MSG_WAITALL)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _next(peer: socket.socket) -> bytes | None:
    """What `_receive` would return now; a part of it."""
    try:
        return peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _difference(rank: int, heard: bytes, own: bytes) -> str:
    if len(heard) < _WORD.size:
        return f"worker {rank} has ended in the middle of a word"
    (count, size, kind), (own_count, own_size, own_kind) = map(_WORD.unpack, (heard, own))
    what = "other numbers" if kind != own_kind else f"{size} numbers"
    return (
        f"worker {rank} averages {what} in its wait {count}, and this worker {own_size} numbers in "
        f"its wait {own_count}: all workers make the same calls in the same order"
    )


def _leave_to_the_parent() -> None:
    """A fork has copied the sockets: were they kept, the parent's end would not be noticed."""
    for mesh in list(_LIVING):
        mesh.close("these connections are of the process that this one was forked from")


os.register_at_fork(after_in_child=_leave_to_the_parent)
