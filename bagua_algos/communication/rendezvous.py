"""How real workers find each other, by a store in which they leave words; their process group."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from bagua_algos.communication.communicator import CommunicationError, Nodes, without_place
from bagua_algos.communication.connections.groups import connect, device_of, forget_left
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from host.words import listed


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
    """As `file_rendezvous`, of workers on any hosts, who find each other through `store`."""
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        connect(None, device_of(None))
        yield ProcessGroupCommunicator(timeout=timeout, nodes=nodes)
    except BaseException:
        if backend != dist.Backend.NCCL:  # which would first wait for what will never be done
            dist.destroy_process_group()
        raise
    finally:
        forget_left()
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
    store.set_timeout(timedelta(seconds=timeout_s))
    try:
        if rank > 0:
            store.set(f"name of {rank}", own)
            part = store.get(f"part of {own}").decode()
            store.set(_is_in(part, rank), "")
        else:
            part = own
            _answer(store, part, world_size, time.monotonic() + timeout_s)
    except RuntimeError as error:
        whom = f"worker {rank}: worker 0 has not come" if rank else without_place(error)
        raise CommunicationError(f"{whom} within {timeout_s:g} s") from error
    return PrefixStore(part, store)


def _answer(store: Store, part: str, world_size: int, deadline_s: float) -> None:
    answered: dict[int, bytes] = {}
    late = list(range(1, world_size))
    while late := [rank for rank in late if not store.check([_is_in(part, rank)])]:
        if time.monotonic() > deadline_s:
            who = "worker {} has" if len(late) == 1 else "workers {} have"
            raise RuntimeError(f"worker 0: {who.format(listed(map(str, late)))} not come")
        for rank in late:
            key = f"name of {rank}"
            name = store.get(key) if store.check([key]) else None
            if name is not None and name != answered.get(rank):
                store.set(f"part of {name.decode()}", part)
                answered[rank] = name
        time.sleep(0.02)


def _is_in(part: str, rank: int) -> str:
    """Said by worker `rank` when it has come."""
    return f"{rank} is in {part}"
