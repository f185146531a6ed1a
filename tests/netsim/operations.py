from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The four fields of `bagua_algos.communication.communicator.Operation` that cost something."""

    name: str
    num_bytes: int
    ranks: tuple[int, ...]
    peers: tuple[int, ...] | None = None


def of_all(name: str, num_bytes: int, num_workers: int, shift: int | None = None) -> Operation:
    """An operation of all workers; `shift`: an exchange with the worker so many further."""
    ranks = tuple(range(num_workers))
    peers = None if shift is None else tuple((rank + shift) % num_workers for rank in ranks)
    return Operation(name=name, num_bytes=num_bytes, ranks=ranks, peers=peers)
