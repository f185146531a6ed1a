"""Stores, in which processes of several hosts leave words for each other until they have met."""

import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from bagua_algos.communication.communicator import CommunicationError, without_place
from host.words import listed


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
