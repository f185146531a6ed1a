"""What a cached data set saves: `python -m experiments.bench_systems cache`.

Four processes read a data set whose examples take 5 ms each, three epochs, each in an order of its
own that deals the examples to them anew. The stores take turns: none, this host's disk, a Redis
server where one is installed, and diskcache where that is, which was not chosen. Then the stores by
themselves: four processes write and read entries, one at a time.
"""

import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bagua_algos.data import CachedDataset, DiskStore, RedisStore, Store

NUM_PROCESSES = 4
NUM_EXAMPLES = 2_000
NUM_EPOCHS = 3
EXAMPLE_S = 0.005
ENTRY_BYTES = (1_000, 50_000, 600_000)
"""Such as a row of features, a small image, a large one."""
BYTES_OF_ENTRIES = 100e6

_PROCESSES = get_context("fork")


class Slow(Dataset[tuple[Tensor, int]]):
    """Images uint8 [3, 64, 64] and their labels, each after 5 ms of waiting, as for a disk."""

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(EXAMPLE_S)
        return torch.full((3, 64, 64), index % 256, dtype=torch.uint8), index


class DiskcacheStore:
    """diskcache behind the face of a store."""

    def __init__(self, folder: Path) -> None:
        module: Any = importlib.import_module("diskcache")
        self._cache = module.Cache(str(folder), size_limit=1 << 33)

    def read(self, dataset: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        """The entries of `keys`, None where there is none."""
        return [self._cache.get(dataset + key) for key in keys]

    def write(self, dataset: bytes, entries: Mapping[bytes, bytes]) -> None:
        """Keep `entries`."""
        with self._cache.transact():
            for key, entry in entries.items():
                self._cache.set(dataset + key, entry)

    def close(self) -> None:
        """End what is open in this process."""
        self._cache.close()


@contextmanager
def stores() -> Iterator[dict[str, Callable[[], Store]]]:
    """How to make each store that is installed, empty."""
    with tempfile.TemporaryDirectory() as name, _redis_server(Path(name)) as address:
        folder = Path(name)
        makers: dict[str, Callable[[], Store]] = {
            "disk (LMDB)": lambda: DiskStore(folder=_new(folder))
        }
        if address is not None:
            makers["Redis"] = lambda: RedisStore(address=address)
        if importlib.util.find_spec("diskcache") is not None:
            makers["disk (diskcache)"] = lambda: DiskcacheStore(_new(folder))
        yield makers


def _new(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def epochs_s(store: Store | None, name: str) -> list[float]:
    """Seconds of each epoch, of the slowest process; without a store the data set itself."""
    dataset = Slow() if store is None else CachedDataset(Slow(), store, fingerprint=name)

    def work(rank: int, meet: Callable[[], object]) -> Iterator[float]:
        sampler = DistributedSampler(dataset, NUM_PROCESSES, rank)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        for epoch in range(NUM_EPOCHS):
            sampler.set_epoch(epoch)
            meet()
            started_s = time.perf_counter()
            for x, y in loader:
                assert x[:, 0, 0, 0].equal((y % 256).to(torch.uint8)), "a wrong example"
            yield time.perf_counter() - started_s

    return [max(times_s) for times_s in zip(*_in_processes(work), strict=True)]


def entry_us(store: Store, num_bytes: int) -> tuple[float, float]:
    """Microseconds to write an entry and to read one, means of all processes."""
    num_entries = max(100, int(min(4_000, BYTES_OF_ENTRIES / num_bytes / NUM_PROCESSES)))
    dataset = os.urandom(16)

    def work(rank: int, meet: Callable[[], object]) -> Iterator[float]:
        entry = os.urandom(num_bytes)
        keys = [b"%d %d" % (rank, number) for number in range(num_entries)]
        for use in (
            lambda key: store.write(dataset, {key: entry}),
            lambda key: store.read(dataset, [key]),
        ):
            meet()
            started_s = time.perf_counter()
            for key in keys:
                use(key)
            yield (time.perf_counter() - started_s) / num_entries

    write_s, read_s = (statistics.mean(s) for s in zip(*_in_processes(work), strict=True))
    return 1e6 * write_s, 1e6 * read_s


def _in_processes(
    work: Callable[[int, Callable[[], object]], Iterator[float]],
) -> list[list[float]]:
    """What `work` yields in each process; it is given a rank and a barrier."""
    barrier, results = _PROCESSES.Barrier(NUM_PROCESSES), _PROCESSES.SimpleQueue()

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        results.put(list(work(rank, barrier.wait)))

    children = [_PROCESSES.Process(target=run, args=(r,)) for r in range(NUM_PROCESSES)]
    for child in children:
        child.start()
    found = [results.get() for _ in children]
    for child in children:
        child.join()
    return found


@contextmanager
def _redis_server(folder: Path) -> Iterator[str | None]:
    """The address of a server of our own; None where none is installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    path = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as server:
        try:
            _wait_for(path)
            yield f"unix://{path}"
        finally:
            server.kill()


def _wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        with socket.socket(socket.AF_UNIX) as attempt:
            if not attempt.connect_ex(str(path)):
                return
        time.sleep(0.01)
    raise SystemExit("the Redis server does not come")
