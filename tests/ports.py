"""Ports for servers of tests, where several test processes look for some."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port at which a server may listen, and which the kernel gives to nobody else."""
    with socket.socket() as holder:  # bound, so it is not free; without listen(), so it serves none
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
