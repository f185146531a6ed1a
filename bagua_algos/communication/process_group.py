"""The communicator of real workers: one process each, `torch.distributed` over NCCL or gloo
between them.

With `stripes.py` the only module of this package that imports `torch.distributed`; FSDP2, for
sharded models, is known to `bagua_algos/fsdp2/shards.py` alone.
"""

import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from bagua_algos.communication.communicator import (
    CommunicationError,
    Nodes,
    Observer,
    Part,
    Relay,
    check_parts,
    check_permutation,
)
from bagua_algos.communication.stripes import Stripes, without_place
from bagua_algos.communication.workers import Workers

MOST_STREAMS = 16
"""gloo keeps two threads a group."""

_FREE: dict[
    tuple[dist.ProcessGroup | None, tuple[int, ...], timedelta | None], list[dist.ProcessGroup]
] = {}
"""Groups that closed communicators have left, by the group they come from, workers and timeout."""


class ProcessGroupCommunicator(Workers):
    """This process's worker in a `torch.distributed` process group.

    Args:
        group: the process group; None means the default one, which must be initialised.
        observer: hears of every operation, with the seconds it took where the device is the CPU;
            on a GPU nobody waits for its end, and the seconds are 0.
        clock: seconds, monotonic.
        timeout: the group's own, for duplicates and parts; None means torch's default.
        nodes: which workers share one, for hierarchical primitives; with it, making a
            communicator is a collective call. `nodes_by_host` finds out.
        streams: how many connections a duplicate has between each two workers, 1 to `MOST_STREAMS`;
            gloo's only. Large operations are striped over them. This one itself has the group's.
        origin: of a duplicate: the group beside which its own was made.

    Raises:
        ValueError: torch.distributed is not initialised, nodes do not share all workers out, or
            there cannot be so many streams.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        timeout: timedelta | None = None,
        nodes: Nodes | None = None,
        streams: int = 1,
        *,
        origin: dist.ProcessGroup | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialised: "
                "call init_process_group() first and start with torchrun"
            )
        _check_streams(streams, group)
        self.group = group
        self._origin = origin or group or dist.group.WORLD
        self._timeout = timeout
        self._parts: list[ProcessGroupCommunicator] = []
        self.streams = streams
        members = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        super().__init__(len(members), (dist.get_rank(group),), members, observer, clock, nodes)
        num_others = 0 if origin is None else streams - 1
        others = [self._new_group(range(self.world_size)) for _ in range(num_others)]
        self._stripes = Stripes([group, *others])

    @property
    def device(self) -> torch.device:
        """Where it takes tensors from: NCCL from the current GPU, gloo from the CPU."""
        is_nccl = dist.get_backend(self.group) == dist.Backend.NCCL
        return torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")

    def duplicate(self) -> "ProcessGroupCommunicator":
        """Return one of the same workers with connections of its own; collective."""
        return ProcessGroupCommunicator(
            self._new_group(range(self.world_size)),
            self.observer,
            self.clock,
            self._timeout,
            self.nodes,
            self.streams,
            origin=self._origin,
        )

    def close(self) -> None:
        """Leave the connections to those who need some next. torch cannot end them safely one by
        one: a new group may be given the name of one that has ended, and would meet its traces.
        """
        for part in self._parts:
            part.close()
        for group in self._stripes.groups:
            if group is not None and group is not self._origin:
                _FREE.setdefault((self._origin, self.members, self._timeout), []).append(group)

    def split(self, parts: Sequence[Sequence[int]]) -> list[Part]:
        """Return the one part that this worker is in; `ValueError` unless `parts` share all out."""
        check_parts(parts, self.world_size)
        [part] = [part for part in parts if self.ranks[0] in part]
        communicator = ProcessGroupCommunicator(
            self._new_group(part),
            Relay(self),
            self.clock,
            self._timeout,
            streams=self.streams,
            origin=self._origin,
        )
        self._parts.append(communicator)
        return [Part(communicator=communicator, rows=slice(0, 1))]

    def _new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        members = tuple(self.members[rank] for rank in ranks)
        free = _FREE.get((self._origin, members, self._timeout))
        if free:
            return free.pop()
        # torch names a group by its workers and by how many this process has made: every worker
        # has to make as many groups as the others, or they would wait for each other by two names.
        group = dist.new_group(list(members), timeout=self._timeout, use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup), "this worker is one of the group's"
        _connect(group)
        return group

    def all_reduce_mean_(self, x_w: Tensor) -> None:
        """Replace `x[1, ...]` by the sum over all workers / N (fp16 is divided first)."""
        with self._operation("all_reduce_mean", x_w):
            # gloo has no AVG, and NCCL's rounds otherwise: the sum divided once is the same on
            # both. But a sum of fp16 may be beyond its range, where the mean is not.
            if x_w.dtype == torch.float16:
                self._stripes.all_reduce_(x_w.div_(self.world_size))
            else:
                self._stripes.all_reduce_(x_w)
                x_w.div_(self.world_size)

    def all_to_all(self, x_wN: Tensor) -> Tensor:
        """Send `x[0, j]` to worker j; returns `y[1, N, ...]` with `y[0, j]` from worker j."""
        with self._operation("all_to_all", x_wN):
            return self._to_each_other(x_wN)

    def all_gather(self, x_w: Tensor) -> Tensor:
        """Return `y[1, N, ...]` with `y[0, j]` = x of worker j."""
        y_wN = x_w.new_empty(1, self.world_size, *x_w.shape[1:])
        with self._operation("all_gather", x_w):
            self._stripes.all_gather(x_w, y_wN.flatten(0, 1))
        return y_wN

    def reduce_scatter_mean(self, x_wN: Tensor) -> Tensor:
        """Send `x[0, j]` to worker j; returns the mean of the N rows that arrive, `[1, ...]`.

        Rows are summed here, because gloo has no reduce-scatter of its own.
        """
        with self._operation("reduce_scatter_mean", x_wN):
            y_wN = self._to_each_other(x_wN)
        return y_wN.mean(1)

    def broadcast_(self, x_w: Tensor, source: int = 0) -> None:
        """Replace `x[1, ...]` by worker `source`'s."""
        with self._operation("broadcast", x_w):
            self._stripes.broadcast_(x_w, source)

    def exchange(self, x_w: Tensor, peers: Sequence[int]) -> Tensor:
        """Send `x[1, ...]` to worker `peers[rank]`; returns what arrives, or a copy of `x`.

        Raises `ValueError` if `peers` is no permutation.
        """
        check_permutation(peers, self.world_size)
        rank = self.ranks[0]
        target, source = peers[rank], list(peers).index(rank)
        if target == rank:
            return x_w.clone()
        y_w = torch.empty_like(x_w)
        with self._operation("exchange", x_w, tuple(peers)):
            self._stripes.send_and_receive({target: x_w}, {source: y_w})
        return y_w

    def _to_each_other(self, x_wN: Tensor) -> Tensor:
        y_wN = torch.empty_like(x_wN)
        [rank] = self.ranks
        y_wN[0, rank] = x_wN[0, rank]
        following = [(rank + i) % self.world_size for i in range(1, self.world_size)]
        self._stripes.send_and_receive(
            {peer: x_wN[0, peer] for peer in following},
            {peer: y_wN[0, peer] for peer in reversed(following)},
        )
        return y_wN

    @contextmanager
    def _operation(
        self, name: str, x_w: Tensor, peers: tuple[int, ...] | None = None
    ) -> Iterator[None]:
        started_s = self.clock()
        try:
            yield
        except RuntimeError as error:
            rank, own = self.ranks[0], self.members[self.ranks[0]]
            others = [self.members[peers[rank]]] if peers else [r for r in self.members if r != own]
            raise CommunicationError(
                f"worker {own}: {name} with {_named(others)} failed "
                f"after {self.clock() - started_s:.1f} s: {without_place(error)}"
            ) from error
        seconds = 0.0 if x_w.is_cuda else self.clock() - started_s
        self._report(name, x_w, peers, seconds)


