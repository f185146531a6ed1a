"""The communicator of real workers: one process each, `torch.distributed` over NCCL or gloo
between them.

Only this module, `stripes.py`, `rendezvous.py` and `connections/groups.py` import
`torch.distributed`; only `bagua_algos/fsdp2/shards.py` imports its FSDP2, for sharded models.
"""

import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import EllipsisType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_group, _get_default_store

from bagua_algos.communication.communicator import (
    CommunicationError,
    Nodes,
    Observer,
    Part,
    Relay,
    check_parts,
    check_permutation,
    named_workers,
    reason_of,
)
from bagua_algos.communication.connections.groups import Groups, limit_of
from bagua_algos.communication.connections.joining import NotShared, join
from bagua_algos.communication.connections.shared_memory import SharedMemory
from bagua_algos.communication.direct import direct_
from bagua_algos.communication.halving_doubling import halving_doubling_
from bagua_algos.communication.pieces import Pieces
from bagua_algos.communication.stripes import Stripes, check_transport, without_gaps
from bagua_algos.communication.threads.at_exit import (
    Departures,
    ends_with_worker_0,
    has_process_groups,
)
from bagua_algos.communication.workers import Workers


class ProcessGroupCommunicator(Workers):
    """This process's worker in a `torch.distributed` process group.

    Args:
        group: the process group; None means the default one, which must be initialised.
        observer: hears of every operation, with the seconds it took where the device is the CPU;
            on a GPU nobody waits for its end, and the seconds are 0.
        clock: seconds, monotonic.
        timeout: of `group`; duplicates and parts get it, too. None means torch's default.
        nodes: which workers share one, for hierarchical primitives; with it, making a
            communicator is a collective call. `nodes_by_host` finds out.
        streams: connections between any two workers that a duplicate has, 1 to `MOST_STREAMS`; gloo
            only. Large operations are striped over them. This communicator itself uses `group`.
        halving_doubling_bytes: all-reduces of up to so many bytes go by recursive halving and
            doubling (`patterns.py`), the others by gloo's ring; gloo's only.
        fixed_order: larger all-reduces go directly (`direct.py`), not by gloo's ring; gloo only. No
            sum then depends on an element's place in its message, or on the number of streams.
        shared_memory: whether duplicates and parts all-reduce through memory that workers of one
            host share, in the fixed order. None: if they can. False by default, since workers that
            stand for separate machines have to use the network. On a GPU it changes nothing.
        pieces: whether several streams take pieces of large messages between two workers as they
            become free (`pieces.py`), instead of equal parts.
        memory: of a duplicate or a part: what its workers share.
        others: of a duplicate with several streams: the groups of the others beside `group`.
        origin: of a duplicate: the group beside which its own was made.
        device: of the tensors that it is given: None means the CPU where its group serves that,
            else the current GPU. A group of gloo and NCCL serves both.

    Raises:
        ValueError: torch.distributed is not initialised, nodes do not share all workers out, or
            there cannot be so many streams; of `duplicate`: memory that has to be shared cannot be.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        timeout: timedelta | None = None,
        nodes: Nodes | None = None,
        streams: int = 1,
        halving_doubling_bytes: int = 0,
        fixed_order: bool = False,
        shared_memory: bool | None = False,
        *,
        pieces: bool = False,
        others: Sequence[dist.ProcessGroup] = (),
        origin: dist.ProcessGroup | None = None,
        memory: SharedMemory | None = None,
        device: torch.device | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialised: "
                "call init_process_group() first and start with torchrun"
            )
        has_process_groups.set()
        self.group = group
        self._of = Groups(group, origin, timeout, device)
        check_transport(streams, bool(halving_doubling_bytes or fixed_order), self.device)
        self._parts: list[ProcessGroupCommunicator] = []
        self.streams = streams
        self.halving_doubling_bytes = halving_doubling_bytes
        self.fixed_order = fixed_order
        self.pieces = pieces
        self.shared_memory, self._memory = shared_memory, memory
        members = self._of.members
        super().__init__(len(members), (self._of.rank,), members, observer, clock, nodes)
        self._groups = [group, *others]
        own = group or _get_default_group()
        self.departures = Departures(
            store := _get_default_store(),
            own.group_name,
            self.ranks[0],
            self.world_size,
            members.index(0) if 0 in members and ends_with_worker_0(store) else None,
        )
        self.stripes = self._striped()

    @property
    def device(self) -> torch.device:
        """Where it takes tensors from."""
        return self._of.device

    def check_carries(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise `ValueError` where one of a model's tensors is not where it takes tensors from, or
        its group's back end for that device is gloo, which sends nothing from a GPU.
        """
        self._of.check_carries(tensors)

    @property
    def shares_memory(self) -> bool:
        """Whether all-reduces of this one go through memory that its workers share."""
        return self._memory is not None

    @property
    def awaited(self) -> tuple[int, ...]:
        """The workers that an operation through shared memory is waiting for, by their members."""
        return () if self._memory is None else self._memory.mesh.awaited

    def limit_waits(self, limit_s: float) -> None:
        """Let no all-reduce through shared memory wait for longer; the group's limit holds, too."""
        if self._memory is not None:
            self._memory.mesh.limit_s = min(limit_s, self._memory.mesh.limit_s)

    def with_transport(
        self,
        *,
        streams: int | None = None,
        halving_doubling_bytes: int | None = None,
        fixed_order: bool | None = None,
        shared_memory: bool | EllipsisType | None = ...,
        pieces: bool | None = None,
    ) -> "ProcessGroupCommunicator":
        """Return one over the same connections, those of nodes among them, that differs in what is
        given. Raises `ValueError` for what cannot be.
        """
        limit = halving_doubling_bytes
        other = ProcessGroupCommunicator(
            self.group,
            self.observer,
            self.clock,
            self._of.timeout,
            None,
            self.streams if streams is None else streams,
            self.halving_doubling_bytes if limit is None else limit,
            self.fixed_order if fixed_order is None else fixed_order,
            self.shared_memory if shared_memory is ... else shared_memory,
            pieces=self.pieces if pieces is None else pieces,
            device=self.device,
        )
        other.nodes, other.hierarchy = self.nodes, self.hierarchy
        other.on_streams = self.on_streams
        return other

    def use_transport(
        self, *, streams: int, halving_doubling_bytes: int, fixed_order: bool, pieces: bool
    ) -> None:
        """Let this duplicate and its parts have so many streams, and that pattern, from the next
        operation on; none is under way. Connections stay open for another change. Raises
        `ValueError` for what cannot be.
        """
        check_transport(streams, bool(halving_doubling_bytes or fixed_order), self.device)
        num_missing = streams - len(self._groups)
        if num_missing > 0:
            self._groups += self._of.take([range(self.world_size)], num_missing)
        self.streams, self.pieces = streams, pieces
        self.stripes.close()
        self.stripes = self._striped()
        if self.on_streams is not None:
            self.on_streams(streams)
        self.halving_doubling_bytes, self.fixed_order = halving_doubling_bytes, fixed_order
        for part in self._parts:
            part.use_transport(
                streams=streams,
                halving_doubling_bytes=halving_doubling_bytes,
                fixed_order=fixed_order,
                pieces=pieces,
            )

    def duplicate(self) -> "ProcessGroupCommunicator":
        """Return one of the same workers with connections of its own; collective."""
        return self._beside([range(self.world_size)], self.observer, self.nodes)

    def close(self) -> None:
        """Leave the connections to those who need some next; memory is given back."""
        for part in self._parts:
            part.close()
        if self._memory is not None:
            self._memory.close()
        self.stripes.close()
        self._of.leave(self._groups)

    def split(self, parts: Sequence[Sequence[int]]) -> list[Part]:
        """Return the one part that this worker is in; `ValueError` unless `parts` share all out."""
        check_parts(parts, self.world_size)
        communicator = self._beside(parts, Relay(self), None)
        self._parts.append(communicator)
        return [Part(communicator=communicator, rows=slice(0, 1))]

    def _beside(
        self, parts: Sequence[Sequence[int]], observer: Observer | None, nodes: Nodes | None
    ) -> "ProcessGroupCommunicator":
        """One of the workers of this worker's part; a collective call of all workers here."""
        memory = self._share(parts)
        group, *others = self._of.take(parts, self.streams)
        other = ProcessGroupCommunicator(
            group,
            observer,
            self.clock,
            self._of.timeout,
            nodes,
            self.streams,
            self.halving_doubling_bytes,
            self.fixed_order,
            self.shared_memory,
            pieces=self.pieces,
            others=others,
            origin=self._of.origin,
            memory=memory,
            device=self.device,
        )
        other.on_streams = self.on_streams
        return other

    def _share(self, parts: Sequence[Sequence[int]]) -> SharedMemory | None:
        """Memory of the workers of this worker's part, where it is to be used and can be."""
        limit_s = limit_of(self.group)
        if self.shared_memory is False or limit_s is None or self.world_size == 1:
            return None
        ranks = self._of.part_of_this_worker(parts)
        joined = join(
            ranks.index(self.ranks[0]),
            tuple(self.members[rank] for rank in ranks),
            lambda own: [words for r, words in enumerate(self._of.all_say(own)) if r in ranks],
            limit_s,
        )
        if not isinstance(joined, NotShared):
            return joined
        if self.shared_memory and len(parts) == 1:
            raise ValueError(f"shared_memory=True cannot be: {joined.why}")
        if joined.surprises:
            warnings.warn(
                f"all-reduces go over gloo, not through shared memory: {joined.why}", stacklevel=2
            )
        return None

    def _striped(self) -> Stripes:
        groups = self._groups[: self.streams]
        return Pieces(groups) if self.pieces and len(groups) > 1 else Stripes(groups)

    def all_reduce_mean_(self, x_w: Tensor) -> None:
        """Replace `x[1, ...]` by the sum over all workers / N (fp16 is divided first)."""
        self._check("all_reduce_mean_", x_w, averages=True)
        with without_gaps(x_w) as own_w, self._operation("all_reduce_mean", own_w):
            # gloo has no AVG, and NCCL's rounds otherwise: the sum divided once is the same on
            # both. But a sum of fp16 may be beyond its range, where the mean is not.
            is_first = own_w.dtype == torch.float16
            if is_first:
                own_w.div_(self.world_size)
            divisor = 1 if is_first else self.world_size
            if self._memory is not None and SharedMemory.takes(own_w):
                self._memory.all_reduce_(own_w, divisor)
            else:
                self._sum_(own_w)
                own_w.div_(divisor)

    def _sum_(self, x_w: Tensor) -> None:
        is_small = x_w.numel() * x_w.element_size() <= self.halving_doubling_bytes
        if not is_small and not self.fixed_order:
            self.stripes.all_reduce_(x_w)
            return
        all_reduce_ = halving_doubling_ if is_small else direct_
        all_reduce_(x_w, self.ranks[0], self.world_size, self.stripes.send_and_receive)

    def all_to_all(self, x_wN: Tensor) -> Tensor:
        """Send `x[0, j]` to worker j; returns `y[1, N, ...]` with `y[0, j]` from worker j."""
        self._check("all_to_all", x_wN, for_each=True)
        with self._operation("all_to_all", x_wN):
            return self._to_each_other(x_wN)

    def all_gather(self, x_w: Tensor) -> Tensor:
        """Return `y[1, N, ...]` with `y[0, j]` = x of worker j."""
        self._check("all_gather", x_w)
        y_wN = x_w.new_empty(1, self.world_size, *x_w.shape[1:])
        with self._operation("all_gather", x_w):
            self.stripes.all_gather(x_w.contiguous(), y_wN.flatten(0, 1))
        return y_wN

    def reduce_scatter_mean(self, x_wN: Tensor) -> Tensor:
        """Send `x[0, j]` to worker j; returns the mean of the N rows that arrive, `[1, ...]`.

        Rows are summed here, because gloo has no reduce-scatter of its own.
        """
        self._check("reduce_scatter_mean", x_wN, averages=True, for_each=True)
        with self._operation("reduce_scatter_mean", x_wN):
            y_wN = self._to_each_other(x_wN)
        return y_wN.mean(1)

    def broadcast_(self, x_w: Tensor, source: int = 0) -> None:
        """Replace `x[1, ...]` by worker `source`'s."""
        self._check("broadcast_", x_w)
        with without_gaps(x_w) as own_w, self._operation("broadcast", own_w):
            self.stripes.broadcast_(own_w, source)

    def exchange(self, x_w: Tensor, peers: Sequence[int]) -> Tensor:
        """Send `x[1, ...]` to worker `peers[rank]`; returns what arrives, or a copy of `x`.

        Raises `ValueError` if `peers` is no permutation.
        """
        check_permutation(peers, self.world_size)
        self._check("exchange", x_w)
        rank = self.ranks[0]
        target, source = peers[rank], list(peers).index(rank)
        if target == rank:
            return x_w.clone()
        own_w = x_w.contiguous()  # the peer's may lie otherwise
        y_w = torch.empty_like(own_w)
        with self._operation("exchange", own_w, tuple(peers)):
            self.stripes.send_and_receive({target: own_w}, {source: y_w})
        return y_w

    def _to_each_other(self, x_wN: Tensor) -> Tensor:
        x_wN = x_wN.contiguous()  # another worker's may lie otherwise
        y_wN = torch.empty_like(x_wN)
        [rank] = self.ranks
        y_wN[0, rank] = x_wN[0, rank]
        following = [(rank + i) % self.world_size for i in range(1, self.world_size)]
        self.stripes.send_and_receive(
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
                f"worker {own}: {name} with {named_workers(others)} failed "
                f"after {self.clock() - started_s:.1f} s: {reason_of(error)}"
            ) from error
        seconds = 0.0 if x_w.is_cuda else self.clock() - started_s
        self._report(name, x_w, peers, seconds)


def nodes_by_host() -> Nodes:
    """The workers of torch's default group that have the same host name; a collective call."""
    hosts = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    return tuple(
        tuple(rank for rank, other in enumerate(hosts) if other == host)
        for host in dict.fromkeys(hosts)
    )


def is_process_group(group: object) -> bool:
    """Whether it is one of torch's own, which a `ProcessGroupCommunicator` is around."""
    return isinstance(group, dist.ProcessGroup)
