"""Operations of gloo, timed between real workers in namespaces.

The same calls as in `bagua_algos.communication.process_group`. Nothing but the operations
themselves crosses the network: workers find each other by a file, start together by a semaphore,
and note the times in memory that they share.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from netsim.conditions.condition import NetworkCondition
from netsim.links.namespaces import Hub
from netsim.links.netlink import INTERFACE
from netsim.proof.temporary_network import run_workers

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from netsim.links.switch import SwitchShaper

Array = NDArray[np.float64]
Lane = Sequence[tuple[str, int]]
"""Operations one after the other: name, and bytes that each worker hands in."""

OPERATIONS = ("all_reduce_mean", "all_to_all", "all_gather", "broadcast", "exchange")
ELEMENT_BYTES = 4
_LINGER_S = 0.3


def seconds(
    condition: NetworkCondition,
    num_workers: int,
    cases: Sequence[Sequence[Lane]],
    *,
    num_repeats: int,
    limit_s: float,
) -> tuple[str, list[list[float]]]:
    """How long each case takes, from when the last worker begins until the last is done.

    A case is one lane or more, at the same time, each in a thread and a process group of its own.
    Every case is done once beforehand, so that TCP's windows are open.

    Args:
        condition: of the network; its links at time 0 count.
        num_workers: how many.
        cases: what to time.
        num_repeats: of each case.
        limit_s: for all of it; then the workers are killed.

    Returns:
        the back end, and for each case the seconds of each repeat.

    Raises:
        NamespaceError: if the network cannot be made, or a worker fails.
    """

    def do_all(worker: _GlooWorker, hub: Hub, together: Barrier, times_s: Array) -> None:
        for case, lanes in enumerate(cases):
            for repeat in range(1 + num_repeats):
                together.wait()
                times_s[case, repeat] = worker.do(lanes)

    shape = (num_workers, len(cases), 1 + num_repeats, 2)
    num_lanes = max(map(len, cases))
    backend, times_s = _by_workers(condition, shape, do_all, num_lanes=num_lanes, limit_s=limit_s)
    begins_s, ends_s = np.moveaxis(times_s.max(0), -1, 0)
    return backend, (ends_s - begins_s)[:, 1:].tolist()


def processor_seconds(
    condition: NetworkCondition,
    num_workers: int,
    operations: Lane,
    *,
    num_repeats: int,
    limit_s: float,
) -> tuple[str, list[float]]:
    """The processor time that all workers and the switch take for each operation together, on the
    mean of its repeats; arguments, and what is raised, as for `seconds`.

    Returns:
        the back end, and for each operation its seconds.
    """

    def do_all(worker: _GlooWorker, hub: Hub, together: Barrier, times_s: Array) -> None:
        switch = hub.switch if worker.rank == 0 else None
        for index, operation in enumerate(operations):
            repeat = worker.repeating(operation)
            repeat()  # opens connections and windows
            together.wait()
            before_s = _processor_s(switch)
            for _ in range(num_repeats):
                repeat()
            together.wait()
            times_s[index] = (_processor_s(switch) - before_s) / num_repeats

    shape = (num_workers, len(operations))
    backend, times_s = _by_workers(condition, shape, do_all, num_lanes=1, limit_s=limit_s)
    return backend, times_s.sum(0).tolist()


def _by_workers(
    condition: NetworkCondition,
    shape: tuple[int, ...],
    do_all: "Callable[[_GlooWorker, Hub, Barrier, Array], None]",
    *,
    num_lanes: int,
    limit_s: float,
) -> tuple[str, Array]:
    """The back end, and an array of `shape`, of which each worker has written its row, the first
    dimension, by `do_all`: it has a barrier of all workers, and may use so many lanes.
    """
    import torch  # once, for all workers that are forked

    assert torch.distributed.is_available(), "this build of torch has no gloo"
    num_workers = shape[0]
    context = multiprocessing.get_context("fork")
    together = context.Barrier(num_workers, timeout=limit_s)
    shared = np.frombuffer(context.RawArray("d", int(np.prod(shape)))).reshape(shape)
    rendezvous = os.memfd_create("netsim-rendezvous")

    def work(hub: Hub, rank: int) -> None:
        signal.alarm(int(limit_s) + 1)  # its default is to kill
        store = f"/proc/self/fd/{rendezvous}"
        worker = _GlooWorker(rank, num_workers, num_lanes, store, limit_s)
        do_all(worker, hub, together, shared[rank])
        together.wait()
        time.sleep(_LINGER_S)  # who exits takes its link away, and what is on it
        worker.close()

    try:
        return run_workers(condition, num_workers, work).backend, shared
    finally:
        os.close(rendezvous)


def _processor_s(switch: "SwitchShaper | None") -> float:
    """Of this process, and of the switch's."""
    return time.process_time() + (switch.counters().cpu_s if switch else 0.0)