def _check_streams(streams: int, group: dist.ProcessGroup | None) -> None:
    if not 1 <= streams <= MOST_STREAMS:
        raise ValueError(f"streams must be 1 to {MOST_STREAMS}, got {streams}")
    if streams > 1 and dist.get_backend(group) != dist.Backend.GLOO:
        raise ValueError(
            "only gloo's operations are striped: leave streams at 1, and set NCCL_NSOCKS_PERTHREAD "
            "and NCCL_SOCKET_NTHREADS, by which NCCL opens several sockets itself"
        )


def _named(ranks: Sequence[int]) -> str:
    if not ranks:
        return "nobody"
    return ("worker " if len(ranks) == 1 else "workers ") + ", ".join(map(str, ranks))


def _connect(group: dist.ProcessGroup | None = None) -> None:
    """NCCL connects in the first operation, in which all workers have to take part."""
    if dist.get_backend(group) == dist.Backend.NCCL:
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)


def nodes_by_host() -> Nodes:
    """The workers of torch's default group that have the same host name; a collective call."""
    hosts = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    return tuple(
        tuple(rank for rank, other in enumerate(hosts) if other == host)
        for host in dict.fromkeys(hosts)
    )


@contextmanager
def file_rendezvous(
    path: str,
    *,
    backend: str,
    rank: int,
    world_size: int,
    timeout_s: float,
    nodes: Nodes | None = None,
) -> Iterator[ProcessGroupCommunicator]:
    """The default process group of `world_size` workers on one host, for as long as the context
    lasts.

    The workers find each other through the file `path`, so that no control traffic crosses the
    network under test. Every collective ends with `CommunicationError` after `timeout_s` seconds;
    with NCCL it is only enqueued, and the caller has to notice that the GPU does not come by.
    `nodes` says which workers share one. NCCL's workers have called `torch.cuda.set_device`.
    """
    with rendezvous(
        FileStore(path, world_size),
        backend=backend,
        rank=rank,
        world_size=world_size,
        timeout_s=timeout_s,
        nodes=nodes,
    ) as communicator:
        yield communicator


