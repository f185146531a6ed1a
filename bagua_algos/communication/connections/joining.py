"""Memory that workers share, where all of them are on one host: made, or why it cannot be.

Each worker makes a file in memory without a name, and listens on a Unix socket whose name belongs
to its network namespace. So workers behind links of their own, as those of other hosts, cannot
reach each other. Files are handed over by the sockets. The kernel frees both with the last process
that has them: nothing is left after any kill, and the size of /dev/shm does not matter.
"""

import mmap
import os
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bagua_algos.communication.connections.mesh import Mesh
from bagua_algos.communication.connections.shared_memory import FILE_BYTES, SharedMemory

LIMIT_S = 30.0
"""For the sockets of workers that have all said that they are there."""

AllSay = Callable[[Any], list[Any]]
"""Tells all workers something, and returns what each of them tells, by rank; a collective call."""

_UCRED = struct.Struct("3i")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/net")


class _Offer(NamedTuple):
    """What a worker tells the others: where it is, where it listens, by what it is known there, and
    what keeps it from sharing memory.
    """

    place: str
    name: str
    secret: bytes
    problem: str


class NotShared(NamedTuple):
    """Why workers do not share memory. Whether it `surprises`: they are on one host."""

    why: str
    surprises: bool


def join(
    rank: int,
    members: tuple[int, ...],
    all_say: AllSay,
    limit_s: float,
    num_bytes: int = FILE_BYTES,
) -> SharedMemory | NotShared:
    """Share `num_bytes` of memory of each worker, or say why not: all workers agree. A collective
    call of those that `all_say` returns words of.

    Args:
        rank: this worker among them.
        members: their numbers among all workers, for errors.
        all_say: among them.
        limit_s: how long one may wait for another in any operation.
        num_bytes: of each worker's file.
    """
    own = _Own(num_bytes)
    found, problem = None, ""
    try:
        offers = [_Offer(*words) for words in all_say(tuple(own.offer))]
        refused = _refusal(offers, members)
        if refused is None:
            try:
                found = own.meet(rank, offers)
            except (OSError, ValueError) as error:
                problem = f"no connection: {error}"
    finally:
        own.close()
    # Those of another part may have more to say: all speak equally often.
    problems = all_say(problem)
    refused = refused or _problems(problems, members)
    if found is None or refused is not None:
        for peer in found.peers.values() if found else ():
            peer.close()
        assert refused is not None, "this worker has told its problem"
        return refused
    mesh = Mesh({members[r]: peer for r, peer in found.peers.items()}, limit_s)
    return SharedMemory(rank, found.files, mesh)


class _Found(NamedTuple):
    peers: dict[int, socket.socket]
    files: list[mmap.mmap]


class _Own:
    """This worker's file, and the socket on which it listens."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._file = -1
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(LIMIT_S)
        place, problem = "", ""
        name = f"relaxlab {secrets.token_hex(16)}"
        try:
            place = f"{_BOOT.read_text().strip()} {os.readlink(_NAMESPACE)}"
            self._file = os.memfd_create("relaxlab")
            os.posix_fallocate(self._file, 0, num_bytes)  # or a page that is not there would kill
            self._listener.bind(f"\0{name}")
            self._listener.listen(socket.SOMAXCONN)
        except (OSError, AttributeError) as error:  # another system has no memfd_create
            problem = f"no memory to share: {error}"
        self.offer = _Offer(place, name, secrets.token_bytes(16), problem)

    def meet(self, rank: int, offers: list[_Offer]) -> _Found:
        """Connect to those before, and wait for those after. Raises `OSError` or `ValueError`."""
        peers: dict[int, socket.socket] = {}
        try:
            for other in range(rank):
                peers[other] = self._call(offers[other], offers[rank])
            while len(peers) < len(offers) - 1:
                peer, other = self._answer(offers)
                if other is not None:
                    peers[other] = peer
            files = [
                self._mapped(self._file) if r == rank else self._received(peers[r])
                for r in range(len(offers))
            ]
        except BaseException:
            for peer in peers.values():
                peer.close()
            raise
        return _Found(peers, files)

    def close(self) -> None:
        """Connections and mapped memory stay."""
        self._listener.close()
        if self._file >= 0:
            os.close(self._file)

    def _call(self, other: _Offer, own: _Offer) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.settimeout(LIMIT_S)
            peer.connect(f"\0{other.name}")
            peer.sendall(own.secret)
            self._hand_over(peer)
        except BaseException:
            peer.close()
            raise
        return peer

    def _answer(self, offers: list[_Offer]) -> tuple[socket.socket, int | None]:
        """A socket to the next who calls, and which worker that is; None for a stranger."""
        peer, _ = self._listener.accept()
        peer.settimeout(LIMIT_S)
        ranks = {offer.secret: rank for rank, offer in enumerate(offers)}
        try:
            other = ranks.get(peer.recv(len(offers[0].secret), socket.MSG_WAITALL))
            if other is None:
                peer.close()
            else:
                self._hand_over(peer)
        except BaseException:
            peer.close()
            raise
        return peer, other

    def _hand_over(self, peer: socket.socket) -> None:
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        if _UCRED.unpack(credentials)[1] != os.geteuid():
            raise ValueError("a worker runs as another user")
        socket.send_fds(peer, [b"m"], [self._file])

    def _received(self, peer: socket.socket) -> mmap.mmap:
        _, files, _, _ = socket.recv_fds(peer, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not files:
            raise ValueError("a worker has closed its connection")
        try:
            return self._mapped(files[0])
        finally:
            os.close(files[0])

    def _mapped(self, file: int) -> mmap.mmap:
        if os.fstat(file).st_size != self._num_bytes:
            raise ValueError("a worker's file has another size")
        return mmap.mmap(file, self._num_bytes)


def _refusal(offers: list[_Offer], members: tuple[int, ...]) -> NotShared | None:
    if len(members) == 1:
        return NotShared("a worker alone has nobody to share memory with", surprises=False)
    places = [place for place in dict.fromkeys(offer.place for offer in offers) if place]
    if len(places) > 1:
        other = members[[offer.place for offer in offers].index(places[1])]
        why = f"workers {members[0]} and {other} are on different hosts or network namespaces"
        return NotShared(why, surprises=False)
    return _problems([offer.problem for offer in offers], members)


def _problems(problems: list[str], members: tuple[int, ...]) -> NotShared | None:
    for rank, problem in zip(members, problems, strict=True):
        if problem:
            return NotShared(f"worker {rank}: {problem}", surprises=True)
    return None