class _GlooWorker:
    def __init__(
        self, rank: int, num_workers: int, num_lanes: int, store_path: str, limit_s: float
    ) -> None:
        import torch
        from torch import distributed as dist
        from torch._C._distributed_c10d import FileStore

        self.rank = rank
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
        limit = timedelta(seconds=limit_s)
        store = FileStore(store_path, num_workers)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=num_workers, timeout=limit
        )
        self._groups = [dist.new_group(timeout=limit) for _ in range(num_lanes)]

    def do(self, lanes: Sequence[Lane]) -> tuple[float, float]:
        """When this worker began and ended, in seconds of a clock that all of them share."""
        calls = [
            [_call(name, num_bytes, group) for name, num_bytes in lane]
            for lane, group in zip(lanes, self._groups, strict=False)
        ]
        threads = [threading.Thread(target=_call_all, args=(lane,)) for lane in calls[1:]]
        begin_s = time.monotonic()
        for thread in threads:
            thread.start()
        _call_all(calls[0])
        for thread in threads:
            thread.join()
        return begin_s, time.monotonic()

    def repeating(self, operation: tuple[str, int]) -> Callable[[], Any]:
        """One operation, as often as it is called."""
        name, num_bytes = operation
        return _call(name, num_bytes, self._groups[0])

    def close(self) -> None:
        from torch import distributed as dist

        dist.destroy_process_group()


def _call_all(calls: Sequence[Callable[[], Any]]) -> None:
    for call in calls:
        call()


def _call(name: str, num_bytes: int, group: "ProcessGroup | Any") -> Callable[[], Any]:
    """One operation with its tensors, which are there before the time begins."""
    import torch
    from torch import distributed as dist

    size = dist.get_world_size(group)
    num_elements = max(1, num_bytes // ELEMENT_BYTES)
    if name == "all_to_all":
        num_elements += -num_elements % size
    x = torch.ones(num_elements)
    if name == "all_reduce_mean":
        return lambda: (dist.all_reduce(x, group=group), x.div_(size))
    if name == "broadcast":
        return lambda: dist.broadcast(x, group_src=0, group=group)
    y = torch.empty(num_elements * (size if name == "all_gather" else 1))
    rank = dist.get_rank(group)
    if name == "all_to_all":
        others = [(rank + i) % size for i in range(1, size)]
        parts, room = x.chunk(size), y.chunk(size)
        return lambda: _send_and_receive(
            {peer: parts[peer] for peer in others},
            {peer: room[peer] for peer in reversed(others)},
            group,
        )
    if name == "all_gather":
        # torch 2.13 renamed it and warns of the old name.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return lambda: gather(y, x, group=group)
    assert name == "exchange", name
    return lambda: _send_and_receive({(rank + 1) % size: x}, {(rank - 1) % size: y}, group)


def _send_and_receive(
    outgoing: "dict[int, Tensor]", incoming: "dict[int, Tensor]", group: "ProcessGroup | Any"
) -> None:
    """Receives first, so that word of them does not stand behind data of the same connection."""
    from torch import distributed as dist

    requests = dist.batch_isend_irecv(
        [
            *(
                dist.P2POp(dist.irecv, y, group=group, group_peer=peer)
                for peer, y in incoming.items()
            ),
            *(
                dist.P2POp(dist.isend, x, group=group, group_peer=peer)
                for peer, x in outgoing.items()
            ),
        ]
    )
    for request in requests:
        request.wait()
