"""Workers of one host, as threads of this process, who share memory."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bagua_algos.communication.connections.joining import NotShared, join
from bagua_algos.communication.connections.shared_memory import SharedMemory


class Speakers:
    """Tells each of N threads what all have said."""

    def __init__(self, world_size: int) -> None:
        self._said: list[Any] = [None] * world_size
        self._come = threading.Barrier(world_size, timeout=30)

    def all_say(self, rank: int, own: Any) -> list[Any]:
        self._said[rank] = own
        self._come.wait()
        said = list(self._said)
        self._come.wait()
        return said


def run(
    world_size: int,
    work: Callable[[int, SharedMemory | NotShared], Any],
    *,
    members: tuple[int, ...] | None = None,
    limit_s: float = 30,
    num_bytes: int = 1 << 12,
) -> list[Any]:
    """What `work` returns by rank, of workers who have joined, or have been told why not."""
    speakers = Speakers(world_size)

    def worker(rank: int) -> Any:
        own = members or tuple(range(world_size))
        joined = join(rank, own, lambda x: speakers.all_say(rank, x), limit_s, num_bytes)
        return work(rank, joined)

    with ThreadPoolExecutor(world_size) as pool:
        return [one.result() for one in [pool.submit(worker, r) for r in range(world_size)]]