@contextmanager
def rendezvous(
    store: Store,
    *,
    backend: str,
    rank: int,
    world_size: int,
    timeout_s: float,
    nodes: Nodes | None = None,
) -> Iterator[ProcessGroupCommunicator]:
    """The default process group of workers on any hosts, who find each other through `store`.

    Otherwise the same as `file_rendezvous`, which puts a file in the place of the store.
    """
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        _connect()
        yield ProcessGroupCommunicator(timeout=timeout, nodes=nodes)
    except BaseException:
        if backend != dist.Backend.NCCL:  # which would first wait for what will never be done
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def connect_store(
    address: str, port: int, *, makes_it: bool, world_size: int, timeout_s: float
) -> Store:
    """The store at an address, where processes of several hosts leave words for each other; one of
    them `makes_it`, or it is there.

    Raises `CommunicationError` where none is found within `timeout_s`.
    """
    try:
        return TCPStore(
            address,
            port,
            world_size,
            is_master=makes_it,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise CommunicationError(
            f"no store at {address}:{port} within {timeout_s:g} s: {without_place(error)}"
        ) from error


def meet(store: Store, *, rank: int, world_size: int, timeout_s: float) -> Store:
    """A part of `store` that only the workers of this call share; a collective call.

    The store of torchrun's agent outlives restarts and keeps the entries of workers that are gone.
    A worker that read an old entry of the same rank would wait at a dead address. So each worker
    writes a new unique name, and worker 0 answers that name with the name of the part.

    Raises `CommunicationError` where somebody does not come within `timeout_s`.
    """
    own = uuid.uuid4().hex
    try:
        if rank > 0:
            store.set(f"name of {rank}", own)
            part = store.get(f"part of {own}").decode()
            store.add(f"met in {part}", 1)
        else:
            part = own
            _answer(store, part, world_size, time.monotonic() + timeout_s)
    except RuntimeError as error:
        raise CommunicationError(
            f"worker {rank}: not all {world_size} workers have come within {timeout_s:g} s: "
            f"{without_place(error)}"
        ) from error
    return PrefixStore(part, store)


def _answer(store: Store, part: str, world_size: int, deadline_s: float) -> None:
    answered: dict[int, bytes] = {}
    while store.add(f"met in {part}", 0) < world_size - 1:
        if time.monotonic() > deadline_s:
            raise RuntimeError("worker 0 waited in vain")
        for rank in range(1, world_size):
            key = f"name of {rank}"
            name = store.get(key) if store.check([key]) else None
            if name is not None and name != answered.get(rank):
                store.set(f"part of {name.decode()}", part)
                answered[rank] = name
        time.sleep(0.02)
