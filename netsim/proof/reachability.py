"""The workers that a worker can still reach: names the cause after a collective has failed."""

import errno
import select
import socket
import time
from collections.abc import Sequence

CLOSED_PORT = 9
"""Discard: nobody listens there, and a host that is reached says so at once."""


def unreachable(rank: int, addresses: Sequence[str], *, limit_s: float = 2) -> list[int]:
    """The ranks of the workers from whose network stack no answer comes within `limit_s`.

    A worker whose process is stopped or busy is reached: the kernel answers for it. One whose link
    is down, or whose namespace is gone, is not.
    """
    waiting: dict[socket.socket, int] = {}
    try:
        silent = []
        for peer, address in enumerate(addresses):
            if peer == rank:
                continue
            attempt = socket.socket()
            attempt.setblocking(False)
            waiting[attempt] = peer
            if attempt.connect_ex((address, CLOSED_PORT)) not in (0, errno.EINPROGRESS):
                silent.append(peer)
        pending = {s: peer for s, peer in waiting.items() if peer not in silent}
        deadline = time.monotonic() + limit_s
        while pending and (left_s := deadline - time.monotonic()) > 0:
            _, answered, _ = select.select([], list(pending), [], left_s)
            for attempt in answered:
                peer = pending.pop(attempt)
                error = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error not in (0, errno.ECONNREFUSED):
                    silent.append(peer)
        return sorted([*silent, *pending.values()])
    finally:
        for attempt in waiting:
            attempt.close()
